"""State-space layers (Mamba-2): projections, a short convolution, the scan, a norm of groups.

As Megatron-Core builds them (megatron/core/ssm/mamba_mixer.py, mamba_context_parallel.py): the projection is
column parallel, heads and their groups are dealt out over tensor-parallel ranks.  With context parallelism
all_to_all trades tokens for heads, part by part, before the convolution and back behind the scan; slices of
the sequence from both its ends are put in order for the scan.
"""

from __future__ import annotations

from workloads.models.block import LayerBlock, register
from workloads.models.check import multiple
from workloads.models.chunk_scan import ScanSizes, conv_and_scan, transposed
from workloads.models.linear import Linear, column_parallel, row_parallel
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.spec import MambaSpec, ModelSpec
from workloads.models.tensors import Tensor, collective, compute


def mixer(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    """The mixer of a layer."""
    del index, causal  # all layers are alike, and every state is of earlier tokens
    mamba = model.mamba
    assert mamba is not None
    joined = column_parallel(tape, shard, x, mamba.projected, Linear(f"{module}.in_proj"))
    sizes = scan_sizes(shard, mamba)
    if shard.cp > 1:
        _to_heads(tape, shard, mamba, sizes, module)
    out = joined.like(sizes.tokens, sizes.inner)
    transposed(tape, shard, joined.like(sizes.tokens, sizes.projected), module)
    conv_and_scan(tape, shard, sizes, joined.dtype, module)
    transposed(tape, shard, out, module)
    if shard.cp > 1:
        _to_tokens(tape, out, module)
        out = out.like(shard.tokens, mamba.inner // shard.tp)
    if mamba.normed:
        _group_norm(tape, shard, out, mamba.groups // shard.tp, f"{module}.norm")
    return row_parallel(tape, shard, out, model.hidden, Linear(f"{module}.out_proj"))


def scan_sizes(shard: Shard, mamba: MambaSpec) -> ScanSizes:
    """What a rank scans: all tokens for its heads; each has at least one group."""
    return ScanSizes(
        batch=shard.micro_batch, seq=shard.seq, heads=mamba.heads // (shard.tp * shard.cp),
        size=mamba.head_size, state=mamba.state, groups=max(1, mamba.groups // (shard.tp * shard.cp)),
        conv=mamba.conv, chunk=mamba.chunk, of_rank=mamba.heads // shard.tp,
        channels_of_rank=(mamba.inner + 2 * mamba.groups * mamba.state) // shard.tp,
    )  # fmt: skip


def _to_heads(tape: OpTape, shard: Shard, mamba: MambaSpec, sizes: ScanSizes, module: str) -> None:
    """Gate, input, both of the state's and time steps one after the other, then joined and put in order."""
    state = sizes.groups * mamba.state * shard.cp  # groups are repeated where there are fewer than ranks
    repeated = state // (mamba.groups * mamba.state // shard.tp)
    for width in (mamba.inner // shard.tp, mamba.inner // shard.tp, state, state, mamba.heads // shard.tp):
        part, op = shard.tensor(shard.tokens, width), tape.op()
        if repeated > 1 and width == state:
            once = part.like(shard.tokens, width // repeated)
            op.run("aten::clone", [once], [part], module=module)
            op.back(compute("aten::sum.dim_IntList", [part], [once], module=module))
        _exchanged(tape, part, module)
    whole = shard.tensor(sizes.tokens, sizes.projected)
    for _ in ("joined", "in order"):
        op = tape.op()
        op.run("aten::cat", [whole], [whole], module=module)
        op.back(compute("aten::cat", [whole], [whole], module=module))


def _to_tokens(tape: OpTape, out: Tensor, module: str) -> None:
    op = tape.op()
    op.run("aten::cat", [out], [out], module=module)
    op.back(compute("aten::cat", [out], [out], module=module))
    _exchanged(tape, out, module)


def _exchanged(tape: OpTape, part: Tensor, module: str) -> None:
    """Columns of each rank side by side in memory, then all_to_all; the other way round in backward."""
    op, exchange = tape.op(), collective("all_to_all", part, "cp", module=module)
    op.run("aten::cat", [part], [part], module=module)
    op.launch(TapedLaunch(exchange))
    op.back(exchange)
    op.back(compute("aten::cat", [part], [part], module=module))


def _group_norm(tape: OpTape, shard: Shard, x: Tensor, groups: int, module: str) -> None:
    """RMSNorm of each group's columns (mamba_ssm/ops/triton/layernorm_gated.py); the gate is in the scan."""
    op, weight = tape.op(), x.like(x.shape[-1])
    rstd = x.like(x.shape[0] * max(1, groups), dtype="float32")
    op.run("rms_norm_fwd", [x, weight], [x, rstd], module=module, saved_inputs=x.num_bytes,
           saved_outputs=rstd.num_bytes)  # fmt: skip
    op.back(compute("rms_norm_bwd", [x, x, rstd, weight], [x, weight], module=module))
    op.parameter(f"{module}.weight", *weight.shape)
    op.accumulate(weight.shape, x.dtype, shard.main_grad_dtype, module)


def mamba_multiply_adds(model: ModelSpec, *_: object) -> float:
    """As Megatron-LM counts them (megatron/training/training.py, mamba_layer_flops): the scan 7 flops for
    each element of a state.
    """
    mamba = model.mamba
    assert mamba is not None
    return model.hidden * (mamba.projected + mamba.inner) + 3.5 * mamba.inner * mamba.state


def _check(model: ModelSpec, where: str) -> None:
    mamba = model.mamba
    if mamba is not None:
        multiple(f"{where}.mamba.heads", mamba.heads, "groups", mamba.groups)


register(
    LayerBlock(
        "mamba", "attention", mixer, mamba_multiply_adds, key="mamba", spec=MambaSpec, check=_check,
        adds_bias=False, symbol="M", module="mixer", norm="norm",
    )
)  # fmt: skip
