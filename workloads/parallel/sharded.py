"""Pipeline actions where parameters are sharded: FSDP and ZeRO-3 gather each unit before it is used.

Note [Order of gathers]
    A unit is one piece.  Its all_gather runs on a stream of its own, issued as soon as at most ``prefetch``
    further units hold gathered parameters: it waits for the unit that far back to have been computed and
    freed (FSDP's rate limiter).  Gradients are reduced on another stream when a unit's backward is done.
    FSDP2 and ZeRO-3 copy what was gathered into the parameters, and gradients into the reduction's buffer;
    FSDP1's flat parameters are used where they are.
"""

from __future__ import annotations

from simcore.graph import OpHandle
from workloads.models.pieces import Kernel, Piece
from workloads.models.tensors import Tensor, compute
from workloads.parallel.emit import Writer
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.stages import Chunk

GATHER_STREAM, REDUCE_STREAM = "fsdp_gather", "fsdp_reduce"


def forward(writer: Writer, job: Job, chunk: Chunk, *, first: bool) -> None:
    """Gather, compute, free, unit by unit; without resharding later microbatches find all gathered."""
    gathered = job.training.reshard_after_forward or first
    done: list[OpHandle | None] = []
    for piece, layer in zip(chunk.pieces, chunk.layers, strict=True):
        if gathered:
            _gather(writer, job, piece, done, layer, "fwd")
        if first:
            writer.kernels(piece.first_forward, phase="fwd", layer=layer)
        writer.kernels(piece.forward, phase="fwd", layer=layer)
        done.append(writer.last)


def backward(writer: Writer, job: Job, chunk: Chunk) -> None:
    """Gather again unless kept, compute, reduce.  The last unit of forward is still there."""
    training = job.training
    done: list[OpHandle | None] = []
    for position in reversed(range(len(chunk.pieces))):
        piece, layer = chunk.pieces[position], chunk.layers[position]
        kept = position == len(chunk.pieces) - 1 or not training.reshard_after_forward
        if not kept:
            _gather(writer, job, piece, done, layer, "bwd")
        writer.kernels(piece.backward, phase="bwd", layer=layer)
        done.append(writer.last)
        _reduce(writer, job, piece, layer)


def _gather(
    writer: Writer, job: Job, piece: Piece, done: list[OpHandle | None], layer: int, phase: str
) -> None:
    held = job.training.prefetch + 1
    limit = done[-held] if len(done) >= held else None
    for group, numel in _by_group(job, piece):
        handle = writer.collective(
            "all_gather", group, numel * element_bytes(job.training.param_gather_dtype), stream=GATHER_STREAM,
            phase=phase, layer=layer, waits=[limit] if limit is not None else [],
        )  # fmt: skip
        writer.wait_for(handle)
        if job.training.sharding != "fsdp1":
            dtype = {"fp8": "float8_e4m3fn", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
            whole = Tensor((numel,), dtype[job.training.param_gather_dtype])
            writer.compute(_copy("split_with_sizes_copy", whole, whole), phase=phase, layer=layer)


def _reduce(writer: Writer, job: Job, piece: Piece, layer: int) -> None:
    """reduce_scatter over the shards, then all_reduce over replicas of the shards (HSDP)."""
    size = element_bytes(job.training.grad_reduce_dtype)
    for group, numel in _by_group(job, piece):
        waits = [writer.last] if writer.last is not None else []
        if job.training.sharding != "fsdp1":
            grads = Tensor((numel,), job.shard.dtype)
            buffer = Tensor((numel,), "float32" if size == 4 else grads.dtype)
            copied = writer.compute(
                _copy("chunk_cat", grads, buffer), phase="bwd", layer=layer, stream=REDUCE_STREAM, waits=waits
            )
            waits = [copied]
        reduced = writer.collective(
            "reduce_scatter", group, numel * size, stream=REDUCE_STREAM, phase="grad_sync", layer=layer,
            waits=waits,
        )  # fmt: skip
        replicas = job.mesh.replicas // job.mesh.shard_ranks
        if group == "dp_shard" and replicas > 1:
            writer.collective(
                "all_reduce", "dp_replicate", numel // job.mesh.shard_ranks * size, stream="fsdp_replicate",
                phase="grad_sync", layer=layer, waits=[reduced],
            )  # fmt: skip


def _by_group(job: Job, piece: Piece) -> list[tuple[str, int]]:
    """(group, elements) of the unit's parameters, by who shards them."""
    dense = "dp_shard" if job.mesh.shard_ranks < job.mesh.replicas else "dp"
    found = []
    for name, group in (("dp", dense), ("expert_dp", "expert_dp")):
        numel = job.numel((piece,), name)
        size = job.mesh.expert_replicas if name == "expert_dp" else job.mesh.shard_ranks
        if numel and size > 1:
            found.append((group, numel))
    return found


def _copy(name: str, source: Tensor, target: Tensor) -> Kernel:
    return compute(f"aten::{name}", [source], [target], op_class="copy", module="fsdp")
