"""What of messages and logits outlives a pass of a pipeline, by the habits of frameworks.

Note [Stages of PyTorch's pipelines]
    ``PipelineStage`` of torch.distributed.pipelining makes buffers for what it receives, one for each
    microbatch, at its first step (``_create_act_recv_info``, ``_create_grad_recv_info``), and works in them:
    messages do not come and go.  What a stage returns is in its ``fwd_cache`` until the microbatch's
    backward, the last stage's logits with it; these have another name (``output`` of the schedule's loop)
    until the next ones are made.
"""

from __future__ import annotations

from simcore.memory.caching.settings import whole_blocks
from workloads.models.storages import INPUT, OUTPUT_GRADIENT, storages_of
from workloads.parallel.job import Job
from workloads.parallel.stages import Chunk


def keeps_sent(job: Job, chunk: Chunk) -> bool:
    """Whether what a chunk hands on stays until its backward: DeepSpeed's ``pipe_buffers``, and
    Note [Stages of PyTorch's pipelines].
    """
    backward = bool(chunk.pieces and chunk.pieces[-1].backward)
    deepspeed = job.training.engine == "deepspeed" and job.parallel.pp > 1
    return (deepspeed or job.pipelined_by_torch) and backward


def kept_logits(job: Job, chunk: Chunk) -> int:
    """The storage of the head with logits that stay until backward is done; -1: none does."""
    if not (chunk.has_head and job.pipelined_by_torch and chunk.pieces[-1].backward):
        return -1
    return storages_of(chunk.pieces[-1], job.group_sizes).logits


def stays(job: Job, chunk: Chunk, position: int) -> tuple[int, ...]:
    """Storages of a piece that its passes do not release: received ones, and logits."""
    if not job.pipelined_by_torch:
        return ()
    found = [INPUT] if position == 0 and not chunk.has_embedding else []
    if position == len(chunk.pieces) - 1:
        logits = kept_logits(job, chunk)
        found += ([] if chunk.has_head else [OUTPUT_GRADIENT]) + ([logits] if logits >= 0 else [])
    return tuple(found)


def receive_buffers(job: Job, chunk: Chunk) -> int:
    """Bytes of buffers for what a chunk receives, of all microbatches."""
    if not job.pipelined_by_torch or not chunk.pieces:
        return 0
    first, last = chunk.pieces[0], chunk.pieces[-1]
    given = 0 if chunk.has_embedding else storages_of(first, job.group_sizes).storages[INPUT].num_bytes
    gradient = last.output_bytes if last.backward and not chunk.has_head else 0
    return job.num_microbatches * (whole_blocks(given) + whole_blocks(gradient))


def kept_bytes(job: Job, chunk: Chunk) -> tuple[int, int]:
    """Bytes that a microbatch keeps until its backward, and of these what goes at that backward's end."""
    saved = sum(piece.saved_bytes for piece in chunk.pieces)
    if not chunk.pieces:
        return saved, 0
    late = chunk.pieces[-1].output_bytes if keeps_sent(job, chunk) else 0
    first = storages_of(chunk.pieces[0], job.group_sizes).storages[INPUT]
    if INPUT in stays(job, chunk, 0) and first.kept:
        saved -= first.num_bytes
    number = kept_logits(job, chunk)
    if number >= 0:
        logits = storages_of(chunk.pieces[-1], job.group_sizes).storages[number]
        saved -= logits.num_bytes if logits.kept else 0
        late += logits.num_bytes
    return saved + late, late
