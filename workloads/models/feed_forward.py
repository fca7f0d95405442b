"""Feed-forward blocks: dense, gated, and experts (arXiv 2211.15841, 2101.03961)."""

from __future__ import annotations

from dataclasses import replace

from workloads.models.elementary import activation
from workloads.models.linear import Linear, column_parallel, row_parallel
from workloads.models.local import Shard
from workloads.models.spec import ModelSpec, MoeSpec
from workloads.models.tape import Launch, Tape
from workloads.models.tensors import Tensor, collective, compute


def feed_forward(
    tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, ffn: int = 0
) -> Tensor:
    """``x [tokens, hidden]`` to the same, bias left for the residual sum."""
    width = ffn or model.ffn
    wide = 2 * width if model.gated else width
    up = Linear(f"{module}.linear_fc1", bias=model.bias, bias_apart=False)
    hidden = column_parallel(tape, shard, x, wide, up)
    hidden = activation(tape, shard, model, hidden, module, bias=model.bias)
    down = Linear(f"{module}.linear_fc2", bias=model.bias, bias_apart=False)
    return row_parallel(tape, shard, hidden, model.hidden, down)


def experts(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> Tensor:
    """Router, dispatch, experts, combine, and the experts that every token passes."""
    moe = model.moe
    assert moe is not None
    routed = _route(tape, shard, moe, x, module)
    arrived = _dispatch(tape, shard, moe, x, routed, module)
    _grouped_experts(tape, shard, model, moe, arrived, module)
    _combine(tape, shard, moe, x, routed, module)
    if moe.shared_ffn:
        feed_forward(tape, shard, replace_bias(model), x, f"{module}.shared_experts", ffn=moe.shared_ffn)
        tape.run("aten::add.Tensor", [x, x], [x], module=module)
    return x


def replace_bias(model: ModelSpec) -> ModelSpec:
    """The model without biases: experts have none."""
    return model.model_copy(update={"bias": False}) if model.bias else model


def _route(tape: Tape, shard: Shard, moe: MoeSpec, x: Tensor, module: str) -> Tensor:
    """Scores in fp32, softmax, the best ``top_k``; the copies of tokens that follow, a row each."""
    tokens = x.shape[0]
    weight = Tensor((moe.num_experts, x.shape[-1]), "float32")
    scores = Tensor((tokens, moe.num_experts), "float32")
    router = f"{module}.router"
    flops = 2 * scores.numel * x.shape[-1]
    tape.run("aten::mm", [replace(x, dtype="float32"), weight], [scores], op_class="gemm", flops=flops,
             module=router, saved=x.num_bytes)  # fmt: skip
    tape.run("aten::_softmax", [scores], [scores], module=router, saved=scores.num_bytes)
    tape.run("aten::topk", [scores], [scores.like(tokens, moe.top_k)], module=router)
    tape.parameter(f"{router}.weight", *weight.shape, tp_duplicated=shard.sequence_parallel)
    group = tape.group().launches
    group.append(Launch(compute("aten::_softmax_backward_data", [scores, scores], [scores], module=router)))
    wide = replace(x, dtype="float32")
    for ins, out in (([scores, weight], wide), ([scores, wide], weight)):
        group.append(Launch(compute("aten::mm", ins, [out], op_class="gemm", flops=flops, module=router)))
    group.append(Launch(compute("aten::add.Tensor", [x, x], [x], module=router)))
    factor = moe.capacity_factor or 1.0
    return x.like(round(tokens * moe.top_k * factor), x.shape[-1])


def _dispatch(tape: Tape, shard: Shard, moe: MoeSpec, x: Tensor, routed: Tensor, module: str) -> Tensor:
    """Tokens to the ranks that hold their experts, sorted by expert."""
    group = tape.group().launches
    tape.run("moe_permute", [x], [routed], op_class="copy", module=module)
    back = [Launch(compute("moe_unpermute", [routed], [x], op_class="copy", module=module))]
    if shard.ep > 1:
        kernel = collective("all_to_all", routed, "ep", module=module)
        tape.launch(Launch(kernel))
        back.insert(0, Launch(kernel))
    # Without sequence parallelism every tensor-parallel rank has all tokens already.
    arrived = routed
    if shard.etp > 1 and shard.sequence_parallel:
        arrived = routed.like(routed.shape[0] * shard.etp, routed.shape[1])
        tape.launch(Launch(collective("all_gather", arrived, "etp", module=module)))
        back.insert(0, Launch(collective("reduce_scatter", arrived, "etp", module=module)))
    if moe.num_experts // shard.ep > 1 and shard.ep > 1:
        tape.run("moe_sort_chunks", [arrived], [arrived], op_class="copy", module=module)
        back.insert(
            0, Launch(compute("moe_sort_chunks", [arrived], [arrived], op_class="copy", module=module))
        )
    group.extend(back)
    return arrived.like(round(arrived.shape[0] * moe.load), arrived.shape[1])


def _grouped_experts(
    tape: Tape, shard: Shard, model: ModelSpec, moe: MoeSpec, x: Tensor, module: str
) -> Tensor:
    """Products over the local experts at once, each on its share of the tokens."""
    local = moe.num_experts // shard.ep
    width = moe.ffn // shard.etp
    wide = 2 * width if model.gated else width
    name = f"{module}.experts"
    hidden = _grouped(tape, shard, x, local, wide, f"{name}.linear_fc1")
    hidden = activation(tape, shard, replace_bias(model), hidden, name, bias=False)
    return _grouped(tape, shard, hidden, local, model.hidden, f"{name}.linear_fc2")


def _grouped(tape: Tape, shard: Shard, x: Tensor, local: int, out_features: int, module: str) -> Tensor:
    tokens, in_features = x.shape
    each = max(1, tokens // local)
    dtype = "float8_e4m3fn" if shard.fp8 else x.dtype
    a, b, c = (Tensor((local, *shape), dtype) for shape in (
        (each, in_features), (in_features, out_features), (each, out_features)
    ))  # fmt: skip
    y = Tensor((local, each, out_features), x.dtype)
    flops = 2 * local * each * in_features * out_features
    group = tape.group().launches
    name = "grouped_gemm"
    saved = x.num_bytes // 2 if shard.fp8 else x.num_bytes
    if shard.fp8:
        quantized = replace(x, dtype=dtype)
        tape.run("cast_transpose_fp8", [x], [quantized, quantized], op_class="elementwise", module=module)
        grad = x.like(tokens, out_features)
        wide = replace(grad, dtype=dtype)
        group.append(
            Launch(compute("cast_transpose_fp8", [grad], [wide, wide], op_class="elementwise", module=module))
        )
    tape.run(name, [a, b], [y], op_class="bgemm", flops=flops, module=module, saved=saved)
    group.append(
        Launch(
            compute(name, [c, b], [Tensor(a.shape, x.dtype)], op_class="bgemm", flops=flops, module=module)
        )
    )
    main_grad = Tensor((local, in_features, out_features), shard.main_grad_dtype)
    left = Tensor((local, in_features, each), dtype)
    kernel = compute(
        "grouped_wgrad_gemm_accum", [left, c], [main_grad], op_class="bgemm", flops=flops, module=module
    )
    group.append(Launch(replace(kernel, weight_gradient=True)))
    tape.parameter(f"{module}.weight", local, in_features, out_features, group="expert_dp")
    return x.like(tokens, out_features)


def _combine(tape: Tape, shard: Shard, moe: MoeSpec, x: Tensor, routed: Tensor, module: str) -> None:
    """Back to where the tokens came from, weighted and added up."""
    group = tape.group().launches
    arrived = routed
    back: list[Launch] = []
    if shard.etp > 1 and shard.sequence_parallel:
        arrived = routed.like(routed.shape[0] * shard.etp, routed.shape[1])
    if moe.num_experts // shard.ep > 1 and shard.ep > 1:
        tape.run("moe_sort_chunks", [arrived], [arrived], op_class="copy", module=module)
        back.insert(
            0, Launch(compute("moe_sort_chunks", [arrived], [arrived], op_class="copy", module=module))
        )
    if shard.etp > 1:
        what, reverse = ("reduce_scatter", "all_gather") if shard.sequence_parallel else ("all_reduce", "")
        tape.launch(Launch(collective(what, arrived, "etp", module=module)))
        if reverse:
            back.insert(0, Launch(collective(reverse, arrived, "etp", module=module)))
    if shard.ep > 1:
        kernel = collective("all_to_all", routed, "ep", module=module)
        tape.launch(Launch(kernel))
        back.insert(0, Launch(kernel))
    tape.run("moe_unpermute", [routed], [x], op_class="copy", module=module, saved=routed.num_bytes)
    back.insert(0, Launch(compute("moe_permute", [x, routed], [routed], op_class="copy", module=module)))
    group.extend(back)
