"""Op-level logs of a production job's workers: one row per op of a worker and step (CSV or Parquet).

The columns are those of the traces published with "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025): ``dp_rank``, ``stage`` and ``rank`` of the worker, ``step``, ``optype``,
``start_ts`` and ``duration`` in seconds, ``seq_id`` (number among the step's ops of its type), ``mc`` (model
chunk on the stage), ``mb_id`` (microbatch) and ``gmc`` (chunk of the model); -1 where a column says nothing.
"""

from __future__ import annotations

import io
from array import array

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError, nearest
from simcore.graph.ops import IntArray, Strings
from simcore.outside import csv_rows, limits, open_parquet, over, quoted
from simcore.records import dataclass
from workloads.imports.files import TraceFile, read_whole
from workloads.imports.recorded import MAX_SPAN_S

COLUMNS = (
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc",
)  # fmt: skip
_PARQUET_MAGIC = b"PAR1"
_WHOLE = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
_OPTIONAL = ("mc", "mb_id", "gmc")  # communication has none
_MAX_S = 1e12  # no clock in seconds shows more

FORWARD, BACKWARD = "forward-compute", "backward-compute"
#: Type -> (sends, stages from a sender to its receiver).
P2P_TYPES = {
    "forward-send": (True, 1), "forward-recv": (False, 1), "backward-send": (True, -1),
    "backward-recv": (False, -1),
}  # fmt: skip
PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER = "params-all-gather", "grads-reduce-scatter"
#: Communication among the data-parallel workers of a stage.
DP_TYPES = {
    PARAMS_ALL_GATHER: "all_gather", GRADS_REDUCE_SCATTER: "reduce_scatter",
    "separate-grads-all-reduce": "all_reduce",
}  # fmt: skip
EMBEDDING = "embedding-grads-all-reduce"  # first and last stage of a pipeline
LAYERNORM = "layernorm-grads-all-reduce"  # tensor-parallel ranks, which the log shows as one worker
CLIP = "optimizer-clip-main-grad"  # the gradients' norm, over all workers
KNOWN_TYPES = (
    FORWARD, BACKWARD, *P2P_TYPES, *DP_TYPES, EMBEDDING, LAYERNORM, CLIP, "optimizer", "gc",
)  # fmt: skip
#: Communication for the choice of an ideal duration (a median), coupled or not.
COMMUNICATION_TYPES = (*P2P_TYPES, *DP_TYPES, EMBEDDING, LAYERNORM, CLIP)


@dataclass(frozen=True)
class WorkerLog:
    """The rows of a log by step, worker and start.  Times in ps after the first start of the row's step.

    ``worker`` numbers the workers in the order of ``numbers`` (their ranks, ascending), ``dp_of`` and
    ``stage_of`` are by worker; ``steps`` are in the order recorded.
    """

    label: str
    numbers: tuple[int, ...]
    dp_of: IntArray
    stage_of: IntArray
    steps: tuple[int, ...]
    step: IntArray
    worker: IntArray
    optype: Strings
    start_ps: IntArray
    end_ps: IntArray
    sequence: IntArray
    chunk: IntArray
    microbatch: IntArray
    model_chunk: IntArray

    @property
    def num_dp(self) -> int:
        """Data-parallel replicas."""
        return int(self.dp_of.max()) + 1

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return int(self.stage_of.max()) + 1


def is_worker_log(_source: TraceFile, head: bytes) -> bool:
    """Whether a file begins like such a log: its CSV header, or the column names in a Parquet's page."""
    if head.startswith(_PARQUET_MAGIC):
        return True  # no other known trace is Parquet
    line = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip().lstrip("\ufeff")
    names = {name.strip().strip('"') for name in line.split(",")}
    return {"optype", "start_ts", "duration"} <= names


def read_worker_log(source: TraceFile) -> WorkerLog:
    """Read one log.

    Errors: InputError with file, row and reason: missing columns, values that are no numbers, negative
    durations, an op logged twice (or under two numbers), two workers at one place, a place without a worker.
    """
    columns, optype = _columns(source)
    if not optype:
        raise InputError(f"{source.label}: has no rows")
    whole = {name: _whole(source.label, columns[name], name) for name in _WHOLE}
    start_s = _seconds(source.label, columns["start_ts"], "start_ts")
    duration_s = _seconds(source.label, columns["duration"], "duration")
    if (duration_s < 0).any():
        row = int(np.argmax(duration_s < 0))
        raise InputError(f"{source.label}: row {row + 1}: duration {duration_s[row]} s is negative")
    numbers, dp_of, stage_of = _workers(source.label, whole)
    # Times count from the first start of each step: steps of a log need not follow one another.
    step_values, step_index = np.unique(whole["step"], return_inverse=True)
    first = np.full(len(step_values), np.inf)
    np.minimum.at(first, step_index, start_s)
    ends_s = start_s - first[step_index] + duration_s
    if (ends_s > MAX_SPAN_S).any():
        row = int(np.argmax(ends_s))
        raise InputError(
            f"{source.label}: row {row + 1}: ends {ends_s[row] / 86400:.3g} days after the first start of"
            f" step {step_values[step_index[row]]}"
        )
    start_ps = np.rint((start_s - first[step_index]) * 1e12).astype(np.int64)
    end_ps = start_ps + np.rint(duration_s * 1e12).astype(np.int64)
    worker = np.searchsorted(numbers, whole["rank"])
    order = np.lexsort((whole["seq_id"], start_ps, worker, whole["step"]))
    log = WorkerLog(
        label=source.label,
        numbers=tuple(int(number) for number in numbers),
        dp_of=dp_of,
        stage_of=stage_of,
        steps=tuple(int(step) for step in step_values),
        step=whole["step"][order],
        worker=worker[order],
        optype=Strings.encode([optype[row] for row in order.tolist()]),
        start_ps=start_ps[order],
        end_ps=end_ps[order],
        sequence=whole["seq_id"][order],
        chunk=whole["mc"][order],
        microbatch=whole["mb_id"][order],
        model_chunk=whole["gmc"][order],
    )
    _check_rows(log, order)
    return log


def _columns(source: TraceFile) -> tuple[dict[str, npt.NDArray[np.float64]], list[str]]:
    """The numbers of a log by column (of optional ones -1 where nothing stands), and the types of its ops."""
    data = read_whole(source)
    if data.startswith(_PARQUET_MAGIC):
        return _parquet_columns(data, source.label)
    found = {name: array("d") for name in COLUMNS if name != "optype"}
    optype: list[str] = []
    most = limits().events
    for line, row in csv_rows(data, "an op-level log", COLUMNS, where=source.label):
        if len(optype) >= most:
            raise over("events", 0, source.label)
        optype.append(row["optype"])
        for name, values in found.items():
            cell = row[name]
            try:
                values.append(float(cell) if cell.strip() or name not in _OPTIONAL else -1.0)
            except ValueError:
                where = f"{source.label}: line {line:,}"
                raise InputError(f"{where}: {name} is {quoted(cell)}, no number") from None
    return {name: np.frombuffer(values) for name, values in found.items()}, optype


def _parquet_columns(data: bytes, label: str) -> tuple[dict[str, npt.NDArray[np.float64]], list[str]]:
    import pyarrow as pa

    try:
        file = open_parquet(io.BytesIO(data), label)
        there = file.schema_arrow.names
        missing = next((name for name in COLUMNS if name not in there), None)
        if missing is not None:
            raise InputError(f"{label}: no column {missing!r}{nearest(missing, there)}")
        if file.metadata.num_rows > limits().events:
            raise over("events", file.metadata.num_rows, label)
        table = file.read(columns=list(COLUMNS))
        found = {}
        for name in COLUMNS:
            column = table.column(name)
            if name == "optype":
                optype = [str(value) for value in column.cast(pa.string()).to_pylist()]
                continue
            if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
                raise InputError(f"{label}: column {name!r} holds {column.type}, no numbers")
            if name in _OPTIONAL:
                column = column.fill_null(-1)
            found[name] = column.cast(pa.float64(), safe=False).to_numpy()
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(f"{label}: not a readable Parquet file ({reason})") from None
    return found, optype


def _seconds(label: str, values: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
    bad = ~(np.abs(values) <= _MAX_S)  # NaN, too
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{label}: row {row + 1}: {name} is {values[row]}, no time in seconds")
    return values


def _whole(label: str, values: npt.NDArray[np.float64], name: str) -> IntArray:
    bad = ~(np.abs(values) < 1 << 53) | (np.rint(values) != values)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{label}: row {row + 1}: {name} is {values[row]}, not a whole number")
    return values.astype(np.int64)


def _workers(label: str, whole: dict[str, IntArray]) -> tuple[IntArray, IntArray, IntArray]:
    """Ranks of the workers, ascending, and the place (dp_rank, stage) of each."""
    places = np.unique(np.stack([whole["rank"], whole["dp_rank"], whole["stage"]], axis=1), axis=0)
    numbers, dp_of, stage_of = (np.ascontiguousarray(column) for column in places.T)
    repeated = numbers[1:] == numbers[:-1]
    if repeated.any():
        raise InputError(f"{label}: rank {int(numbers[1:][repeated][0])} stands at several dp_rank and stage")
    if dp_of.min() < 0 or stage_of.min() < 0:
        raise InputError(f"{label}: dp_rank and stage count from 0")
    expected = (int(dp_of.max()) + 1) * (int(stage_of.max()) + 1)
    held = np.unique(np.stack([dp_of, stage_of], axis=1), axis=0)
    if len(held) < len(numbers):
        raise InputError(f"{label}: several ranks stand at one dp_rank and stage")
    if len(held) < expected:
        present = {(int(dp), int(stage)) for dp, stage in held}
        dp, stage = next(
            (d, s)
            for d in range(int(dp_of.max()) + 1)
            for s in range(int(stage_of.max()) + 1)
            if (d, s) not in present
        )
        raise InputError(f"{label}: no worker at dp_rank {dp}, stage {stage}, though others are beside it")
    return numbers, dp_of, stage_of


def _check_rows(log: WorkerLog, order: IntArray) -> None:
    """InputError for an op logged twice, under one number or two, and for a worker without a step."""
    lasting = np.flatnonzero(log.end_ps > log.start_ps)  # what takes no time may happen twice at once
    for rows, told, how in (
        (np.arange(len(log.step)), (log.sequence,), "stands twice in"),
        (lasting, (log.start_ps, log.end_ps), "is another's copy (type and times are equal) in"),
    ):
        key = np.stack([log.step, log.worker, log.optype.codes.astype(np.int64), *told])[:, rows]
        by_key = np.lexsort(key[::-1])
        same = (key[:, by_key[1:]] == key[:, by_key[:-1]]).all(axis=0)
        if same.any():
            at = int(rows[by_key[1:][same][0]])
            raise InputError(
                f"{log.label}: row {int(order[at]) + 1}: {log.optype[at]} {int(log.sequence[at])} of rank"
                f" {log.numbers[int(log.worker[at])]} {how} step {int(log.step[at])}"
            )
    held = np.unique(np.stack([log.step, log.worker], axis=1), axis=0)
    if len(held) < len(log.steps) * len(log.numbers):
        present = {(int(step), int(worker)) for step, worker in held}
        step, worker = next(
            (s, w) for s in log.steps for w in range(len(log.numbers)) if (s, w) not in present
        )
        raise InputError(f"{log.label}: rank {log.numbers[worker]} has no rows in step {step}")
