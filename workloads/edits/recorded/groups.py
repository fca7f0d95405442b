"""Collectives of a recording among other ranks or of other sizes, by NCCL's plans of new and old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from simcore.collectives.kinds import SEND_RECV
from simcore.errors import InputError
from simcore.graph import OpKind
from simcore.graph.size import refuse_too_large
from workloads.edits.job import EditableJob, Edited, TransferPlanner, count_changed
from workloads.edits.kernels.edits import edited_kernels, lasting
from workloads.edits.recorded.rows import met
from workloads.edits.registry import COUNT, EditCall, edit

Members = tuple[int, ...]
#: What a collective becomes, by rank, its op, bytes and members; None: it stays.
Change = Callable[[int, int, int, Members], tuple[float, Members] | None]


def retimed(job: EditableJob, highest: int, change: Change) -> tuple[EditableJob, int]:
    """``job`` with collectives changed, on the recorded GPUs; and how many executions changed.

    Those that all recorded members meet in scale with the plans; of others, which hold waiting, the
    difference of the plans is added.  ``highest`` is the highest rank that takes part afterwards.
    Errors: InputError when the recorded GPU has no cluster profile.
    """
    graph, ops = job.graph, job.graph.ops
    if job.planner is None or job.home is None:
        raise InputError("what communication takes on the recorded hardware is not known")
    planner = job.planner(job.home(highest + 1))
    recorded = ops.recorded_ps.astype(np.float64)
    changed = np.zeros(len(ops), dtype=np.bool_)
    memo: dict[tuple[str, int, Members], int] = {}
    for index, rank in enumerate(job.ranks):
        known = rank.recorded.collectives
        if known is None:
            continue
        first = int(graph.template_start[index])
        for op in np.flatnonzero(known.num_bytes > 0).tolist():
            row, members = first + int(rank.flat[op]), known.members[op]
            found = None if len(members) < 2 else change(index, op, int(known.num_bytes[op]), members)
            if found is None or ops.kind[row] != OpKind.COLLECTIVE:
                continue
            num_bytes, others = found
            before = _plan_ps(planner, memo, (ops.collective[row], int(known.num_bytes[op]), members))
            after = _plan_ps(planner, memo, (ops.collective[row], max(1, round(num_bytes)), others))
            if graph.groups[ops.group[row]].size > 1:
                recorded[row] *= after / before
            else:
                recorded[row] = max(0.0, recorded[row] + after - before)
            changed[row] = True
    return met(lasting(job, changed, recorded)), count_changed(graph, changed)


def _plan_ps(
    planner: TransferPlanner, memo: dict[tuple[str, int, Members], int], key: tuple[str, int, Members]
) -> int:
    if key not in memo:
        memo[key] = max(1, planner.plan(*key).alone_ps) if len(key[2]) > 1 else 1
    return memo[key]


@edit("dp", value=COUNT, help="data-parallel replicas, each with the same work", kinds=("recorded",))
def data_parallel(job: EditableJob, call: EditCall) -> Edited:
    """Gradients and parameters exchanged among another number of replicas."""
    job = edited_kernels(job)
    old, new = call.value
    size, stride, told = _replicas(job, old)
    if new < 2:
        raise InputError("one replica reduces no gradients: other ops run; dp must be at least 2")

    def change(_rank: int, _op: int, num_bytes: int, members: Members) -> tuple[float, Members] | None:
        if pattern(members) != (size, stride):
            return None
        return num_bytes, tuple(_moved(members[0], size, new, stride) + stride * i for i in range(new))

    refuse_too_large("the edited recording", ranks=new * len(job.ranks), ops=len(job.graph.ops))
    highest = _moved(max(_all_members(job)), size, new, stride) + stride * (new - 1)
    edited, changed = retimed(job, highest, change)
    assumed = (
        f"replicas are the groups of {size} ranks, {stride} apart{told}; each has as much work as before",
        "ranks keep their order, on nodes filled one after the other",
        "buckets of gradients keep their sizes",
        "a sharded optimizer is not split anew",
    )
    return Edited(edited, assumed, changed)


def _moved(rank: int, size: int, new: int, stride: int) -> int:
    """Where the first replica of a rank is when there are ``new`` of them instead of ``size``."""
    return rank // (size * stride) * new * stride + rank % stride


def _replicas(job: EditableJob, old: int | None) -> tuple[int, int, str]:
    """Size and stride of the groups that replicas are, and how that was told."""
    time: Counter[tuple[int, int]] = Counter()
    stages = 1 << 62  # ranks of a pipeline lie further apart than those of its stages
    for rank in job.ranks:
        known = rank.recorded.collectives
        length = rank.recorded.end_ps - rank.recorded.start_ps
        for op in np.flatnonzero(known.num_bytes > 0).tolist() if known is not None else []:
            assert known is not None
            found = pattern(known.members[op])
            if found is not None and known.collective[op] == SEND_RECV.name:
                stages = min(stages, found[1])
            elif found is not None:
                time[found] += int(length[op])
    time = Counter({found: spent for found, spent in time.items() if found[1] < stages})
    if not time:
        raise InputError(
            "the recording has no collectives of known size among known ranks: dp cannot be changed"
            " (a profiler of torch 2.1 or later writes them)"
        )
    fits = sorted((found for found in time if old in (None, found[0])), key=lambda found: found[1])
    if not fits:
        sizes = ", ".join(str(size) for size, _ in sorted(time))
        raise InputError(f"no group has {old} ranks; groups here have {sizes}")
    if old is None and len(fits) > 1:
        sizes = ", ".join(f"{size} ranks, {stride} apart" for size, stride in fits)
        raise InputError(
            f"several kinds of groups are recorded ({sizes}): say which, such as dp={fits[-1][0]}:16"
        )
    size, stride = fits[-1]
    return size, stride, " (the outermost of their size)" if len(fits) > 1 else ""


def pattern(members: Members) -> tuple[int, int] | None:
    """Size and stride of a regular group; None for others."""
    steps = set(np.diff(members).tolist())
    return (len(members), steps.pop()) if len(steps) == 1 and min(steps) > 0 else None


def _all_members(job: EditableJob) -> set[int]:
    found = {rank.number for rank in job.ranks}
    for rank in job.ranks:
        for members in set(rank.recorded.collectives.members if rank.recorded.collectives else ()):
            found |= set(members)
    return found
