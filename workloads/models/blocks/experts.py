"""Mixtures of experts: router, grouped products, shared experts (arXiv 2101.03961, 2211.15841).

Every rank waits for the one with the most tokens: its tokens are counted.  ``dispatch.py`` brings them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simcore.errors import InputError
from workloads.models.block import LayerBlock, register
from workloads.models.blocks.feed_forward import feed_forward
from workloads.models.check import multiple
from workloads.models.dispatch import plan_dispatch
from workloads.models.elementary import activation
from workloads.models.grouped import fuses_mlp, grouped
from workloads.models.linear import Linear, linear
from workloads.models.local import Shard
from workloads.models.op_tape import Op, OpTape, TapedLaunch
from workloads.models.pieces import HOST_SYNC, KernelLaunch
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec, MoeSpec
from workloads.models.tensors import Tensor, compute


def _experts(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    """Router, dispatch, experts, combine, and the experts that every token passes."""
    del index, causal
    moe = model.moe
    assert moe is not None
    plain = model.model_copy(update={"bias": False}) if model.bias else model
    first_launch, first_op = len(tape.forward), len(tape.ops)
    _route(tape, shard, moe, x, module)
    sent = x
    if moe.latent:  # on every tensor-parallel rank, of its own tokens
        sent = linear(tape, shard, x, moe.latent, Linear(f"{module}.fc1_latent_proj", replicated=True))
        plain = plain.model_copy(update={"hidden": moe.latent})
    dispatch = plan_dispatch(shard, moe, sent, module)
    dispatch.write_there(tape)
    _grouped_experts(tape, shard, plain, moe, dispatch.rows, module)
    dispatch.write_back(tape)
    if moe.latent:
        plain = plain.model_copy(update={"hidden": model.hidden})
        linear(tape, shard, sent, model.hidden, Linear(f"{module}.fc2_latent_proj", replicated=True))
        # The gradient of the block's input is a sum of the router's and the experts'.
        tape.ops[-1].back(compute("aten::add.Tensor", [x, x], [x], module=module), "input")
    if moe.shared_ffn:
        shared = f"{module}.shared_experts"
        # The gradient of the block's input is a sum.
        tape.op().back(compute("aten::add.Tensor", [x, x], [x], module=shared), "input")
        feed_forward(tape, shard, plain, x, shared, ffn=moe.shared_ffn)
        if moe.shared_gate:
            _gate(tape, shard, x, shared)
        tape.op().run("aten::add.Tensor", [x, x], [x], module=module)
    _spread_host_time(tape, shard.software, moe, first_launch, first_op)
    return x


def _spread_host_time(
    tape: OpTape, software: SoftwareSpec, moe: MoeSpec, first_launch: int, first_op: int
) -> None:
    """Share out what the host does beside launches among those of forward, and of backward."""
    host_us = software.moe_host_us / (2 if moe.capacity_factor else 1)
    if not host_us or software.cuda_graphs is True:
        return

    def spread(launches: list[TapedLaunch], each: float) -> list[TapedLaunch]:
        return [
            one
            if software.in_graph(one.kernel.module)
            else replace(one, kernel=replace(one.kernel, host_us=each))
            for one in launches
        ]

    def count(launches: Iterable[TapedLaunch]) -> int:
        return max(1, sum(not software.in_graph(one.kernel.module) for one in launches))

    forward, behind = tape.forward[first_launch:], tape.ops[first_op:]
    tape.forward[first_launch:] = spread(forward, host_us / count(forward))
    each = host_us / count(one for op in behind for one in op.backward)
    for op in behind:
        op.backward = spread(op.backward, each)


def _route(tape: OpTape, shard: Shard, moe: MoeSpec, x: Tensor, module: str) -> None:
    """Scores, the best ``top_k``, the map of routes and the loss that balances them."""
    tokens, op, router = x.shape[0], tape.op(), f"{module}.router"
    dtype = "float32" if shard.software.moe_router_fp32 else x.dtype
    wide = replace(x, dtype=dtype)
    weight = Tensor((x.shape[-1], moe.num_experts), dtype)
    scores = Tensor((tokens, moe.num_experts), "float32")
    flops = 2 * scores.numel * x.shape[-1]
    if dtype != x.dtype:
        op.run("aten::_to_copy", [x], [wide], module=router)
    op.run("aten::mm", [wide, weight], [scores], op_class="gemm", flops=flops, module=router,
           saved_inputs=x.num_bytes, saved_for="weight")  # fmt: skip
    steps = _routing_steps(shard, scores, moe.top_k)
    for number, (name, ins, out) in enumerate(steps):
        op.run(name, ins, [out], op_class="" if name.startswith("aten::") else "elementwise", module=router,
               saved_outputs=0 if number else scores.num_bytes)  # fmt: skip
    op.parameter(f"{router}.weight", moe.num_experts, x.shape[-1], tp_duplicated=shard.sequence_parallel)
    if not shard.software.moe_router_fusion:
        # Of the balancing loss, and of the weights of the chosen experts.
        for name in ("aten::mul.Tensor", "aten::mul.Tensor", "aten::gather", "aten::add.Tensor"):
            op.back(compute(name, [scores, scores], [scores], module=router))
    op.back(compute("aten::_softmax_backward_data", [scores, scores], [scores], module=router))
    scores, turned = replace(scores, dtype=dtype), weight.like(*reversed(weight.shape))
    op.back(
        compute("aten::mm", [scores, turned], [wide], op_class="gemm", flops=flops, module=router), "input"
    )
    ins = [scores.like(*reversed(scores.shape)), wide]
    op.back(compute("aten::mm", ins, [turned], op_class="gemm", flops=flops, module=router), "weight")
    op.back(compute("aten::add.Tensor", [x, x], [x], module=router), "input")
    op.accumulate(turned.shape, dtype, shard.main_grad_dtype, router)


def _routing_steps(shard: Shard, scores: Tensor, top_k: int) -> list[tuple[str, list[Tensor], Tensor]]:
    """Kernels from scores to routes (megatron/core/transformer/moe/router.py, moe_utils.py)."""
    best, routes = scores.like(scores.shape[0], top_k), replace(scores, dtype="bool")
    each = scores.like(scores.shape[1])
    if shard.software.moe_router_fusion:
        return [
            ("fused_topk_scores", [scores], scores),
            ("fused_aux_scores", [scores], scores),
            ("fused_aux_loss", [scores], each),
        ]
    return [
        ("aten::_softmax", [scores], scores),
        ("aten::topk", [scores], best),
        ("aten::zeros_like", [scores], scores),
        ("aten::scatter", [scores, best], scores),
        ("aten::zeros_like", [routes], routes),
        ("aten::scatter", [routes, best], routes),
        ("aten::sum.dim_IntList", [routes], each),
        ("aten::sum.dim_IntList", [scores], each),
        ("aten::mul.Tensor", [each, each], each),
        ("aten::sum", [each], each.like(1)),
        ("aten::mul.Tensor", [each.like(1)], each.like(1)),
    ]


def _grouped_experts(
    tape: OpTape, shard: Shard, model: ModelSpec, moe: MoeSpec, x: Tensor, module: str
) -> Tensor:
    """Products over the local experts at once, each on its share of the tokens."""
    local = moe.num_experts // shard.ep
    width = moe.ffn // shard.etp
    name = f"{module}.experts"
    if fuses_mlp(shard, model, moe):
        hidden = grouped(
            tape, shard, x, local, 2 * width, f"{name}.linear_fc1", gated=x.like(x.shape[0], width)
        )
        return grouped(tape, shard, hidden, local, model.hidden, f"{name}.linear_fc2", cast=False)
    padded = bool(shard.narrow) and shard.software.moe_fp8_padding and moe.capacity_factor is None
    if padded:
        _pad(tape, x, name)
    hidden = grouped(tape, shard, x, local, 2 * width if model.gated else width, f"{name}.linear_fc1")
    if moe.bias:
        _up_bias(tape, shard, hidden, local, f"{name}.linear_fc1")
    if moe.clamp and shard.software.moe_clamp_apart and model.gated:
        hidden = _clamped_gate(tape, hidden, name)
    else:
        hidden = activation(tape, shard, model, hidden, name, bias=False)
        if shard.software.moe_weighted_early and not _weights_inside(shard.software, model):
            _weight_rows(tape, shard, hidden, name)
    y = grouped(tape, shard, hidden, local, model.hidden, f"{name}.linear_fc2")
    if moe.bias:
        _weighted_bias(tape, shard, y, local, f"{name}.linear_fc2")
    if padded:
        _pad(tape, y, name)
    return y


def _weights_inside(software: SoftwareSpec, model: ModelSpec) -> bool:
    """Whether the activation's kernel weights rows, too."""
    if model.gated:
        return software.swiglu_fusion
    return model.activation == "squared_relu" and software.squared_relu_fusion


def _weight_rows(tape: OpTape, shard: Shard, x: Tensor, module: str) -> None:
    """Each row times its token's weight, in the router's precision (bias_act_func of TEGroupedMLP)."""
    op, software = tape.op(), shard.software
    wide = replace(x, dtype="float32") if software.moe_router_fp32 else x
    weights = wide.like(x.shape[0], 1)
    op.run("aten::mul.Tensor", [x, weights], [wide], module=module, saved_inputs=x.num_bytes)
    for name, ins, out in (("mul.Tensor", [wide, x], wide), ("sum.dim_IntList", [wide], weights),
                           ("mul.Tensor", [wide, weights], x)):  # fmt: skip
        op.back(compute(f"aten::{name}", ins, [out], module=module))
    if wide != x:
        op.run("aten::_to_copy", [wide], [x], module=module)
        op.back(compute("aten::_to_copy", [x], [wide], module=module))


def _up_bias(tape: OpTape, shard: Shard, y: Tensor, local: int, module: str) -> None:
    """Each expert's bias, added in the product where the build does so; its gradient is a sum over rows."""
    op, biases = tape.op(), y.like(local, y.shape[1])
    op.parameter(f"{module}.bias", *biases.shape, group="expert_dp")
    if not shard.software.bias_in_product:
        op.run("aten::add.Tensor", [y, biases], [y], module=module)
    total = compute("aten::sum.dim_IntList", [y], [biases], module=module)
    op.back(replace(total, launches=local), "weight")
    _accumulate_each(op, shard, biases, module)


def _clamped_gate(tape: OpTape, x: Tensor, module: str) -> Tensor:
    """Both halves cut off and joined by ATen's kernels, then gated and weighted in one.

    The offset of one half is made a tensor on the GPU, a copy from memory that is not pinned, for which the
    host waits; so it does when the activation runs again.  Source: weighted_bias_quick_geglu_impl of
    megatron/core/fusions/fused_bias_geglu.py.
    """
    op, rows, width = tape.op(), x.shape[0], x.shape[1] // 2
    half, weights = x.like(rows, width), x.like(rows, 1)
    for _ in range(2):
        op.run("aten::clamp", [half], [half], op_class="copy", module=module)
    op.run("aten::cat", [half, half], [x], module=module, saved_outputs=x.num_bytes)
    op.launch(TapedLaunch(KernelLaunch(HOST_SYNC, module=module)))
    op.run("swiglu_fwd", [x, weights], [half], module=module, saved_inputs=x.num_bytes)
    op.back(compute("swiglu_bwd", [half, x, weights], [x], module=module))
    op.back(compute("aten::sum.dim_IntList", [half, x], [weights], module=module))
    for _ in range(2):
        op.back(compute("aten::where", [half, half], [half], op_class="copy", module=module))
    op.back(compute("aten::cat", [half, half], [x], module=module))
    return half


def _weighted_bias(tape: OpTape, shard: Shard, y: Tensor, local: int, module: str) -> None:
    """Each expert's bias times a row's weight, expert by expert.

    Rows were weighted before the product, which leaves the bias out (TEGroupedMLP of
    megatron/core/transformer/moe/experts.py).
    """
    op, biases, weights = tape.op(), y.like(local, y.shape[1]), y.like(y.shape[0], 1, dtype="float32")
    op.parameter(f"{module}.bias", *biases.shape, group="expert_dp")
    for name, ins in (("mul.Tensor", [biases, weights]), ("add.Tensor", [y, y]), ("cat", [y])):
        step = compute(f"aten::{name}", ins, [y], module=module)
        op.launch(TapedLaunch(replace(step, launches=1 if name == "cat" else local)))
    gradients = (
        ("mul.Tensor", [y, weights], y, "weight"), ("sum.dim_IntList", [y], biases, "weight"),
        ("mul.Tensor", [y, biases], y, "input"), ("sum.dim_IntList", [y], weights, "input"),
    )  # fmt: skip
    for name, ins, out, role in gradients:
        step = compute(f"aten::{name}", ins, [out], module=module)
        op.back(replace(step, launches=local), "weight" if role == "weight" else "input")
    # Rows were split by expert; their gradients are joined.
    op.back(compute("aten::cat", [y], [y], module=module), "input")
    _accumulate_each(op, shard, biases, module)


def _accumulate_each(op: Op, shard: Shard, biases: Tensor, module: str) -> None:
    """Each expert's bias is a parameter (Transformer Engine's GroupedLinear): its gradient is added alone."""
    op.accumulate(biases.shape, shard.dtype, shard.main_grad_dtype, module)
    op.late[-1] = replace(op.late[-1], kernel=replace(op.late[-1].kernel, launches=biases.shape[0]))


def _pad(tape: OpTape, x: Tensor, module: str) -> None:
    """Rows of each expert to a multiple of what fp8 products take, or back: a copy of all of them."""
    op = tape.op()
    op.run("moe_fp8_pad", [x], [x], op_class="copy", module=module)
    op.back(compute("moe_fp8_pad", [x], [x], op_class="copy", module=module))


def _gate(tape: OpTape, shard: Shard, x: Tensor, module: str) -> None:
    """A weight between 0 and 1 for the shared experts' output."""
    op, score = tape.op(), x.like(x.shape[0], 1)
    flops = 2 * x.numel
    op.run("aten::mm", [x, x.like(x.shape[-1], 1)], [score], op_class="gemm", flops=flops, module=module)
    op.run("aten::mul.Tensor", [x, score], [x], module=module, saved_inputs=x.num_bytes)
    op.parameter(f"{module}.gate.weight", 1, x.shape[-1], tp_duplicated=shard.sequence_parallel)
    op.back(compute("aten::mul.Tensor", [x, score], [x], module=module))
    op.back(compute("aten::mm", [score, x], [x.like(1, x.shape[-1])], op_class="gemm", flops=flops,
                    module=module), "weight")  # fmt: skip


def _multiply_adds(model: ModelSpec, index: int, seq: int, causal_once: bool) -> float:
    del index, seq, causal_once
    moe = model.moe
    assert moe is not None
    width = (moe.latent or model.hidden) * moe.top_k * moe.ffn + model.hidden * moe.shared_ffn
    return (3 if model.gated else 2) * width + model.hidden * (moe.num_experts + 2 * moe.latent)


def _check(model: ModelSpec, where: str) -> None:
    moe = model.moe
    if moe is None:
        return
    if moe.top_k > moe.num_experts:
        raise InputError(
            f"{where}.moe.top_k: {moe.top_k} of {moe.num_experts} experts; nearest: {moe.num_experts}"
        )
    if model.layer_pattern and (moe.first_layer, moe.every) != (0, 1):
        raise InputError(
            f"{where}.moe: model.layer_pattern says which layers have experts, not first_layer or every"
        )
    if moe.first_layer >= model.layers:
        raise InputError(
            f"{where}.moe.first_layer: {moe.first_layer} of {model.layers} layers, none has experts; nearest:"
            f" {model.layers - 1}"
        )
    groups, chosen = moe.num_groups, moe.top_groups
    if groups:
        multiple(f"{where}.moe.num_experts", moe.num_experts, "num_groups", groups)
        least = -(-moe.top_k * groups // moe.num_experts)
        if not least <= chosen <= groups:
            near = min(max(chosen, least), groups)
            raise InputError(
                f"{where}.moe.top_groups: {moe.top_k} experts from {chosen} of {groups} groups of"
                f" {moe.num_experts // groups}; nearest: {near}"
            )
    elif chosen:
        raise InputError(f"{where}.moe.top_groups: {chosen} without num_groups; nearest: 0")
    if moe.load > moe.num_experts / moe.top_k:
        raise InputError(
            f"{where}.moe.load: an expert gets each token at most once, {moe.num_experts / moe.top_k:g} times"
            f" the mean, not {moe.load:g}; nearest: {moe.num_experts / moe.top_k:g}"
        )


register(
    LayerBlock(
        "experts", "feed_forward", _experts, _multiply_adds, key="moe", spec=MoeSpec,
        is_in=ModelSpec.has_experts, check=_check, adds_bias=False, symbol="E",
    )
)  # fmt: skip
