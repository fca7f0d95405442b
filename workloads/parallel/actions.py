"""An action of a stage written into a template, and what of its place in the schedule decides how."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.graph.schedules import Action
from simcore.graph.template_builder import Source, external
from workloads.models.pieces import EP_STREAM
from workloads.parallel import by_class, megatron_step, replicated, sharded
from workloads.parallel.emit import OpWriter
from workloads.parallel.job import Job
from workloads.parallel.passes import Gradients, backward_part
from workloads.parallel.stages import Chunk


def write_pass(writer: OpWriter, job: Job, chunk: Chunk, kind: str, *, first: bool, last: bool) -> None:
    """Kernels and collectives of an action of ``kind`` on ``chunk``, without what other stages are sent.

    ``first`` and ``last``: of the step's passes of that kind, as :func:`ends_of` has it.
    """
    body = by_class if job.by_class else sharded if job.is_fsdp else replicated
    gradients: Gradients = "add"
    if job.reduces_at_the_end:
        gradients = "copy" if first else "add"
    elif job.reduces_each or (job.gradients_start_empty and first):
        gradients = "keep"
    kernels = backward_part(kind, gradients)
    complete = last if job.reduces_at_the_end else kind in ("B", "W")
    scales = job.as_launched and chunk.has_head
    if scales and kind == "B":
        megatron_step.loss_gradient(writer, job)
    if kind == "F":
        if job.as_launched and chunk.has_embedding:
            megatron_step.tokens_first(writer, job)
        body.forward(writer, job, chunk, first=first)
        if scales:
            megatron_step.scale_loss(writer, job)
    elif job.by_class:
        by_class.backward(writer, job, chunk, last=last, kernels=kernels)
    elif job.is_fsdp:
        sharded.backward(writer, job, chunk, kernels=kernels, gathers=kind != "W", reduces=complete)
    else:
        replicated.backward(writer, job, chunk, last=last, kernels=kernels, reduces=complete)


def ends_of(actions: Sequence[Action]) -> tuple[set[int], set[int]]:
    """Positions of each chunk's first forward and first gradients of weights, and of its last ones."""
    firsts: dict[tuple[bool, int], int] = {}
    lasts: dict[int, int] = {}
    for number, action in enumerate(actions):
        if action.kind == "I":
            continue
        firsts.setdefault((action.kind == "F", action.chunk), number)
        if action.kind != "F":
            lasts[action.chunk] = number
    return set(firsts.values()), set(lasts.values())


def is_paired(actions: Sequence[Action], number: int) -> bool:
    """Whether the action stands beside the opposite pass of another microbatch: not in warm-up and drain."""
    action = actions[number]
    beside = [*actions[max(0, number - 1) : number], *actions[number + 1 : number + 2]]
    return any(
        (other.kind == "F") != (action.kind == "F") and other.microbatch != action.microbatch
        for other in beside
    )


def under_way(job: Job, stage: int, *, overlaps: bool) -> list[Source]:
    """The last ops on streams that nothing has waited for; ``overlaps``: exchanges left compute's."""
    exchanges = overlaps and any(
        kernel.stream == EP_STREAM
        for chunk in job.chunks[stage]
        for piece in chunk.pieces
        for kernel in piece.backward
    )
    return [*([external(EP_STREAM)] if exchanges else []), *_reductions_under_way(job, stage)]


def _reductions_under_way(job: Job, stage: int) -> list[Source]:
    if job.by_class or job.is_fsdp:
        body = by_class if job.by_class else sharded
        return [external(stream) for stream in body.streams_of(job)]
    if replicated.reduces_beside(job) and any(
        replicated.reduced_in_backward(job, chunk, last=True) and replicated.buckets_of(job, chunk)
        for chunk in job.chunks[stage]
    ):
        return [external(replicated.DP_STREAM)]
    return []
