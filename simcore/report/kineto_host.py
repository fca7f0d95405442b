"""What a simulated rank's host did, as a profiler's events: steps, backwards, the optimizer, waits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import RankRows

IntArray = npt.NDArray[np.int64]

HOST_TID = 1
#: Phases, and the event that a profiler writes around their launches: category and name.
_PHASE_EVENTS = (
    (("bwd", "recompute"), "cpu_op", "autograd::engine::evaluate_function: Backward"),
    (("optimizer",), "user_annotation", "Optimizer.step#Optimizer.step"),
)


def is_one_of(codes: npt.NDArray[np.int32], names: list[str], wanted: Sequence[str]) -> npt.NDArray[np.bool_]:
    """By row of a coded column: whether its string is one of ``wanted``."""
    return np.isin(codes, [code for code, name in enumerate(names) if name in wanted])


def in_us(nanoseconds: int) -> str:
    """A time as a profiler writes it, us."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def step_events(
    info: RunInfo, rank: int, pid: int, called: IntArray, end: IntArray, on_gpu: npt.NDArray[np.bool_]
) -> Iterator[str]:
    """``ProfilerStep`` annotations: those of a replay around the launches of each step, else one for all."""
    if not on_gpu.any():
        return
    steps = info.workload.options.get("steps")
    mine = [step for step in steps if step["rank"] == rank] if steps is not None else []
    whole = {
        "step": 0,
        "first_op": int(np.flatnonzero(on_gpu)[0]),
        "last_op": int(np.flatnonzero(on_gpu)[-1]),
    }
    free = 0
    for index, step in enumerate(mine or [whole]):
        last = index == len(mine or [whole]) - 1
        if not step["first_op"] <= step["last_op"] < len(called):
            raise InputError(f"step {step['step']} of rank {rank} is said to end with op {step['last_op']:,}")
        since = max(free, int(called[step["first_op"]]))
        until = max(since, int(called[step["last_op"]])) + 1
        until = max(until, int(end.max())) if last else until
        free = until
        yield json.dumps(
            {
                "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step['step']}", "pid": pid,
                "tid": HOST_TID, "ts": since / 1000, "dur": (until - since) / 1000, "args": {},
            }
        )  # fmt: skip


def phase_events(
    rows: RankRows, pid: int, called: IntArray, launched: npt.NDArray[np.bool_]
) -> Iterator[str]:
    """One event around each run of launches that the autograd engine, or the optimizer, makes in a row."""
    phase, phases = rows.strings("phase")
    event = np.zeros(len(phase), dtype=np.int64)
    for number, (words, _, _) in enumerate(_PHASE_EVENTS, start=1):
        event[is_one_of(phase, phases, words)] = number
    event[~launched] = 0
    # Host ops do not end a run: they are what the engine does between launches.
    order = np.flatnonzero(_launches_or_exchanges(rows))
    order = order[np.argsort(called[order], kind="stable")]
    bounds = np.flatnonzero(np.diff(event[order])) + 1
    for run in np.split(order, bounds):
        number = int(event[run[0]]) if len(run) else 0
        if number:
            _, category, name = _PHASE_EVENTS[number - 1]
            since, until = int(called[run[0]]), int(called[run[-1]]) + 1
            yield (
                f'{{"ph":"X","cat":"{category}","name":"{name}","pid":{pid},"tid":{HOST_TID},'
                f'"ts":{in_us(since)},"dur":{in_us(until - since)},"args":{{}}}}'
            )


def _launches_or_exchanges(rows: RankRows) -> npt.NDArray[np.bool_]:
    kind, kinds = rows.strings("kind")
    return is_one_of(kind, kinds, (*COMMUNICATION_KINDS, *COMPUTE_KINDS, "sync"))


def synchronisation_events(rows: RankRows, pid: int, start: IntArray, end: IntArray) -> Iterator[str]:
    """Calls in which the host waited."""
    kind, kinds = rows.strings("kind")
    for row in np.flatnonzero(is_one_of(kind, kinds, ("sync",)) & (end > start)).tolist():
        yield (
            f'{{"ph":"X","cat":"cuda_runtime","name":"cudaStreamSynchronize","pid":{pid},"tid":{HOST_TID},'
            f'"ts":{in_us(int(start[row]))},"dur":{in_us(int(end[row] - start[row]))},'
            f'"args":{{"External id":{row + 1},"correlation":{row + 1}}}}}'
        )
