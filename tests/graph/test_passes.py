"""Kernel mappings on small hand-written programs: what is fused, what it moves, what stays in order."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings

from simcore.errors import InputError
from simcore.graph import (
    EdgeKind,
    GraphBuilder,
    apply_kernels,
    external,
    graph_hash,
    program_edges,
    resolve_waits,
    verify,
)
from simcore.graph.passes import MAPPINGS
from simcore.memory import peak_memory
from tests.graph.examples import graphs, two_stages

B, S, H = 2, 128, 64  # batch, sequence, hidden: activations of B * S * H fp32 elements
ACT = [S, B, H]
ACT_BYTES = 4 * S * B * H


class Writer:
    """Writes aten ops with shapes, bytes and data edges, as a recorder does."""

    def __init__(self, template, *, layer=0, phase="fwd", dtype="float32"):
        self.template, self.layer, self.phase, self.dtype = template, layer, phase, dtype

    def op(self, name, inputs, outputs, *, data=(), alloc=True, read=None, **columns):
        width = {"float32": 4, "bfloat16": 2}[self.dtype]
        written = width * sum(math.prod(shape) for shape in outputs)
        if read is None:
            read = width * sum(math.prod(shape) for shape in inputs)
        return self.template.compute(
            f"aten::{name}",
            data=data,
            layer=self.layer,
            phase=columns.pop("phase", self.phase),
            dtype=self.dtype,
            in_shapes=json.dumps(inputs, separators=(",", ":")),
            out_shapes=json.dumps(outputs, separators=(",", ":")),
            bytes_read=read,
            bytes_written=written,
            alloc_bytes=written if alloc else 0,
            **columns,
        )


def single(template_ops, name="fwd"):
    """A one-rank graph of one template; ``template_ops(writer, template)`` writes it."""
    build = GraphBuilder(1)
    template = build.template(name)
    template_ops(Writer(template, phase="fwd" if name == "fwd" else name), template)
    build.program([0], [(template, 0, 0)])
    return build.build()


def names(graph):
    return [name.removeprefix("aten::") for name in graph.ops.name.tolist()]


def row_of(graph, name):
    return graph.ops.name.tolist().index(name)


def column(graph, name, op):
    return getattr(graph.ops, name)[row_of(graph, op)]


def bias_dropout_add(writer, template):
    gemm = writer.op("mm.default", [[S * B, H], [H, H]], [[S * B, H]], flops=2 * S * B * H * H)
    bias = writer.op("add.Tensor", [ACT, [H]], [ACT], data=(gemm,))
    dropped = writer.op("native_dropout.default", [ACT], [ACT, ACT], data=(bias,))
    template.free(dropped, ACT_BYTES, owner=bias)
    out = writer.op("add.Tensor", [ACT, ACT], [ACT], data=(dropped,))
    template.free(out, ACT_BYTES, owner=dropped)
    writer.op("native_layer_norm.default", [ACT, [H], [H]], [ACT], data=(out,))


def test_bias_dropout_add_is_one_kernel_that_moves_its_border():
    graph = apply_kernels(single(bias_dropout_add), "megatron")
    assert names(graph) == ["mm.default", "bias_dropout_add_fwd", "native_layer_norm.default"]
    # Read: the GEMM's result, the bias, the residual.  Written: the sum and the mask (kept for backward).
    assert column(graph, "bytes_read", "bias_dropout_add_fwd") == 2 * ACT_BYTES + 4 * H
    assert column(graph, "bytes_written", "bias_dropout_add_fwd") == 2 * ACT_BYTES
    # Three storages of an activation were made, the dropped-out sum died inside (its mask is the other half).
    assert column(graph, "alloc_bytes", "bias_dropout_add_fwd") == 2 * ACT_BYTES
    assert json.loads(column(graph, "in_shapes", "bias_dropout_add_fwd")) == [ACT, [H], ACT]
    assert column(graph, "op_class", "bias_dropout_add_fwd") == "elementwise"


def test_edges_follow_the_kernel():
    graph = apply_kernels(single(bias_dropout_add), "megatron")
    edges = graph.edges
    assert list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)) == [(0, 1), (1, 2)]


def test_storage_inside_a_kernel_never_appears():
    plain = single(bias_dropout_add)
    fused = apply_kernels(plain, "megatron")
    # Plain, at the second add: GEMM result, dropout's two outputs, its own: 4 activations (bias sum freed).
    # At the norm: GEMM result, mask, sum, norm: 4.  At dropout: GEMM, bias sum and two outputs: 4.
    assert peak_memory(plain)[0].activations == 4 * ACT_BYTES
    # Fused, at the norm: GEMM result, mask, sum, norm.
    assert peak_memory(fused)[0].activations == 4 * ACT_BYTES
    ends = [int(graph.ops.alloc_bytes.sum() - graph.frees.num_bytes.sum()) for graph in (plain, fused)]
    assert ends[0] == ends[1]


def test_names_alone_do_not_match():
    def unrelated(writer, template):
        # add, dropout, add in a row, but the second add does not read the dropout's result.
        one = writer.op("add.Tensor", [ACT, [H]], [ACT])
        writer.op("native_dropout.default", [ACT], [ACT, ACT], data=(one,))
        writer.op("add.Tensor", [ACT, ACT], [ACT])

    graph = single(unrelated)
    assert names(apply_kernels(graph, "megatron")) == names(graph)


def test_layers_are_not_fused_together():
    def two_layers(writer, template):
        dropped = writer.op("native_dropout.default", [ACT], [ACT, ACT])
        Writer(template, layer=1).op("add.Tensor", [ACT, ACT], [ACT], data=(dropped,))

    graph = single(two_layers)
    assert names(apply_kernels(graph, "megatron")) == names(graph)


def test_a_collective_in_between_stops_a_match():
    def interrupted(writer, template):
        dropped = writer.op("native_dropout.default", [ACT], [ACT, ACT])
        template.collective("all_reduce", "tp", 64, stream="compute")
        writer.op("add.Tensor", [ACT, ACT], [ACT], data=(dropped,))

    build = GraphBuilder(2)
    build.group("tp", dims=((2, 1),))
    template = build.template("fwd")
    interrupted(Writer(template), template)
    build.program([0, 1], [(template, 0, 0)])
    graph = build.build()
    assert len(apply_kernels(graph, "megatron").ops) == len(graph.ops)


def weight_gradient(*, overlapped):
    """Backward of a linear layer: input gradient, its all_reduce, weight gradient into main_grad."""
    build = GraphBuilder(2)
    build.group("tp", dims=((2, 1),))
    template = build.template("bwd")
    writer = Writer(template, phase="bwd")
    grad = writer.op("mm.default", [[S, H], [H, H]], [[S, H]], flops=2 * S * H * H)
    stream = "tp" if overlapped else "compute"
    reduced = template.collective("all_reduce", "tp", 4 * S * H, stream=stream, waits=(grad,), data=(grad,))
    weight = writer.op("mm.default", [[H, S], [S, H]], [[H, H]], flops=2 * S * H * H)
    waits = (reduced,) if overlapped else ()
    added = template.compute(
        "aten::add_.Tensor",
        phase="bwd",
        layer=0,
        dtype="float32",
        waits=waits,
        data=(weight,),
        in_shapes=f"[[{H},{H}],[{H},{H}]]",
        out_shapes=f"[[{H},{H}]]",
        bytes_read=8 * H * H,
        bytes_written=4 * H * H,
    )
    template.free(added, 4 * H * H, owner=weight)
    writer.op("native_layer_norm_backward.default", [[S, H]], [[S, H]], data=(reduced,))
    build.program([0, 1], [(template, 0, 0)])
    return build.build()


def test_the_weight_gradient_gemm_accumulates_itself():
    graph = apply_kernels(weight_gradient(overlapped=False), "megatron")
    assert names(graph) == [
        "mm.default",
        "nccl::all_reduce",
        "wgrad_gemm_accum",
        "native_layer_norm_backward.default",
    ]
    # Reads both operands and main_grad, writes main_grad; the product of its own is gone, and its storage.
    assert column(graph, "bytes_read", "wgrad_gemm_accum") == 4 * (2 * S * H + H * H)
    assert column(graph, "bytes_written", "wgrad_gemm_accum") == 4 * H * H
    assert column(graph, "alloc_bytes", "wgrad_gemm_accum") == 0
    assert len(graph.frees) == 0
    assert column(graph, "flops", "wgrad_gemm_accum") == 2 * S * H * H
    assert column(graph, "op_class", "wgrad_gemm_accum") == "gemm"


def test_the_wait_behind_an_overlapped_gemm_stays_behind_it():
    # The add waited for the all_reduce; fused into the GEMM, which must overlap it, the wait moves on.
    graph = apply_kernels(weight_gradient(overlapped=True), "megatron")
    gemm, reduce = row_of(graph, "wgrad_gemm_accum"), row_of(graph, "nccl::all_reduce")
    norm = row_of(graph, "aten::native_layer_norm_backward.default")
    waits = set(zip(*(array.tolist() for array in resolve_waits(graph, graph.programs[0])), strict=True))
    assert (reduce, norm) in waits
    assert not any(dst == gemm for _, dst in waits)
    assert verify(graph) == []


HEADS, SEQ, DIM = 3, 32, 16
SCORES = [1, HEADS, SEQ, SEQ]
QKV = [HEADS, SEQ, DIM]
SCORE_BYTES, QKV_BYTES = 2 * HEADS * SEQ * SEQ, 2 * HEADS * SEQ * DIM
PRODUCT = 2 * HEADS * SEQ * SEQ * DIM


def attention(*, masked=True, dtype="bfloat16"):
    """Forward and backward of one attention, two microbatches in 1F1B order."""
    build = GraphBuilder(1)
    forward, backward = build.template("fwd"), build.template("bwd")
    writer = Writer(forward, dtype=dtype)
    matrix = [HEADS, SEQ, SEQ]
    projected = writer.op("mm.default", [[SEQ, 8], [8, 3 * HEADS * DIM]], [[SEQ, 3 * HEADS * DIM]])
    scores = writer.op("baddbmm.default", [matrix, QKV, QKV], [matrix], data=(projected,), flops=PRODUCT)
    kept = scores
    if masked:
        kept = writer.op(
            "masked_fill_.Scalar", [SCORES, [1, 1, SEQ, SEQ]], [SCORES], data=(scores,), alloc=False
        )
    probs = writer.op("_softmax.default", [SCORES], [SCORES], data=(kept,))
    mixed = writer.op("bmm.default", [matrix, QKV], [QKV], data=(probs,), flops=PRODUCT)
    width = 2 if dtype == "bfloat16" else 4
    forward.free(mixed, width * HEADS * SEQ * SEQ, owner=scores)
    out = writer.op("clone.default", [QKV], [QKV], data=(mixed,))
    forward.free(out, width * HEADS * SEQ * DIM, owner=mixed)
    done = writer.op("mm.default", [[SEQ, HEADS * DIM], [HEADS * DIM, 8]], [[SEQ, 8]], data=(out,))

    writer = Writer(backward, phase="bwd", dtype=dtype)
    seed = writer.op("mm.default", [[SEQ, 8], [8, HEADS * DIM]], [QKV], forward_op=out.position)
    link = {"forward_op": probs.position}
    values = writer.op("bmm.default", [matrix, QKV], [QKV], data=(seed,), flops=PRODUCT, **link)
    weights = writer.op("bmm.default", [QKV, QKV], [matrix], data=(seed,), flops=PRODUCT, **link)
    backward.free(weights, width * HEADS * SEQ * DIM, owner=seed)
    back = writer.op("_softmax_backward_data.default", [SCORES, SCORES], [SCORES], data=(weights,))
    backward.free(back, width * HEADS * SEQ * SEQ, owner=probs)
    backward.free(back, width * HEADS * SEQ * SEQ, owner=weights)
    last = back
    if masked:
        last = writer.op("masked_fill.Scalar", [SCORES, [1, 1, SEQ, SEQ]], [SCORES], data=(back,))
        backward.free(last, width * HEADS * SEQ * SEQ, owner=back)
    query = writer.op("bmm.default", [matrix, QKV], [QKV], data=(last,), flops=PRODUCT)
    scaled = writer.op("mul.Scalar", [QKV], [QKV], data=(query,))
    backward.free(scaled, width * HEADS * SEQ * DIM, owner=query)
    key = writer.op("bmm.default", [QKV, matrix], [QKV], data=(last,), flops=PRODUCT)
    key_scaled = writer.op("mul.Scalar", [QKV], [QKV], data=(key,))
    backward.free(key_scaled, width * HEADS * SEQ * SEQ, owner=last)
    backward.free(key_scaled, width * HEADS * SEQ * DIM, owner=key)
    backward.free(None, width * HEADS * SEQ * DIM, owner=out)
    gradients = (scaled, key_scaled, values)
    packed = writer.op("cat.default", [QKV] * 3, [[SEQ, 3 * HEADS * DIM]], data=gradients)
    for owner in gradients:
        backward.free(packed, width * HEADS * SEQ * DIM, owner=owner)
    for owner in (packed, projected):
        backward.free(packed, width * 3 * HEADS * SEQ * DIM, owner=owner)
    backward.free(packed, width * SEQ * 8, owner=done)
    build.program([0], [(forward, 0, 0), (forward, 1, 0), (backward, 0, 0), (backward, 1, 0)])
    return build.build()


def test_scaled_masked_softmax():
    graph = apply_kernels(attention(), "megatron")
    assert names(graph)[:6] == [
        "mm.default",
        "baddbmm.default",
        "scaled_masked_softmax_fwd",
        "bmm.default",
        "clone.default",
        "mm.default",
    ]
    mask = 2 * SEQ * SEQ  # of the graph's one dtype here
    assert column(graph, "bytes_read", "scaled_masked_softmax_fwd") == SCORE_BYTES + mask
    assert column(graph, "bytes_written", "scaled_masked_softmax_fwd") == SCORE_BYTES
    assert column(graph, "op_class", "scaled_masked_softmax_bwd") == "softmax_bwd"
    # Gradient and probabilities in, gradient out; the mask.
    assert column(graph, "bytes_read", "scaled_masked_softmax_bwd") == 2 * SCORE_BYTES + mask
    assert column(graph, "bytes_written", "scaled_masked_softmax_bwd") == SCORE_BYTES


def test_flash_attention_keeps_scores_on_chip():
    graph = apply_kernels(attention(), "flash")
    assert names(graph) == [
        "mm.default",
        "flash_attention_fwd",
        "mm.default",
        "mm.default",
        "flash_attention_bwd",
        "cat.default",
    ]
    lse = 4 * HEADS * SEQ
    # Forward: two products, 4 b h s^2 d = 2 PRODUCT.  q, k, v in; output and log-sum-exp out.
    assert column(graph, "flops", "flash_attention_fwd") == 2 * PRODUCT
    assert column(graph, "bytes_read", "flash_attention_fwd") == 3 * QKV_BYTES
    assert column(graph, "bytes_written", "flash_attention_fwd") == QKV_BYTES + lse
    assert column(graph, "alloc_bytes", "flash_attention_fwd") == QKV_BYTES + lse
    # Backward: five products; q, k, v, output, its gradient and the log-sum-exp in, three gradients out.
    assert column(graph, "flops", "flash_attention_bwd") == 5 * PRODUCT
    assert column(graph, "bytes_read", "flash_attention_bwd") == 5 * QKV_BYTES + lse
    assert column(graph, "bytes_written", "flash_attention_bwd") == 3 * QKV_BYTES
    shapes = json.loads(column(graph, "in_shapes", "flash_attention_fwd"))
    assert shapes == [[1, HEADS, SEQ, DIM]] * 3


def left_at_the_end(graph):
    """Bytes allocated in the step and not released in it."""
    program = graph.programs[0]
    played = np.bincount(program.template, minlength=graph.num_templates)
    born = graph.ops.alloc_bytes[graph.flat_ops(program).row].sum()
    return int(born - (graph.frees.num_bytes * played[graph.frees.template]).sum())


def test_flash_attention_saves_less_and_frees_it():
    plain, flash = attention(), apply_kernels(attention(), "flash")
    # With q = QKV_BYTES, s = SCORE_BYTES, lse the log-sum-exp, f the last GEMM's output: a forward leaves
    # 3q + s + q + f (plain), 3q + q + lse + f (flash), two of them when the first backward begins.
    q, s, lse, f = QKV_BYTES, SCORE_BYTES, 4 * HEADS * SEQ, 2 * SEQ * 8
    # Plain peaks at the softmax's backward: output freed, v's gradient and two score matrices live.
    assert peak_memory(plain)[0].activations == 2 * (4 * q + s + f) - q + q + 2 * s
    # Flash peaks at cat: output and log-sum-exp freed, three gradients and their concatenation live.
    assert peak_memory(flash)[0].activations == 2 * (4 * q + lse + f) - q - lse + 3 * q + 3 * q
    assert left_at_the_end(plain) == left_at_the_end(flash) == 0


def test_attention_names_say_mask_and_precision():
    assert "flash_attention_full_fwd" in names(apply_kernels(attention(masked=False), "flash"))
    assert "efficient_attention_bwd" in names(apply_kernels(attention(dtype="float32"), "flash"))


def test_forward_references_follow():
    graph = apply_kernels(attention(), "flash")
    # The output (was position 5, the clone) and the softmax are now the attention kernel at position 1.
    assert graph.ops.forward_op.tolist() == [-1, -1, -1, 1, 1, -1]


def test_flash_after_megatron_is_flash():
    graph = attention()
    direct = apply_kernels(graph, "flash")
    assert graph_hash(apply_kernels(apply_kernels(graph, "megatron"), "flash")) == graph_hash(direct)


@pytest.mark.parametrize("kernels", MAPPINGS)
def test_mappings_are_idempotent_and_verify(kernels):
    for graph in (attention(), weight_gradient(overlapped=True), single(bias_dropout_add), two_stages()):
        once = apply_kernels(graph, kernels)
        assert graph_hash(apply_kernels(once, kernels)) == graph_hash(once)
        assert verify(once) == []


def test_unknown_and_backward_mappings_are_refused():
    graph = single(bias_dropout_add)
    with pytest.raises(InputError, match="unknown kernels 'megatrn'; did you mean 'megatron'"):
        apply_kernels(graph, "megatrn")
    with pytest.raises(InputError, match="'flash' already; 'megatron' needs the traced graph"):
        apply_kernels(apply_kernels(graph, "flash"), "megatron")


def test_external_references_are_recounted():
    # The consumer waits for the second latest op on compute, the layer norm's predecessor: the fused kernel.
    build = GraphBuilder(1)
    producer, consumer = build.template("fwd"), build.template("bwd")
    bias_dropout_add(Writer(producer), producer)
    consumer.compute("early", stream="side", waits=(external("compute", 3),))  # the first add, now fused
    consumer.compute("late", stream="side", waits=(external("compute", 0),))  # the layer norm
    build.program([0], [(producer, 0, 0), (consumer, 0, 0)])
    graph = apply_kernels(build.build(), "megatron")
    src, dst = resolve_waits(graph, graph.programs[0])
    waited = [graph.ops.name[int(graph.flat_ops(graph.programs[0]).row[one])] for one in src]
    assert dict(zip(dst.tolist(), waited, strict=True)) == {
        3: "bias_dropout_add_fwd",
        4: "aten::native_layer_norm.default",
    }


def test_labelled_regions_fuse_without_a_pattern():
    def swiglu(writer, template):
        label = {"module": "decoder.layers.0.mlp/fused:swiglu"}
        one = writer.op("silu.default", [ACT], [ACT], op_class="elementwise", **label)
        writer.op("mul.Tensor", [ACT, ACT], [ACT], data=(one,), op_class="elementwise", **label)
        writer.op("mm.default", [[S, H], [H, H]], [[S, H]], op_class="gemm")

    graph = apply_kernels(single(swiglu), "megatron")
    assert names(graph) == ["swiglu_fwd", "mm.default"]
    assert column(graph, "module", "swiglu_fwd") == "decoder.layers.0.mlp"


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_any_graph_passes_through(graph):
    mapped = apply_kernels(graph, "flash")
    assert mapped.ops.flops.sum() == graph.ops.flops.sum()
    for before, after in zip(graph.programs, mapped.programs, strict=True):
        old, new = program_edges(graph, before), program_edges(mapped, after)
        # Nothing here matches a pattern, so that every wait is still there.
        assert len(new.of_kind(EdgeKind.WAIT)) <= len(old.of_kind(EdgeKind.WAIT))
