"""Which ops of a log of workers meet: collectives among replicas and stages, sends with their receives.

And which forward or backward of its worker a send or receive belongs to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcore.graph import OpKind, ProcessGroup
from workloads.imports.logs.worker_log import (
    BACKWARD,
    CLIP,
    DP_TYPES,
    EMBEDDING,
    FORWARD,
    P2P_TYPES,
    WorkerLog,
)
from workloads.imports.timed_ops import RecordedCall

_CLOCK_PS = 500_000_000  # clocks and rounding; a microbatch lasts many times as long


def couple_workers(log: WorkerLog, matched: dict[int, int], refused: list[str]) -> dict[int, RecordedCall]:
    """The call of each row that meets other workers; ``refused`` gets what does not fit together.

    ``matched`` are the sends and receives that move data (:func:`matched_computes`).
    """
    calls: dict[int, RecordedCall] = {}
    for optype, symbol, word, fellows in _collective_types(log):
        meetings: dict[tuple[int, ...], list[int]] = {}
        for row in np.flatnonzero(log.optype.equals(optype)).tolist():
            key = (int(log.step[row]), int(log.sequence[row]), fellows(int(log.worker[row])))
            meetings.setdefault(key, []).append(row)
        sizes = {len(rows) for rows in meetings.values()}
        if len(sizes) > 1:
            refused.append(f"{optype}: of {sorted(sizes)} workers in different steps")
            continue
        if sizes and max(sizes) > 1:
            for rows in meetings.values():
                call = RecordedCall(symbol, _transfer_ps(log, rows), collective=word)
                calls.update(dict.fromkeys(rows, call))
    _couple_pairs(log, matched, calls, refused)
    return calls


def _transfer_ps(log: WorkerLog, rows: list[int]) -> int:
    """From the last arrival to the first end."""
    return max(0, int(log.end_ps[rows].min()) - int(log.start_ps[rows].max()))


def _collective_types(log: WorkerLog) -> list[tuple[str, str, str, Callable[[int], int]]]:
    """Coupled types: name, group, collective, and what workers of one call have in common."""

    def stage(worker: int) -> int:
        return int(log.stage_of[worker])

    def replica(worker: int) -> int:
        return int(log.dp_of[worker])

    def everybody(_worker: int) -> int:
        return 0

    found: list[tuple[str, str, str, Callable[[int], int]]] = []
    if log.num_dp > 1:
        found += [(optype, f"dp {optype}", word, stage) for optype, word in DP_TYPES.items()]
    if log.num_stages > 1:
        found.append((EMBEDDING, "embedding", "all_reduce", replica))
    found.append((CLIP, "norm", "all_reduce", everybody))
    return found


def _couple_pairs(
    log: WorkerLog, matched: dict[int, int], calls: dict[int, RecordedCall], refused: list[str]
) -> None:
    """The k-th send of a stage meets the k-th receive of the next, those that move nothing left out."""
    pairs: dict[tuple[int, int, str, int], tuple[list[int], list[int]]] = {}
    for row in sorted(matched):
        optype, worker = log.optype[row], int(log.worker[row])
        sends, hop = P2P_TYPES[optype]
        stage = int(log.stage_of[worker])
        sender = stage if sends else (stage - hop) % log.num_stages
        key = (int(log.step[row]), int(log.dp_of[worker]), optype.split("-")[0], sender)
        pairs.setdefault(key, ([], []))[not sends].append(row)
    unequal = 0
    for (_, _, direction, _), (senders, receivers) in sorted(pairs.items()):
        if len(senders) != len(receivers):
            unequal += len(senders) + len(receivers)
            continue
        for send, receive in zip(senders, receivers, strict=True):
            transfer = _transfer_ps(log, [send, receive])
            hop = P2P_TYPES[f"{direction}-send"][1]
            group = f"pp {direction}"
            calls[send] = RecordedCall(group, transfer, OpKind.SEND, peer_delta=hop)
            calls[receive] = RecordedCall(group, transfer, OpKind.RECV, peer_delta=-hop)
    if unequal:
        refused.append(
            f"{unequal} sends and receives: a stage sent more or less often than the next received"
        )


def worker_groups(log: WorkerLog) -> list[ProcessGroup]:
    """The process groups of :func:`couple_workers`, and "steps" of everybody."""
    at = {(int(dp), int(stage)): i for i, (dp, stage) in enumerate(zip(log.dp_of, log.stage_of, strict=True))}
    replicas, stages = range(log.num_dp), range(log.num_stages)
    pipelines = tuple(tuple(at[dp, stage] for stage in stages) for dp in replicas)
    everybody = tuple(range(len(log.numbers)))
    made: dict[str, tuple[tuple[int, ...], ...]] = {"steps": (everybody,), "norm": (everybody,)}
    made |= {f"dp {t}": tuple(tuple(at[d, s] for d in replicas) for s in stages) for t in DP_TYPES}
    if log.num_stages > 1:
        made |= {"pp forward": pipelines, "pp backward": pipelines}
        made["embedding"] = tuple((members[0], members[-1]) for members in pipelines)
    return [ProcessGroup(name, ((len(members[0]), 1),), explicit=members) for name, members in made.items()]


def matched_computes(log: WorkerLog) -> dict[int, int]:
    """By row of a send or receive that moves data: the row of the forward or backward before or after it."""
    matched: dict[int, int] = {}
    key = np.searchsorted(log.steps, log.step) * len(log.numbers) + log.worker
    begins = np.flatnonzero(np.diff(key, prepend=-1)).tolist()
    for begin, stop in zip(begins, [*begins[1:], len(key)], strict=True):
        matched |= _matched_of_worker(log, list(range(begin, stop)))
    return matched


def _matched_of_worker(log: WorkerLog, rows: list[int]) -> dict[int, int]:
    """:func:`matched_computes` of a worker and step.

    ``rows`` are one worker's of one step, by start.  The first chunk of the model receives nothing and the
    last sends nothing forward; backward the other way round.  Profilers log such calls all the same, and
    calls before the first compute could send or after the last could receive: these move nothing.
    """
    found: dict[int, int] = {}
    last_chunk = int(log.model_chunk.max())
    for optype, (sends, hop) in P2P_TYPES.items():
        calls = [row for row in rows if log.optype[row] == optype]
        wanted = FORWARD if optype.startswith("forward") else BACKWARD
        computes = [row for row in rows if log.optype[row] == wanted]
        if not calls or not computes:
            continue
        end_of_model = last_chunk if sends == (hop > 0) else 0
        moving = [row for row in computes if int(log.model_chunk[row]) != end_of_model]
        if len(calls) not in (len(moving), len(computes)):
            calls = _in_time(log, calls, computes, sends)
            calls = calls[-len(computes) :] if sends else calls[: len(computes)]
        if len(calls) == len(moving):
            found.update(zip(calls, moving, strict=True))
        else:
            # Every compute has a call, but for the first where it had nothing to receive.
            first = len(computes) - len(calls) if not sends else 0
            pairs = zip(calls, computes[first:], strict=False)
            found.update({call: compute for call, compute in pairs if compute in set(moving)})
    return found


def _in_time(log: WorkerLog, calls: list[int], computes: list[int], sends: bool) -> list[int]:
    """Calls that can have moved something: receives before the last compute, sends after the first."""
    if sends:
        first_end = min(int(log.end_ps[row]) for row in computes)
        return [row for row in calls if int(log.end_ps[row]) >= first_end - _CLOCK_PS]
    last_start = max(int(log.start_ps[row]) for row in computes)
    return [row for row in calls if int(log.start_ps[row]) <= last_start + _CLOCK_PS]
