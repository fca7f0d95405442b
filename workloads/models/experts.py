"""Mixtures of experts: router, dispatch, grouped products, combination (arXiv 2101.03961, 2211.15841).

Note [Dispatch]
    Megatron-Core's all_to_all dispatcher (``token_dispatcher.py``): tokens are sorted by expert, exchanged
    over "ep", gathered over "etp" (a tensor-parallel rank holds a slice of every expert), sorted by local
    expert, worked on, and sent back the same way.  Every rank waits for the one with the most tokens:
    its tokens are counted.
"""

from __future__ import annotations

import math
from dataclasses import replace

from workloads.models.elementary import activation
from workloads.models.feed_forward import feed_forward
from workloads.models.fp8 import casts, operand
from workloads.models.local import Shard
from workloads.models.pieces import Kernel
from workloads.models.spec import ModelSpec, MoeSpec
from workloads.models.tape import Launch, Op, Tape
from workloads.models.tensors import Tensor, collective, compute


def experts(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> Tensor:
    """Router, dispatch, experts, combine, and the experts that every token passes."""
    moe = model.moe
    assert moe is not None
    plain = model.model_copy(update={"bias": False}) if model.bias else model
    sent = routed_tokens(moe, x.shape[0])
    routed = x.like(sent, x.shape[-1])
    arrived = x.like(round(sent * rank_load(moe, shard.ep)), x.shape[-1])
    _route(tape, shard, moe, x, module)
    gathered = _dispatch(tape, shard, moe, x, routed, arrived, module)
    _grouped_experts(tape, shard, plain, moe, gathered, module)
    _combine(tape, shard, moe, x, routed, arrived, module)
    if moe.shared_ffn:
        shared = f"{module}.shared_experts"
        # The gradient of the block's input is a sum.
        tape.op().back(compute("aten::add.Tensor", [x, x], [x], module=shared), "input")
        feed_forward(tape, shard, plain, x, shared, ffn=moe.shared_ffn)
        if moe.shared_gate:
            _gate(tape, shard, x, shared)
        tape.op().run("aten::add.Tensor", [x, x], [x], module=module)
    return x


def routed_tokens(moe: MoeSpec, tokens: int) -> int:
    """Rows that leave a rank: a copy of each token for each of its experts, or full capacities, padded."""
    if moe.capacity_factor is None:
        return tokens * moe.top_k
    return moe.num_experts * math.ceil(tokens * moe.top_k * moe.capacity_factor / moe.num_experts)


def rank_load(moe: MoeSpec, ep: int) -> float:
    """Tokens of the fullest rank over the mean, when its fullest expert has ``moe.load`` times the mean.

    The others of the same rank have what the rest of the experts have: (E - load) / (E - 1) each.  With
    capacities no expert has more than another.
    """
    local, total = moe.num_experts // ep, moe.num_experts
    if moe.capacity_factor is not None or total == 1:
        return 1.0
    return (moe.load + (local - 1) * (total - moe.load) / (total - 1)) / local


def _route(tape: Tape, shard: Shard, moe: MoeSpec, x: Tensor, module: str) -> None:
    """Scores in fp32, softmax, the best ``top_k``."""
    tokens, op, router = x.shape[0], tape.op(), f"{module}.router"
    wide = replace(x, dtype="float32")
    weight = Tensor((x.shape[-1], moe.num_experts), "float32")
    scores = Tensor((tokens, moe.num_experts), "float32")
    best = scores.like(tokens, moe.top_k)
    flops = 2 * scores.numel * x.shape[-1]
    op.run("aten::mm", [wide, weight], [scores], op_class="gemm", flops=flops, module=router,
           saved_inputs=x.num_bytes, saved_for="weight")  # fmt: skip
    op.run("aten::_softmax", [scores], [scores], module=router, saved_outputs=scores.num_bytes)
    op.run("aten::topk", [scores], [best], op_class="reduction", module=router)
    op.parameter(f"{router}.weight", moe.num_experts, x.shape[-1], tp_duplicated=shard.sequence_parallel)
    op.back(compute("aten::_softmax_backward_data", [scores, scores], [scores], module=router))
    turned = weight.like(*reversed(weight.shape))
    op.back(
        compute("aten::mm", [scores, turned], [wide], op_class="gemm", flops=flops, module=router), "input"
    )
    ins = [scores.like(*reversed(scores.shape)), wide]
    op.back(compute("aten::mm", ins, [turned], op_class="gemm", flops=flops, module=router), "weight")
    op.back(compute("aten::add.Tensor", [x, x], [x], module=router), "input")
    op.accumulate(turned.shape, "float32", shard.main_grad_dtype, router)


def _exchanged(shard: Shard, moe: MoeSpec, arrived: Tensor, module: str) -> tuple[list[Kernel], Tensor]:
    """From sorted tokens to the local experts: kernels, and what is there then."""
    steps: list[Kernel] = []
    if shard.ep > 1:
        steps.append(collective("all_to_all", arrived, "ep", module=module))
    # Without sequence parallelism every tensor-parallel rank has all tokens already.
    if shard.etp > 1 and shard.sequence_parallel:
        arrived = arrived.like(arrived.shape[0] * shard.etp, arrived.shape[1])
        steps.append(collective("all_gather", arrived, "etp", module=module))
    if moe.num_experts // shard.ep > 1 and shard.ep > 1:
        steps.append(compute("moe_sort_chunks", [arrived], [arrived], op_class="copy", module=module))
    return steps, arrived


def _turned_back(steps: list[Kernel]) -> list[Kernel]:
    """The way back from the experts: sums where there were gathers."""
    back = []
    for step in reversed(steps):
        if step.collective == "all_gather":
            name = "reduce_scatter"
            step = replace(step, name=f"nccl::{name}", collective=name, reduce_op="sum")
        back.append(step)
    return back


def _dispatch(
    tape: Tape, shard: Shard, moe: MoeSpec, x: Tensor, routed: Tensor, arrived: Tensor, module: str
) -> Tensor:
    """Tokens to the ranks that hold their experts, sorted by expert."""
    op = tape.op()
    steps, gathered = _exchanged(shard, moe, arrived, module)
    for kernel in (*_sorting(shard, "moe_permute", [x], [routed], module), *steps):
        op.launch(Launch(kernel))
    for kernel in _turned_back(steps):
        op.back(kernel)
    for kernel in _sorting(shard, "moe_unpermute", [routed], [x], module):
        op.back(kernel)
    return gathered


def _combine(
    tape: Tape, shard: Shard, moe: MoeSpec, x: Tensor, routed: Tensor, arrived: Tensor, module: str
) -> None:
    """Back to where the tokens came from, weighted and added up."""
    op = tape.op()
    steps, gathered = _exchanged(shard, moe, arrived, module)
    back = _turned_back(steps)
    if shard.etp > 1 and not shard.sequence_parallel:
        back.insert(0, collective("all_reduce", gathered, "etp", module=module))
    for kernel in back:
        op.launch(Launch(kernel))
    for kernel in _sorting(shard, "moe_unpermute", [routed], [x], module):
        op.launch(Launch(kernel, saved_inputs=routed.num_bytes))
        routed = x  # a second kernel keeps nothing more
    for kernel in _sorting(shard, "moe_permute", [x], [arrived], module):
        op.back(kernel)
    for kernel in steps:
        op.back(kernel)


def _sorting(shard: Shard, name: str, ins: list[Tensor], outs: list[Tensor], module: str) -> list[Kernel]:
    """Sorting tokens by expert or back in one kernel, or by index with a weighting apart."""
    if shard.software.moe_permute_fusion:
        return [compute(name, ins, outs, op_class="copy", module=module)]
    rows = max(*ins, *outs, key=lambda tensor: tensor.numel)
    index = "aten::index_select" if name == "moe_permute" else "aten::scatter_add_"
    weighted = compute("aten::mul.Tensor", [rows], [rows], module=module)
    moved = compute(index, ins, outs, op_class="copy", module=module)
    return [moved, weighted] if name == "moe_permute" else [weighted, moved]


def _grouped_experts(
    tape: Tape, shard: Shard, model: ModelSpec, moe: MoeSpec, x: Tensor, module: str
) -> Tensor:
    """Products over the local experts at once, each on its share of the tokens."""
    local = moe.num_experts // shard.ep
    width = moe.ffn // shard.etp
    name = f"{module}.experts"
    hidden = _grouped(tape, shard, x, local, 2 * width if model.gated else width, f"{name}.linear_fc1")
    hidden = activation(tape, shard, model, hidden, name, bias=False)
    return _grouped(tape, shard, hidden, local, model.hidden, f"{name}.linear_fc2")


def _grouped(tape: Tape, shard: Shard, x: Tensor, local: int, out_features: int, module: str) -> Tensor:
    tokens, in_features = x.shape
    y, op, fp8 = x.like(tokens, out_features), tape.op(), shard.fp8
    each = max(1, tokens // local)
    if fp8:
        for kernel in casts(shard, x, module):
            op.launch(Launch(kernel))
        for kernel in casts(shard, y, module):
            op.back(kernel)
    saved = x.num_bytes // (2 if fp8 else 1)
    op.parameter(f"{module}.weight", local, out_features, in_features, group="expert_dp")
    wide = x.like(local, in_features, out_features)
    main_grad = Tensor((local, out_features, in_features), shard.main_grad_dtype)
    ins, dy = x.like(local, each, in_features), x.like(local, each, out_features)
    _products(shard, op, ins, wide, dy, module, "", saved)
    turned = wide.like(local, out_features, in_features)
    _products(shard, op, dy, turned, ins, module, "input")
    _products(shard, op, dy.like(local, out_features, each), ins, main_grad, module, "weight")
    return y


def _products(
    shard: Shard, op: Op, a: Tensor, b: Tensor, out: Tensor, module: str, role: str, saved: int = 0
) -> None:
    """One grouped kernel, or one for each expert; forward for role ""."""
    local, fp8 = a.shape[0], shard.fp8
    count, name, op_class = 1, "grouped_gemm", "bgemm"
    if not shard.software.moe_grouped_gemm:
        count, name, op_class = local, "aten::mm", "gemm"
        a, b, out = (tensor.like(*tensor.shape[1:]) for tensor in (a, b, out))
    if role == "weight" and shard.software.grad_accumulation_fusion:
        name = "grouped_wgrad_gemm_accum" if count == 1 else "wgrad_gemm_accum"
    kernel = compute(
        name, [operand(a, fp8), operand(b, fp8)], [out], op_class=op_class,
        flops=2 * a.numel * b.shape[-1], module=module,
    )  # fmt: skip
    for number in range(count):
        if role == "":
            op.launch(Launch(kernel, role="weight", saved_inputs=0 if number else saved))
        else:
            op.back(kernel, "weight" if role == "weight" else "input")


def _gate(tape: Tape, shard: Shard, x: Tensor, module: str) -> None:
    """A weight between 0 and 1 for the shared experts' output."""
    op, score = tape.op(), x.like(x.shape[0], 1)
    flops = 2 * x.numel
    op.run("aten::mm", [x, x.like(x.shape[-1], 1)], [score], op_class="gemm", flops=flops, module=module)
    op.run("aten::mul.Tensor", [x, score], [x], module=module, saved_inputs=x.num_bytes)
    op.parameter(f"{module}.gate.weight", 1, x.shape[-1], tp_duplicated=shard.sequence_parallel)
    op.back(compute("aten::mul.Tensor", [x, score], [x], module=module))
    op.back(compute("aten::mm", [score, x], [x.like(1, x.shape[-1])], op_class="gemm", flops=flops,
                    module=module), "weight")  # fmt: skip
