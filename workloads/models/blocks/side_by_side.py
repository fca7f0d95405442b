"""State-space heads beside those of attention, behind one norm and added (Falcon-H1).

As transformers builds them (models/falcon_h1/modeling_falcon_h1.py, FalconH1DecoderLayer); its multipliers of
single tensors are left out: they are fused into what is around them, or folded into weights.
"""

from __future__ import annotations

from workloads.models.block import LayerBlock, register
from workloads.models.blocks.attention import attention_multiply_adds, self_attention
from workloads.models.blocks.mamba import mamba_multiply_adds, mixer
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape
from workloads.models.spec import MambaSpec, ModelSpec
from workloads.models.tensors import Tensor, compute


def _side_by_side(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    # Both read x: their gradients of it are added.
    tape.op().back(compute("aten::add.Tensor", [x, x], [x], module=module), "input")
    out = mixer(tape, shard, model, x, f"{module}.mamba", index=index, causal=causal)
    self_attention(tape, shard, model, x, f"{module}.self_attention", index=index, causal=causal)
    tape.op().run("aten::add.Tensor", [out, out], [out], module=module)
    return out


def _multiply_adds(model: ModelSpec, index: int, seq: int, causal_once: bool) -> float:
    attention = attention_multiply_adds(model, index, seq, causal_once)
    return attention + mamba_multiply_adds(model, index, seq, causal_once)


register(
    LayerBlock(
        "side_by_side", "attention", _side_by_side, _multiply_adds, key="mamba", spec=MambaSpec,
        adds_bias=False, symbol="H", module="mixers",
    )
)  # fmt: skip
