"""A model block in one file: gated short convolutions in place of attention (LFM2, arXiv 2511.23404).

A projection to three times the width, a causal convolution over a few tokens between two gates, a projection
back.  Each ``attention_every``-th layer keeps attention.  In the package the file would lie in
workloads/models/blocks/.
"""

from pydantic import PositiveInt

from simcore.hardware import load_cluster
from simcore.run import run
from workloads.jobs import complete
from workloads.models.block import LayerBlock, register
from workloads.models.blocks.feed_forward import block_output
from workloads.models.frozen import Frozen
from workloads.models.linear import Linear, column_parallel, row_parallel
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, compute


class ShortConvSpec(Frozen):
    """``kernel``: tokens that the convolution sees."""

    kernel: PositiveInt = 3
    attention_every: PositiveInt = 3


def _write(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, **_: object) -> Tensor:
    joined = column_parallel(tape, shard, x, 3 * model.hidden, Linear(f"{module}.in_proj"))
    out, op = joined.like(shard.tokens, joined.shape[-1] // 3), tape.op()
    filters = x.like(out.shape[-1], model.short_conv.kernel)
    op.parameter(f"{module}.conv.weight", *filters.shape)
    op.run("short_conv_fwd", [joined, filters], [out], module=module, saved_inputs=joined.num_bytes)
    op.back(compute("short_conv_bwd", [out, joined, filters], [joined, filters], module=module))
    op.accumulate(filters.shape, shard.dtype, shard.main_grad_dtype, module)
    return row_parallel(tape, shard, out, model.hidden, block_output(shard, model, f"{module}.out_proj"))


def _multiply_adds(model: ModelSpec, *_: object) -> float:
    return model.hidden * (4 * model.hidden + model.short_conv.kernel)


def _is_in(model: ModelSpec, index: int) -> bool:
    spec = getattr(model, "short_conv", None)
    return spec is not None and (index + 1) % spec.attention_every != 0


register(LayerBlock("short_conv", "attention", _write, _multiply_adds, "short_conv", ShortConvSpec, _is_in))

if __name__ == "__main__":
    steps = {}
    for name, special in (("attention", {}), ("short convolutions", {"short_conv": {"kernel": 3}})):
        said = {"model": {"model": "llama3-8b", **special}, "parallel": {"tp": 8}, "training": {"seq": 32768}}
        job = complete(said, name, num_gpus=8, generation="hopper")
        steps[name] = run(job.graph(), load_cluster("h100-8", job.gpu)).step_s
        print(f"{name}: {steps[name] * 1e3:.0f} ms")
    assert steps["short convolutions"] < steps["attention"]
