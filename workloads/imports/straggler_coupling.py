"""Which ops of a log of workers meet: collectives among replicas and stages, sends with their receives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcore.graph import OpKind, ProcessGroup
from workloads.imports.straggler_trace import CLIP, DP_TYPES, EMBEDDING, P2P_TYPES, WorkerLog
from workloads.imports.timed_ops import Call


def couple_workers(log: WorkerLog, matched: dict[int, int], refused: list[str]) -> dict[int, Call]:
    """The call of each row that meets other workers; ``refused`` gets what does not fit together.

    ``matched`` are the sends and receives that move data (:func:`all_matched`).
    """
    calls: dict[int, Call] = {}
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
                call = Call(symbol, _transfer_ps(log, rows), collective=word)
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
    log: WorkerLog, matched: dict[int, int], calls: dict[int, Call], refused: list[str]
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
            calls[send] = Call(group, transfer, OpKind.SEND, peer_delta=hop)
            calls[receive] = Call(group, transfer, OpKind.RECV, peer_delta=-hop)
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
