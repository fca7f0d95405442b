"""A simulated rank as a profiler's trace: the JSON that torch.profiler (Kineto) writes, gzip.

Tools for recorded traces read it: HolisticTraceAnalysis, the replay of this program, Perfetto.  Kernels with
their streams, launch calls that share a correlation id with them, ``ProfilerStep`` annotations, the autograd
engine's and the optimizer's events around what they launch, NCCL's metadata on communication kernels.  As in
a profiler's trace, a communication kernel begins when it is placed on the GPU, not when its peers have come.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import kind_of
from simcore.errors import InputError
from simcore.files import whole_file
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS, HOST_KINDS, P2P_KINDS
from simcore.report.kineto_host import (
    HOST_TID,
    in_us,
    is_one_of,
    phase_events,
    step_events,
    synchronisation_events,
)  # fmt: skip
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import RankRows, Timeline

IntArray = npt.NDArray[np.int64]

_COLUMNS = (
    "stream", "op_id", "name", "kind", "phase", "group", "peer", "algorithm", "protocol", "bytes", "ready_ps",
    "start_ps", "end_ps",
)  # fmt: skip
_FIRST_STREAM = 7  # PyTorch's default stream in CUPTI's numbering
#: What NCCL's profiler hooks call a collective, and its kernel.
_NCCL_NAMES = {
    "all_reduce": ("allreduce", "AllReduce"),
    "all_gather": ("_allgather_base", "AllGather"),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter"),
    "all_to_all": ("all_to_allv", "SendRecv"),
    "broadcast": ("broadcast", "Broadcast"),
    "reduce": ("reduce", "Reduce"),
    "send": ("send", "SendRecv"),
    "recv": ("recv", "SendRecv"),
    "barrier": ("barrier", "AllReduce"),
}


def write_kineto(timeline: Timeline, path: Path, ranks: Sequence[int]) -> list[Path]:
    """Write one trace per rank; returns the files.  Several ranks: ``x.json.gz`` becomes ``x.rank3.json.gz``.

    Errors: InputError for a rank outside the job, or a path that names no file.
    """
    if not path.name:
        raise InputError(f"{str(path)!r} is no name of a file for profiler traces")
    for rank in ranks:
        timeline.representative(rank)
    written = []
    for rank in ranks:
        file = path if len(ranks) == 1 else _of_rank(path, _recorded_rank(timeline.info, rank))
        with whole_file(file) as fresh, gzip.open(fresh, "wb", compresslevel=1) as out:
            out.write(_header(timeline.info, rank).encode())
            out.write(",\n".join(_events(timeline, rank)).encode())
            out.write(b"\n]}\n")
        written.append(file)
    return written


def _of_rank(path: Path, rank: int) -> Path:
    name, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{name}.rank{rank}{dot}{suffixes}")


def _recorded_rank(info: RunInfo, rank: int) -> int:
    """A replay keeps the numbers that the ranks had when they were recorded."""
    recorded = info.workload.options.get("recorded_ranks")
    return int(recorded[rank]) if recorded is not None else rank


def _header(info: RunInfo, rank: int) -> str:
    gpu = info.cluster.get("gpu") or {}
    device = {
        "id": rank % int(info.cluster.get("gpus_per_node", 1)),
        "name": str(gpu.get("name", "")),
        "numSms": int(gpu.get("num_sms", 0)),
        "totalGlobalMem": int(gpu.get("hbm_bytes", 0)),
    }
    number = _recorded_rank(info, rank)
    world_size = max([info.workload.world_size, *(_recorded_rank(info, r) + 1 for r in _all_ranks(info))])
    header: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {"backend": "nccl", "rank": number, "world_size": world_size},
        "displayTimeUnit": "ms",
        "traceName": info.workload.name,
        "simulated": {"cluster": str(info.cluster.get("name", "")), "digest": info.digest},
    }
    return json.dumps(header)[:-1] + ',"traceEvents":[\n'


def _all_ranks(info: RunInfo) -> range:
    return range(len(info.workload.options.get("recorded_ranks", ())))


def _events(timeline: Timeline, rank: int) -> Iterator[str]:
    info = timeline.info
    rows = timeline.rank_rows(rank, _COLUMNS)
    device = rank % int(info.cluster.get("gpus_per_node", 1))
    host = 100_000 + rank  # a process id that is no device
    for pid, label in ((device, f"GPU {device}"), (host, "CPU")):
        for key, field, text in (("process_name", "name", "python"), ("process_labels", "labels", label)):
            yield json.dumps({"ph": "M", "name": key, "pid": pid, "tid": 0, "ts": 0, "args": {field: text}})
    start, end, ready = (rows.ints(column) // 1000 for column in ("start_ps", "end_ps", "ready_ps"))  # ns
    kind, kinds = rows.strings("kind")
    is_comm, on_gpu = is_one_of(kind, kinds, COMMUNICATION_KINDS), is_one_of(kind, kinds, COMPUTE_KINDS)
    begin = np.where(is_comm, ready, start)
    stream, names = rows.strings("stream")
    exchanged = is_one_of(kind, kinds, P2P_KINDS)
    inside, several = _one_launch(np.flatnonzero(exchanged), stream, begin, end)
    # Host ops and synchronisations end when the host goes on: what follows them is launched then.
    on_host = is_one_of(kind, kinds, HOST_KINDS)
    called = np.maximum.accumulate(np.where(on_host, end, 0))
    called = np.minimum(called + _launching_ns(info, on_host, is_comm | on_gpu), begin)
    yield from step_events(info, rank, host, called, end, is_comm | on_gpu)
    yield from phase_events(rows, host, called, (is_comm | on_gpu) & ~exchanged)
    yield from synchronisation_events(rows, host, start, end)
    streams = _stream_numbers(rows.strings("stream")[1])
    constant = _Constants(rows, info, rank)
    for row in np.flatnonzero((is_comm | on_gpu) & ~inside).tolist():
        correlation = row + 1
        name, category, args = constant.of(row, coalesced=bool(several[row]))
        number = streams[names[stream[row]]]
        call = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
        at, length = in_us(int(begin[row])), in_us(int(end[row] - begin[row]))
        launched = in_us(int(called[row]))
        yield (
            f'{{"ph":"X","cat":"cuda_runtime","name":"{call}","pid":{host},"tid":{HOST_TID},"ts":{launched},'
            f'"dur":0.001,"args":{{"External id":{correlation},"correlation":{correlation}}}}}'
        )
        yield (
            f'{{"ph":"X","cat":"{category}","name":{name},"pid":{device},"tid":{number},"ts":{at},'
            f'"dur":{length},"args":{{"External id":{correlation},"device":{device},"context":1,'
            f'"stream":{number},"correlation":{correlation}{args}}}}}'
        )
        arrow = f'"cat":"ac2g","name":"ac2g","id":{correlation}'
        yield f'{{"ph":"s",{arrow},"pid":{host},"tid":{HOST_TID},"ts":{launched}}}'
        yield f'{{"ph":"f","bp":"e",{arrow},"pid":{device},"tid":{number},"ts":{at}}}'


def _launching_ns(info: RunInfo, on_host: npt.NDArray[np.bool_], launched: npt.NDArray[np.bool_]) -> IntArray:
    """By row: what the launches since the host's last own op have taken, this one not counted."""
    overhead_s = float((info.cluster.get("gpu") or {}).get("launch_overhead_s", 0.0))
    before: IntArray = np.cumsum(launched) - launched
    since = np.maximum.accumulate(np.where(on_host, before, 0))
    taken: IntArray = np.rint((before - since) * overhead_s * 1e9).astype(np.int64)
    return taken


def _one_launch(
    rows: IntArray, stream: npt.NDArray[np.int32], begin: IntArray, end: IntArray
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Sends and receives that are one kernel of NCCL's with the one before, whose ``end`` is then theirs.

    And those that such a kernel begins with.
    """
    inside, several = np.zeros((2, len(stream)), dtype=np.bool_)
    head: dict[int, int] = {}
    for row in rows.tolist():
        first = head.get(int(stream[row]), -1)
        if first >= 0 and begin[row] < end[first]:
            inside[row] = several[first] = True
            end[first] = max(end[first], end[row])
        else:
            head[int(stream[row])] = row
    return inside, several


def _stream_numbers(names: list[str]) -> dict[str, int]:
    """CUPTI's way to name streams: a number each, those that are numbers already kept."""
    found = {name: int(name) for name in names if name.isdecimal() and int(name) < 1 << 31}
    free = (number for number in range(_FIRST_STREAM, 1 << 31) if number not in set(found.values()))
    rest = sorted((name for name in names if name not in found), key=lambda name: (name != "compute", name))
    return found | dict(zip(rest, free, strict=False))


class _Constants:
    """Name (JSON), category and further arguments of rows, made once for rows that are alike."""

    def __init__(self, rows: RankRows, info: RunInfo, rank: int) -> None:
        self._texts = {
            column: rows.strings(column) for column in ("name", "kind", "group", "algorithm", "protocol")
        }
        self._bytes, self._peer = rows.ints("bytes"), rows.ints("peer")
        self._info, self._rank = info, rank
        self._made: dict[tuple[object, ...], tuple[str, str, str]] = {}

    def of(self, row: int, *, coalesced: bool = False) -> tuple[str, str, str]:
        """(name, category, arguments) of a row; ``coalesced``: one kernel for several sends and receives."""
        text = {column: names[codes[row]] for column, (codes, names) in self._texts.items()}
        peer = -1 if coalesced else int(self._peer[row])  # no single one
        key = (*text.values(), int(self._bytes[row]), peer)
        if key not in self._made:
            self._made[key] = self._make(text, int(self._bytes[row]), peer)
        return self._made[key]

    def _make(self, text: dict[str, str], num_bytes: int, peer: int) -> tuple[str, str, str]:
        name = text["name"]
        if text["kind"] in COMMUNICATION_KINDS:
            shown, args = self._communication(text, num_bytes, peer)
            return json.dumps(shown), "kernel", "," + json.dumps(args)[1:-1] if args else ""
        if text["kind"] == "memcpy":
            shown = name if name.startswith("Memcpy") else "Memcpy DtoD (Device -> Device)"
            return json.dumps(shown), "gpu_memcpy", f',"bytes":{num_bytes}'
        if name.startswith("Memset"):
            return json.dumps(name), "gpu_memset", f',"bytes":{num_bytes}'
        return json.dumps(name), "kernel", ""

    def _communication(
        self, text: dict[str, str], num_bytes: int, peer: int
    ) -> tuple[str, dict[str, object]]:
        name, kind = text["name"], text["kind"]
        what = kind if kind in P2P_KINDS else name.removeprefix("nccl::")
        if what not in _NCCL_NAMES:
            return name, {}  # a recorded kernel keeps its name
        collective, kernel = _NCCL_NAMES[what]
        words = [kernel, *(text[column].upper() for column in ("algorithm", "protocol") if text[column])]
        members = self._info.group(text["group"]).ranks_of(self._rank)
        size = len(members)
        # Sizes in bytes: a timeline knows no element types.
        sent, received = (
            kind_of(what).given_bytes(num_bytes, size),
            kind_of(what).received_bytes(num_bytes, size),
        )
        shown_members = [_recorded_rank(self._info, member) for member in members]
        towards = "Dst Rank" if what == "send" else "Src Rank"
        return f"ncclDevKernel_{'_'.join(words)}", {
            "Collective name": collective, "In msg nelems": sent, "Out msg nelems": received, "dtype": "Byte",
            "Group size": size, "Process Group Name": text["group"],
            "Process Group Ranks": json.dumps(shown_members),
            **({towards: _recorded_rank(self._info, peer)} if peer >= 0 else {}),
        }  # fmt: skip
