"""Pipeline actions where every rank keeps its parameters: plain DDP and ZeRO-1/2 (Megatron's way)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workloads.models.pieces import Piece
from workloads.parallel.emit import Writer
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.stages import Chunk

DP_STREAM = "dp"


@dataclass(frozen=True)
class Bucket:
    """Gradients (or parameters) that travel together: elements, over which group, complete after ``piece``.

    ``piece`` is the position in the chunk of the first piece (in forward order) that belongs to it.
    """

    group: str
    numel: int
    piece: int


def buckets_of(job: Job, chunk: Chunk) -> list[Bucket]:
    """Buckets in the order in which backward completes them.  Experts have buckets of their own."""
    limit = job.training.bucket_parameters
    filled: dict[str, int] = {}
    found: list[Bucket] = []
    for position in reversed(range(len(chunk.pieces))):
        for parameter in chunk.pieces[position].parameters:
            filled[parameter.group] = filled.get(parameter.group, 0) + parameter.numel
        full = [group for group, numel in filled.items() if limit and numel >= limit]
        found.extend(Bucket(group, filled.pop(group), position) for group in full)
    found.extend(Bucket(group, numel, 0) for group, numel in sorted(filled.items()))
    return [bucket for bucket in found if group_size(job, bucket.group) > 1]


def group_size(job: Job, group: str) -> int:
    """Members of a gradient group."""
    return job.mesh.expert_replicas if group == "expert_dp" else job.mesh.replicas


def forward(writer: Writer, job: Job, chunk: Chunk, *, first: bool) -> None:
    """All pieces of a chunk; at the ``first`` microbatch with what happens once a step."""
    gathers = {}
    if first and job.training.sharding == "zero1" and job.training.overlap_param_gather:
        gathers = {bucket.piece: bucket for bucket in buckets_of(job, chunk)}
    for position, (piece, layer) in enumerate(zip(chunk.pieces, chunk.layers, strict=True)):
        if position in gathers:
            bucket = gathers[position]
            num_bytes = bucket.numel * element_bytes(job.training.param_gather_dtype)
            writer.wait_for(
                writer.collective("all_gather", bucket.group, num_bytes, stream=DP_STREAM, phase="fwd")
            )
        if first:
            writer.kernels(piece.first_forward, phase="fwd", layer=layer)
        writer.kernels(piece.forward, phase="fwd", layer=layer)


def backward(writer: Writer, job: Job, chunk: Chunk, *, last: bool) -> None:
    """All pieces in reverse; at the ``last`` microbatch gradients may leave as their buckets fill."""
    ready = _reduced_in(job, last)
    buckets = buckets_of(job, chunk) if ready else []
    for position in reversed(range(len(chunk.pieces))):
        piece: Piece = chunk.pieces[position]
        writer.kernels(piece.backward, phase="bwd", layer=chunk.layers[position])
        for bucket in buckets:
            if bucket.piece == position:
                reduce_gradients(writer, job, [bucket], stream=DP_STREAM)


def _reduced_in(job: Job, last: bool) -> bool:
    return job.training.sharding == "zero2" or (last and job.training.overlap_grad_reduce)


def reduce_gradients(writer: Writer, job: Job, buckets: Sequence[Bucket], *, stream: str) -> None:
    """One collective per bucket, after what the compute stream has done so far."""
    what = "all_reduce" if job.training.sharding == "ddp" else "reduce_scatter"
    size = element_bytes(job.training.grad_reduce_dtype)
    for bucket in buckets:
        waits = [writer.last] if writer.last is not None and stream != "compute" else []
        writer.collective(
            what, bucket.group, bucket.numel * size, stream=stream, phase="grad_sync", waits=waits
        )


def left_over(job: Job, chunks: Sequence[Chunk]) -> Iterator[Bucket]:
    """Buckets that backward did not reduce."""
    if not (job.training.overlap_grad_reduce or job.training.sharding == "zero2"):
        for chunk in chunks:
            yield from buckets_of(job, chunk)
