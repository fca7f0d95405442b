"""Kernels that carry several sends and receives: what they exchange, and with which ranks' kernels.

PyTorch's ``batch_isend_irecv`` issues one kernel for a batch, which names no peer.  The calls inside the
batch do (``record_param_comms`` with "Dst Rank" or "Src Rank"): those between two communication launches of a
host thread belong to the later one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from simcore.collectives.kinds import SEND_RECV
from workloads.imports.collective_kinds import collective_kind
from workloads.imports.rank_ops import RankOps

_Kernel = tuple[int, int]  # index of the rank in the set, op of its RankOps


class Message(NamedTuple):
    """What one rank sends another, by their numbers, in a process group."""

    group: str
    source: int
    target: int


def batched_calls(ranks: list[RankOps], numbers: list[int]) -> dict[tuple[int, ...], list[list[_Kernel]]]:
    """Kernels that meet, by the indexes of their ranks: those that exchange messages, directly or by others.

    The n-th message from a rank to another is the n-th that the other receives from it.  Kernels with a peer
    that was not recorded, or that are not linked one to a rank, are left out.
    """
    sends: dict[Message, list[_Kernel]] = defaultdict(list)
    receives: dict[Message, list[_Kernel]] = defaultdict(list)
    for index, (ops, number) in enumerate(zip(ranks, numbers, strict=True)):
        for op, batch in _batches(ops).items():
            for group, peer, is_send in batch:
                if is_send:
                    sends[Message(group, number, peer)].append((index, op))
                else:
                    receives[Message(group, peer, number)].append((index, op))
    linked: dict[_Kernel, set[_Kernel]] = defaultdict(set)
    alone: set[_Kernel] = set()
    for message in {**sends, **receives}:
        ours, theirs = sends.get(message, []), receives.get(message, [])
        if len(ours) != len(theirs):
            alone.update(ours, theirs)
            continue
        for one, other in zip(ours, theirs, strict=True):
            linked[one].add(other)
            linked[other].add(one)
    found: dict[tuple[int, ...], list[list[_Kernel]]] = defaultdict(list)
    seen: set[_Kernel] = set()
    for kernel in sorted(linked):
        if kernel in seen:
            continue
        together, reached = {kernel}, [kernel]
        while reached:
            new = linked[reached.pop()] - together
            together |= new
            reached += new
        seen |= together
        members = tuple(sorted({index for index, _ in together}))
        if len(members) == len(together) > 1 and not together & alone:
            found[members].append(sorted(together))
    return found


def _batches(ops: RankOps) -> dict[int, list[tuple[str, int, bool]]]:
    """(group, peer, whether it is sent) of what each kernel without a peer of its own exchanges, by op."""
    trace = ops.trace
    calls = trace.p2p_calls.by_thread()
    if not calls:
        return {}
    found: dict[int, list[tuple[str, int, bool]]] = {}
    for thread, issued in calls.items():
        launched = [
            op for op in np.flatnonzero(ops.is_comm & (ops.call >= 0)).tolist()
            if int(trace.calls.thread[ops.call[op]]) == thread
        ]  # fmt: skip
        launched.sort(key=lambda op: int(trace.calls.start_ps[ops.call[op]]))
        at = 0
        for op in launched:
            until = int(trace.calls.start_ps[ops.call[op]])
            batch = []
            while at < len(issued) and issued[at][0] <= until:
                batch.append(issued[at][1:])
                at += 1
            row = int(ops.row[op])
            place = int(trace.gpu.meta[row])
            meta = trace.meta[place] if place >= 0 else None
            exchanges = collective_kind(trace.names[int(trace.gpu.name[row])], meta) == SEND_RECV.name
            if batch and exchanges and (meta is None or meta.peer < 0):
                found[op] = batch
    return found
