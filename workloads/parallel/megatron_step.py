"""What Megatron-Core launches and waits for in a step beside the model's kernels: what only a trace shows.

Scalars, copies and host waits: nothing where kernels are large, some percent of a step where the host is the
limit.  Sources, of Megatron-Core 0.16: ``schedules.py`` (token counts, scaled losses),
``finalize_model_grads.py`` (gradients of norms side by side), ``clip_grads.py``, and torch's fused AdamW for
two groups of parameters, with weight decay and without.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from workloads.models.pieces import HOST_SYNC, KernelLaunch, Parameter
from workloads.models.spec import transformer_of
from workloads.models.tensors import Tensor, compute
from workloads.parallel.emit import OpWriter
from workloads.parallel.job import Job
from workloads.parallel.stages import Chunk

_SCALAR, _COUNT = Tensor((1,), "float32"), Tensor((1,), "int32")


def begin_step(writer: OpWriter, job: Job, chunks: Sequence[Chunk]) -> None:
    """Gradient buffers are cleared, one a model chunk and group, and tokens are counted from none."""
    cleared = [
        compute("aten::zero_", [], [Tensor((numel,), job.shard.main_grad_dtype)], op_class="fill")
        for chunk in chunks
        for group in ("dp", "expert_dp")
        if (numel := job.numel(chunk.pieces, group, trainable=True))
    ]
    writer.kernels([*cleared, compute("aten::zeros", [], [_COUNT], op_class="fill")], phase="fwd")


def count_tokens(writer: OpWriter) -> None:
    """Tokens of a microbatch are added to those of the step."""
    writer.kernels([compute("aten::add_.Tensor", [_COUNT], [_COUNT])], phase="fwd")


def scale_loss(writer: OpWriter, job: Job) -> None:
    """The mean over tokens, over microbatches; labels and losses of several sequences are copied."""
    scaled = [compute(f"aten::{name}_.Tensor", [_SCALAR], [_SCALAR]) for name in ("mul", "div")]
    losses = _per_token(job)
    mean = compute("aten::mean", [losses], [_SCALAR], op_class="reduction")
    copies = [losses.like(*losses.shape, dtype="int64"), losses] if job.training.micro_batch > 1 else []
    writer.kernels([*map(_clone, copies), mean, *scaled], phase="fwd")


def loss_gradient(writer: OpWriter, job: Job) -> None:
    """The gradient of each token's loss, which is the same for all, from that of the scaled mean."""
    names = ("mul.Tensor", "ones_like", "mul.Tensor", "sum", "div.Tensor", "mul.Tensor")
    scalars = [compute(f"aten::{name}", [_SCALAR], [_SCALAR]) for name in names]
    spread = compute("aten::div.Scalar", [_SCALAR], [_per_token(job)])
    writer.kernels([*scalars, spread], phase="bwd")


def tokens_first(writer: OpWriter, job: Job) -> None:
    """Embeddings of several sequences are copied so that tokens come before sequences, as layers have it."""
    if job.training.micro_batch > 1:
        width = Tensor(
            (*_per_token(job).shape[::-1], transformer_of(job.model, "a launched step").hidden),
            job.shard.dtype,
        )
        writer.kernels([_clone(width)], phase="fwd")


def _clone(tensor: Tensor) -> KernelLaunch:
    return compute("aten::clone", [tensor], [tensor], op_class="copy")


def _per_token(job: Job) -> Tensor:
    return Tensor((job.training.micro_batch, job.training.seq // job.parallel.cp), "float32")


def side_by_side(summed: KernelLaunch, parameters: Sequence[Parameter], dtype: str) -> list[KernelLaunch]:
    """Gradients of ``parameters`` copied to where ``summed`` adds them up, and back one by one."""
    whole = Tensor((sum(parameter.numel for parameter in parameters),), dtype)
    parts = [Tensor(parameter.shape, dtype) for parameter in parameters]
    back = [compute("aten::copy_", [part], [part], op_class="copy") for part in parts]
    return [compute("aten::cat", [whole], [whole], op_class="copy"), summed, *back]


def clip(norm: Sequence[KernelLaunch], grads: Tensor) -> list[KernelLaunch]:
    """The ``norm`` of all gradients, which the host reads, and their scaling."""
    zeros = compute("aten::zeros", [], [_COUNT], op_class="fill")
    scale = compute("aten::_foreach_mul_.Scalar", [grads], [grads], op_class="foreach")
    return [zeros, *norm, KernelLaunch(HOST_SYNC), zeros, scale]


def adam(job: Job, chunks: Sequence[Chunk], numel: int) -> list[KernelLaunch]:
    """AdamW on ``numel`` elements, those with weight decay before those without, and weights in 16 bits.

    Of a distributed optimizer this rank's share of both; each shard is then copied to its weight.
    """
    parameters = [
        one for chunk in chunks for piece in chunk.pieces for one in piece.parameters if one.trainable
    ]
    whole = sum(parameter.numel for parameter in parameters)
    kernels, count = [], 0
    for decays in (True, False):
        group = [parameter for parameter in parameters if (len(parameter.shape) > 1) == decays]
        if not group:
            continue
        own = Tensor((round(numel * sum(parameter.numel for parameter in group) / whole),), "float32")
        tensors = max(1, round(len(group) * numel / whole))
        steps = Tensor((tensors,), "float32")
        kernels += [
            compute("aten::_foreach_add_.Scalar", [steps], [steps], op_class="foreach"),
            compute("aten::_fused_adamw_", [own] * 4 + [steps], [own] * 3, op_class="optimizer"),
        ]
        count += tensors
    if job.training.sharding == "ddp":
        if job.shard.dtype == "float32":
            return kernels
        state, weight = Tensor((numel,), "float32"), Tensor((numel,), job.shard.dtype)
        return [*kernels, compute("multi_tensor_copy", [state], [weight], op_class="foreach")]
    share = Tensor((max(1, numel // count),), "float32")
    narrow = share.like(prod(share.shape), dtype=job.shard.dtype)
    return [*kernels, *[compute("aten::copy_", [share], [narrow], op_class="copy")] * count]
