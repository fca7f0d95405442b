"""Kernel mappings on small hand-written programs: what is fused, what it moves, what stays in order."""

from __future__ import annotations

import json

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
from tests.graph.aten_programs import (
    ACT,
    ACT_BYTES,
    SCORE_BYTES,
    SEQ,
    H,
    S,
    Writer,
    attention,
    bias_dropout_add,
    column,
    left_at_the_end,
    names,
    row_of,
    single,
    weight_gradient,
)
from tests.graph.examples import graphs, two_stages


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
    assert left_at_the_end(plain) == left_at_the_end(fused)


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


def test_a_bf16_product_that_adds_to_an_fp32_gradient_runs_in_bf16():
    template = (build := GraphBuilder(1)).template("bwd")
    product = Writer(template, phase="bwd", dtype="bfloat16").op(
        "mm.default", [[H, S], [S, H]], [[H, H]], flops=2 * S * H * H
    )
    # The fp32 gradient is more bytes than the product's operands.
    Writer(template, phase="bwd").op("add_.Tensor", [[H, H], [H, H]], [[H, H]], data=(product,), alloc=False)
    build.program([0], [(template, 0, 0)])
    graph = apply_kernels(build.build(), "megatron")
    assert column(graph, "dtype", "wgrad_gemm_accum") == "bfloat16"


def test_the_wait_behind_an_overlapped_gemm_stays_behind_it():
    # The add waited for the all_reduce; fused into the GEMM, which must overlap it, the wait moves on.
    graph = apply_kernels(weight_gradient(overlapped=True), "megatron")
    gemm, reduce = row_of(graph, "wgrad_gemm_accum"), row_of(graph, "nccl::all_reduce")
    norm = row_of(graph, "aten::native_layer_norm_backward.default")
    waits = set(zip(*(array.tolist() for array in resolve_waits(graph, graph.programs[0])), strict=True))
    assert (reduce, norm) in waits
    assert not any(dst == gemm for _, dst in waits)
    assert verify(graph) == []


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


@pytest.mark.parametrize(
    ("sharded", "expected"), [(False, ["multi_tensor_copy"]), (True, ["copy_.default"] * 3)]
)
def test_model_parameters_are_copied_in_one_launch(sharded, expected):
    build = GraphBuilder(1, options={"distributed_optimizer": sharded})
    template = build.template("optimizer")
    writer = Writer(template, phase="optimizer")
    for size in (8, 16, 32):
        writer.op("copy_.default", [[size], [size]], [[size]], alloc=False, read=4 * size)
    build.program([0], [(template, -1, 0)])
    graph = apply_kernels(build.build(), "megatron")
    assert names(graph) == expected
    # Each parameter is read and written once: 56 elements of 4 bytes.
    assert graph.ops.bytes_read.sum() == graph.ops.bytes_written.sum() == 4 * 56


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
