"""How features meet: products of all pairs (DLRM), crosses (DCN), elementwise products (NCF), attention."""

from __future__ import annotations

from simcore.errors import InputError
from workloads.models.autocast import narrowed
from workloads.models.frozen import Layers, Width, WidthOrNone
from workloads.models.kinds.features import gathered, joined, summed, whole_batch
from workloads.models.kinds.tables import looked_up
from workloads.models.linear import Linear, linear
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.lookups import leaves_rows
from workloads.models.op_tape import TapedLaunch
from workloads.models.tensors import Tensor, collective, compute


class DotSpec(BlockSpec):
    """Products of all pairs of features and rows, behind the features (arXiv 1906.00091).

    ``pad``: zeros that follow, so that the width is a multiple.
    """

    pad: Width = 1


def _dot(at: Passage, spec: DotSpec) -> None:
    x = at.x
    width = x.shape[-1]
    rows = looked_up(at, dim=width)
    module, shard = at.module, at.shard
    count = rows.shape[1] + 1
    rows, x = (narrowed(at.tape, shard, one, module) for one in (rows, x))
    every = x.like(at.batch, count, width)
    pairs = x.like(at.batch, count, count)
    out = width + count * (count - 1) // 2
    y = x.like(at.batch, -(-out // spec.pad) * spec.pad)
    op, flops = at.tape.op(), 2 * at.batch * count * count * width
    if shard.software.fused_interaction:
        op.run("dot_interaction_fwd", [x, rows], [y], op_class="reduction", flops=flops, module=module,
               saved_inputs=every.num_bytes)  # fmt: skip
        op.back(compute("dot_interaction_bwd", [y, every], [x, rows], op_class="reduction",
                        flops=2 * flops, module=module))  # fmt: skip
    else:
        op.run("aten::cat", [x, rows], [every], module=module)
        op.run("aten::bmm", [every, x.like(at.batch, width, count)], [pairs], op_class="bgemm", flops=flops,
               module=module, saved_inputs=every.num_bytes)  # fmt: skip
        flat = x.like(at.batch, count * (count - 1) // 2)
        op.run("aten::index.Tensor", [pairs], [flat], op_class="elementwise", module=module)
        op.run("aten::cat", [x, flat], [y], module=module)
        op.back(compute("aten::split_copy", [y], [x, flat], op_class="copy", module=module))
        op.back(compute("aten::index_put_", [flat], [pairs], op_class="copy", module=module))
        for _ in range(2):
            op.back(
                compute("aten::bmm", [pairs, every], [every], op_class="bgemm", flops=flops, module=module)
            )
        op.back(compute("aten::add.Tensor", [every, every], [every], module=module))
        op.back(compute("aten::add.Tensor", [x, x], [x], module=module))
    at.x = y


class CrossSpec(BlockSpec):
    """``layers`` of x0 * (V U x + b) + x over features and rows; ``rank`` of V and U, 0: one square matrix.

    DCN-v2 (arXiv 2008.13535), its low-rank form.
    """

    layers: Layers = 3
    rank: WidthOrNone = 512

    @property
    def times(self) -> int:
        """Each layer is a part of its own."""
        return self.layers


def _cross(at: Passage, spec: CrossSpec) -> None:
    tape, shard, module = at.tape, at.shard, at.module
    if at.index == 0:
        joined(at, looked_up(at), in_place=True)
        at.beside["x0"] = [at.x]
    x = narrowed(tape, shard, at.x, module)
    y = gathered(at, x, module) if shard.tp > 1 else x
    if spec.rank:
        y = linear(tape, shard, y, spec.rank // shard.tp, Linear(f"{module}.u", bias=False, fp8=False))
        y = linear(tape, shard, y, x.shape[1], Linear(f"{module}.v", bias=shard.tp == 1, fp8=False))
        if shard.tp > 1:
            summed(at, y, f"{module}.v")
    else:
        y = linear(tape, shard, y, x.shape[1] // shard.tp, Linear(f"{module}.w", bias=True, fp8=False))
        whole_batch(at, y)
    op = tape.op()
    if shard.software.fused_interaction:
        op.run("fused_mul_fma3", [x, x, x], [x], op_class="elementwise", module=module,
               saved_inputs=2 * x.num_bytes)  # fmt: skip
        op.back(compute("fused_mul_fma3_bwd", [x, x, x], [x, x], op_class="elementwise", module=module))
    else:
        op.run("aten::mul.Tensor", [x, x], [x], module=module, saved_inputs=2 * x.num_bytes)
        op.run("aten::add.Tensor", [x, x], [x], module=module)
        for name, ins in (("mul", 2), ("mul", 2), ("add", 2)):
            op.back(compute(f"aten::{name}.Tensor", [x] * ins, [x], module=module))
    at.x = x


class GmfSpec(BlockSpec):
    """NeuMF (arXiv 1708.05031): half of the rows, ``width`` wide, multiplied, the others through a
    network.
    """

    width: Width = 64
    widths: tuple[Width, ...] = (256, 128, 64)


def _gmf(at: Passage, spec: GmfSpec) -> None:
    rows = looked_up(at)
    beside = rows.shape[1] - 2 * spec.width
    if beside <= 0:
        raise InputError(f"{at.module}: width={spec.width} leaves nothing of {rows.shape[1]} columns")
    tape, shard, module = at.tape, at.shard, at.module
    one = rows.like(at.batch, spec.width)
    op = tape.op()
    op.run("aten::mul.Tensor", [one, one], [one], module=module, saved_inputs=2 * one.num_bytes)
    for _ in range(2):
        op.back(compute("aten::mul.Tensor", [one, one], [one], module=module))
    x = rows.like(at.batch, beside)
    op = tape.op()
    op.run("aten::cat", [x], [x], module=module)
    op.back(compute("aten::split_copy", [x], [x], op_class="copy", module=module))
    for number, width in enumerate(spec.widths):
        y = linear(tape, shard, x, width, Linear(f"{module}.mlp.{number}", bias=True, fp8=False))
        op = tape.op()
        op.run("aten::relu", [y], [y], module=module, saved_outputs=y.num_bytes)
        op.back(compute("aten::threshold_backward", [y, y], [y], module=module))
        x = y
    both = x.like(at.batch, spec.width + x.shape[1])
    op = tape.op()
    op.run("aten::cat", [one, x], [both], module=module)
    op.back(compute("aten::split_copy", [both], [one, x], op_class="copy", module=module))
    at.x = both


class TokensSpec(BlockSpec):
    """Features and rows as ``tokens`` of ``width``, for layers of attention; 0 tokens: one for each.

    They are brought to their width by a layer, or added up (``folds``).
    """

    width: Width = 128
    tokens: WidthOrNone = 0
    folds: bool = False


def _tokens(at: Passage, spec: TokensSpec) -> None:
    shard, module = at.shard, at.module
    if spec.folds:
        fold(at, spec.tokens * spec.width)
        at.x = at.x.like(at.batch, spec.tokens, spec.width)
        return
    joined(at, looked_up(at))
    count = spec.tokens or max(1, at.x.shape[1] // spec.width)
    narrow = max(1, at.x.shape[1] // count)
    x = at.x.like(at.batch * count, narrow)
    y = linear(at.tape, shard, x, spec.width, Linear(f"{module}.proj", bias=True, fp8=False))
    at.x = Tensor((at.batch, count, spec.width), y.dtype)


class FoldSpec(BlockSpec):
    """Features and rows added up, part by part, to ``width``."""

    width: Width


def _fold(at: Passage, spec: FoldSpec) -> None:
    fold(at, spec.width)


def fold(at: Passage, width: int) -> None:
    """One pass that reads all that there is and writes ``width``."""
    wide = [looked_up(at)] if leaves_rows(at) else []
    if at.x.numel:
        wide.append(at.x)
    out = wide[0].like(at.batch, width)
    op = at.tape.op()
    op.run("fold_features", wide, [out], op_class="reduction", module=at.module)
    op.back(compute("fold_features_bwd", [out], wide, op_class="elementwise", module=at.module))
    at.x = out


class ExpertsMlpSpec(BlockSpec):
    """Of ``experts`` networks each sample passes ``active``; widths of their layers."""

    experts: Layers = 16
    active: Layers = 2
    widths: tuple[Width, ...] = (1024, 1024)


def _experts(at: Passage, spec: ExpertsMlpSpec) -> None:
    """A router, samples to their experts' ranks, the networks, and back."""
    x = at.x.like(at.batch, at.x.numel // at.batch)
    tape, shard, module = at.tape, at.shard, at.module
    linear(tape, shard, x, spec.experts, Linear(f"{module}.router", bias=False, fp8=False))
    sent = x.like(at.batch * spec.active, x.shape[1])
    if shard.ep > 1:
        op = tape.op()
        op.launch(TapedLaunch(collective("all_to_all", sent, "ep", module=module)))
        op.back(collective("all_to_all", sent, "ep", module=module))
    local = max(1, spec.experts // shard.ep)
    y = sent
    for number, width in enumerate(spec.widths):
        each = y.like(local, max(1, y.shape[0] // local), y.shape[1])
        out = y.like(local, each.shape[1], width)
        weight = y.like(local, y.shape[1], width)
        op, flops = tape.op(), 2 * y.shape[0] * y.shape[1] * width
        op.parameter(f"{module}.experts.{number}.weight", *weight.shape, group="expert_dp")
        op.run("aten::bmm", [each, weight], [out], op_class="bgemm", flops=flops, module=module,
               saved_inputs=each.num_bytes, saved_for="weight")  # fmt: skip
        op.back(
            compute("aten::bmm", [out, weight], [each], op_class="bgemm", flops=flops, module=module), "input"
        )
        op.back(
            compute("aten::bmm", [each, out], [weight], op_class="bgemm", flops=flops, module=module),
            "weight",
        )
        op.accumulate(weight.shape, y.dtype, shard.main_grad_dtype, module)
        op = tape.op()
        y = out.like(y.shape[0], width)
        op.run("aten::relu", [y], [y], module=module, saved_outputs=y.num_bytes)
        op.back(compute("aten::threshold_backward", [y, y], [y], module=module))
    if shard.ep > 1:
        op = tape.op()
        op.launch(TapedLaunch(collective("all_to_all", y, "ep", module=module)))
        op.back(collective("all_to_all", y, "ep", module=module))
    op, out = tape.op(), y.like(at.batch, y.shape[1])
    op.run("aten::sum.dim_IntList", [y], [out], op_class="reduction", module=module)
    op.back(compute("aten::mul.Tensor", [out], [y], module=module))
    at.x = out


def _check_experts(spec: ExpertsMlpSpec, where: str) -> None:
    if spec.active > spec.experts:
        raise InputError(f"{where}.active: {spec.active} of {spec.experts} experts; nearest: {spec.experts}")


register(BlockKind("dot", DotSpec, _dot))
register(BlockKind("cross", CrossSpec, _cross, splits=True))
register(BlockKind("gmf", GmfSpec, _gmf))
register(BlockKind("fold", FoldSpec, _fold))
register(BlockKind("tokens", TokensSpec, _tokens))
register(BlockKind("experts", ExpertsMlpSpec, _experts, "expert", check=_check_experts))
