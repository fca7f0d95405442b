"""Pipeline actions where every rank keeps its parameters: plain DDP and ZeRO-1/2 (Megatron's way).

Note [Buckets]
    Gradients leave in buckets, in the order in which backward completes them, each as soon as its last one
    is there.  Megatron-Core closes a bucket at max(40M, 1M x dp) elements, and has a single one when nothing
    overlaps (``distributed_data_parallel.py``); PyTorch's DDP closes the first at 1 MiB, the others at
    25 MiB (``reducer.cpp``).  Experts have buckets of their own.  With overlap_param_gather the optimizer's
    shards come back bucket by bucket in the next forward: a bucket's gather is issued when the first layer of
    the bucket before begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial

from simcore.graph import OpHandle
from simcore.records import dataclass
from workloads.models.local import message_dtype
from workloads.models.pieces import KernelLaunch, ModelPiece, Parameter
from workloads.models.tensors import Tensor, compute
from workloads.parallel import put_off
from workloads.parallel.emit import COMPUTE, OpWriter
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.stages import Chunk

DP_STREAM = "dp"
_FIRST_BUCKET_BYTES = 1024 * 1024


@dataclass(frozen=True)
class GradBucket:
    """Parameters whose gradients travel together over ``group``.

    Complete when kernel ``kernel`` of the backward of the piece at position ``piece`` of the chunk has run,
    which is also the first piece, in forward order, that it has parameters of.
    """

    group: str
    numel: int
    piece: int
    kernel: int


Backward = Callable[[ModelPiece], Sequence[KernelLaunch]]


def whole_backward(piece: ModelPiece) -> Sequence[KernelLaunch]:
    """All kernels of a piece's backward."""
    return piece.backward


def buckets_of(
    job: Job, chunk: Chunk, kernels: Backward = whole_backward,
    summed_over: Callable[[Job, Parameter], str] | None = None,
) -> list[GradBucket]:  # fmt: skip
    """Buckets of a chunk: parameters in the reverse of the order in which the model declares them.

    A bucket is complete when the last of its gradients is, which need not be that of its last parameter.
    ``summed_over``: the group that adds a parameter's gradient up, "" for none; default: what its rank says.
    """
    group_of = summed_over or _summed_over
    closed: dict[str, int] = {}
    filled: dict[str, int] = {}
    ends: dict[str, tuple[int, int]] = {}
    found: list[GradBucket] = []
    for position in reversed(range(len(chunk.pieces))):
        latest: dict[str, int] = {}
        for kernel, parameter in _completed(chunk.pieces[position], kernels):
            group = group_of(job, parameter)
            if not group:
                continue
            if _is_alone(job, parameter):
                if filled.get(group):  # what has been collected is closed first
                    found.append(GradBucket(group, filled.pop(group), *ends[group]))
                    closed[group] = closed.get(group, 0) + 1
                found.append(GradBucket(group, parameter.numel, position, kernel))
                continue
            filled[group] = filled.get(group, 0) + parameter.numel
            ends[group] = (position, len(kernels(chunk.pieces[position])) - 1)
            latest[group] = max(latest.get(group, 0), kernel)
            limit = _limit(job, chunk, closed.get(group, 0))
            if limit and filled[group] >= limit:
                closed[group] = closed.get(group, 0) + 1
                found.append(GradBucket(group, filled.pop(group), position, latest.pop(group)))
    found.extend(GradBucket(group, numel, *ends[group]) for group, numel in sorted(filled.items()) if numel)
    return found


def _summed_over(job: Job, parameter: Parameter) -> str:
    """The group of a parameter's replicas; tables and what no other rank has are summed by none."""
    group = parameter.group
    return "" if group == "table" or group_size(job, group) == 1 else group


def _is_alone(job: Job, parameter: Parameter) -> bool:
    """Megatron's distributed optimizer gives a tied embedding a bucket of its own, equal on both stages."""
    shared = job.model.ties_ends and job.parallel.pp > 1 and job.training.sharding == "zero1"
    return shared and parameter.name.startswith("embedding.word_embeddings")


def _limit(job: Job, chunk: Chunk, closed: int) -> int:
    """Elements at which the next bucket closes when ``closed`` are; 0: never.

    Megatron-Core has buckets on the first stage's first chunk only: the others' reductions are not critical.
    """
    training = job.training
    if training.bucket_bytes and not training.bucket_parameters:
        return 0
    if training.bucket_bytes:
        num_bytes = min(training.bucket_bytes, _FIRST_BUCKET_BYTES) if not closed else training.bucket_bytes
        return max(1, num_bytes // element_bytes(training.grad_dtype))
    if not (training.overlap_grad_reduce or training.sharding == "zero2"):
        return 0
    if training.sharding != "zero2" and not chunk.has_embedding:
        return 0
    if training.bucket_parameters < 0:
        return max(40_000_000, 1_000_000 * job.mesh.replicas)
    return training.bucket_parameters


def _completed(piece: ModelPiece, kernels: Backward) -> list[tuple[int, Parameter]]:
    """(kernel, parameter), last declared first: the last kernel of its module, or of all if there is none."""
    launched = kernels(piece)
    last = {kernel.module: k for k, kernel in enumerate(launched) if not kernel.recomputed}
    end = len(launched) - 1
    return [
        (last.get(parameter.name.rpartition(".")[0], end), parameter)
        for parameter in reversed(piece.parameters)
        if parameter.trainable
    ]


def group_size(job: Job, group: str) -> int:
    """Members of a gradient group."""
    return job.mesh.expert_replicas if group == "expert_dp" else job.mesh.replicas


def forward(writer: OpWriter, job: Job, chunk: Chunk, *, first: bool) -> None:
    """All pieces of a chunk; at the ``first`` microbatch with what happens once a step."""
    training = job.training
    gathers: list[GradBucket] = []
    if first and training.sharding in ("zero1", "zero2") and training.overlap_param_gather:
        gathers = list(reversed(buckets_of(job, chunk)))
    issued: list[OpHandle] = []

    def issue() -> None:
        bucket = gathers[len(issued)]
        num_bytes = bucket.numel * element_bytes(training.param_gather_dtype)
        waits = [writer.last] if writer.last is not None else []
        issued.append(
            writer.collective(
                "all_gather",
                bucket.group,
                num_bytes,
                stream=DP_STREAM,
                phase="fwd",
                dtype=message_dtype(training.param_gather_dtype),
                waits=waits,
            )
        )

    reached = 0
    for position, (piece, layer) in enumerate(zip(chunk.pieces, chunk.layers, strict=True)):
        while reached < len(gathers) and gathers[reached].piece <= position:
            if len(issued) == reached:
                issue()
            writer.wait_for(issued[reached])
            reached += 1
            if len(issued) < len(gathers):
                issue()
        if first:
            writer.kernels(piece.first_forward, phase="fwd", layer=layer)
        writer.kernels(piece.forward, phase="fwd", layer=layer)


def backward(
    writer: OpWriter, job: Job, chunk: Chunk, *, last: bool, kernels: Backward = whole_backward,
    reduces: bool = True,
) -> None:  # fmt: skip
    """``kernels`` of all pieces in reverse; at the ``last`` microbatch gradients may leave as they fill."""
    ready = reduces and reduced_in_backward(job, chunk, last=last)
    sums = Sums(writer, job, buckets_of(job, chunk, kernels) if ready else [])
    if job.software.weight_gradients_late:
        put_off.backward(writer, chunk, kernels, lambda: sums.reduce(sums.buckets))
        return
    for position in reversed(range(len(chunk.pieces))):
        writer.kernels(
            kernels(chunk.pieces[position]), phase="bwd", layer=chunk.layers[position],
            after=sums.after(position),
        )  # fmt: skip
    sums.finish()


@dataclass
class Sums:
    """Sums of the gradients of one backward's ``buckets``, each behind the kernel that completes it."""

    writer: OpWriter
    job: Job
    buckets: Sequence[GradBucket]
    reduced: list[tuple[GradBucket, OpHandle]] = field(default_factory=list)

    def after(self, position: int) -> dict[int, Callable[[], None]]:
        """What is launched behind which kernels of the backward of the piece at ``position``."""
        full: dict[int, list[GradBucket]] = {}
        for bucket in self.buckets:
            if bucket.piece == position:
                full.setdefault(bucket.kernel, []).append(bucket)
        return {kernel: partial(self.reduce, buckets) for kernel, buckets in full.items()}

    def reduce(self, buckets: Sequence[GradBucket]) -> None:
        """Sum ``buckets`` now."""
        stream = DP_STREAM if reduces_beside(self.job) else COMPUTE
        handles = reduce_gradients(self.writer, self.job, buckets, stream=stream)
        self.reduced.extend(zip(buckets, handles, strict=True))

    def finish(self) -> None:
        """PyTorch's DDP waits for its buckets at the end of backward and copies them into the gradients.

        Source: ``Reducer::finalize_backward`` and ``finalize_bucket_dense`` of ``reducer.cpp``, without
        ``gradient_as_bucket_view``.
        """
        if not self.job.by_ddp:
            return
        for bucket, handle in self.reduced:
            self.writer.wait_for(handle)
            grads = Tensor((bucket.numel,), self.job.shard.main_grad_dtype)
            kernel = compute("aten::copy_", [grads], [grads], op_class="copy", module="ddp")
            self.writer.compute(kernel, phase="bwd")


def reduces_beside(job: Job) -> bool:
    """Whether what backward reduces has a stream of its own; DeepSpeed's has one if it is told to overlap."""
    return job.training.overlap_grad_reduce or not job.by_deepspeed


def reduced_in_backward(job: Job, chunk: Chunk, *, last: bool) -> bool:
    """Whether the backward of a microbatch reduces gradients.

    Megatron-Core without interleaving does so on the first stage, whose last backward is the step's: the
    others reduce theirs behind what they send (``enable_grad_sync`` of ``schedules.py``).
    """
    training = job.training
    if job.batches_p2p and not chunk.has_embedding:
        return False
    every = training.sharding == "zero2" or training.reduce_every_microbatch
    return every or (last and training.overlap_grad_reduce)


def all_reduce_of(job: Job) -> str:
    """The collective that adds whole gradients up: NCCL's, or a kernel of the framework's own."""
    sms = job.software.one_shot_sms
    return f"all_reduce:oneshot,sms={sms}" if sms else "all_reduce"


def reduce_gradients(
    writer: OpWriter, job: Job, buckets: Sequence[GradBucket], *, stream: str
) -> list[OpHandle]:
    """For each bucket a kernel that divides by the number of replicas, and a collective behind it."""
    handles = []
    sums = job.training.sharding == "ddp" or job.by_deepspeed
    what = all_reduce_of(job) if sums else "reduce_scatter"
    size = element_bytes(job.training.grad_reduce_dtype)
    for bucket in buckets:
        if job.software.gradient_scaling:
            grads = Tensor((bucket.numel,), job.shard.main_grad_dtype)
            writer.compute(compute("aten::mul_.Tensor", [grads], [grads], module="ddp"), phase="grad_sync")
        if job.by_deepspeed:
            _flatten(writer, job, bucket)
        waits = [writer.last] if writer.last is not None and stream != "compute" else []
        handles.append(
            writer.collective(
                what, bucket.group, bucket.numel * size, stream=stream, phase="grad_sync", waits=waits,
                dtype=message_dtype(job.training.grad_reduce_dtype),
            )
        )  # fmt: skip
    return handles


def _flatten(writer: OpWriter, job: Job, bucket: GradBucket) -> None:
    """DeepSpeed copies gradients to its bucket, and the bucket, as one tensor, to what is summed.

    Every ZeRO stage below 3 sums with all_reduce: ``average_tensor`` of ``stage_1_and_2.py`` (its default,
    ``use_multi_rank_bucket_allreduce``) and ``buffered_allreduce_fallback`` of ``engine.py``, which pipelines
    and bf16 without ZeRO go by; the latter copies back instead of in.
    """
    grads = Tensor((bucket.numel,), job.shard.main_grad_dtype)
    for name in ("aten::copy_", "aten::cat"):
        kernel = compute(name, [grads], [grads], op_class="copy", module="deepspeed")
        writer.compute(kernel, phase="grad_sync")


def left_over(job: Job, chunks: Sequence[Chunk]) -> Iterator[GradBucket]:
    """Buckets that backward did not reduce."""
    for chunk in chunks:
        if not reduced_in_backward(job, chunk, last=True):
            yield from buckets_of(job, chunk)
