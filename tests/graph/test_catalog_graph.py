"""The committed GPT-175B graphs map to the kernels of a real build (tests/tracing has what they are)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from simcore.graph import (
    apply_kernels,
    graph_hash,
    load_graph,
    save_graph,
    usual_kernels,
    verify,
)
from simcore.graph.passes.rewrite import RELATIVE_OWNER, forward_templates
from simcore.memory import peak_memory
from simcore.units import MIB

GRAPHS = Path(__file__).parents[2] / "workloads/catalog/graphs"
ECHO = GRAPHS / "echo-gpt-175b-pp12-tp8-dp1"  # fp32, every layer recomputed
BF16 = GRAPHS / "gpt-175b-pp12-tp8-dp1"  # sequence parallel, nothing recomputed
LAYERS_PER_STAGE, MICROBATCHES = 8, 96
MIDDLE = 5  # a stage without embedding or loss


@pytest.fixture(scope="module", params=[ECHO, BF16], ids=["fp32", "bf16"])
def folder(request):
    return request.param


@pytest.fixture(scope="module")
def graph():
    return load_graph(ECHO)


@pytest.fixture(scope="module")
def mapped(graph):
    return {kernels: apply_kernels(graph, kernels) for kernels in ("unfused", "megatron", "flash")}


def middle(graph):
    return next(program for program in graph.programs if program.stage == MIDDLE)


def per_layer(graph, phase):
    """Kernels per layer and microbatch on a middle stage, by name."""
    flat = graph.flat_ops(middle(graph))
    phases, names = graph.ops.phase, graph.ops.name
    counts = Counter(names[row] for row in flat.row.tolist() if phases[row] == phase)
    return {name: count / (LAYERS_PER_STAGE * MICROBATCHES) for name, count in counts.items()}


def test_saving_what_was_loaded_gives_the_same_bytes(folder, tmp_path):
    save_graph(load_graph(folder), tmp_path / "again")
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kernels", ["megatron", "flash"])
def test_mapped_graphs_verify_and_stay(mapped, kernels):
    once = mapped[kernels]
    assert verify(once) == []
    assert graph_hash(apply_kernels(once, kernels)) == graph_hash(once)


def test_forward_kernels_of_a_layer(mapped):
    # LN, QKV (GEMM + bias), QK^T, softmax, dropout, PV, layout copy, projection, all_reduce, BDA;
    # LN, FC1, bias-GELU, FC2, all_reduce, BDA: 4 GEMMs, 2 batched GEMMs.
    assert per_layer(mapped["megatron"], "recompute") == {
        "aten::native_layer_norm": 2,
        "aten::mm": 4,
        "aten::add.Tensor": 1,
        "aten::baddbmm": 1,
        "scaled_masked_softmax_fwd": 1,
        "aten::native_dropout": 1,
        "aten::bmm": 1,
        "aten::clone": 1,
        "nccl::all_reduce": 2,
        "bias_dropout_add_fwd": 2,
        "bias_gelu_fwd": 1,
    }
    flash = per_layer(mapped["flash"], "recompute")
    # fp32, so the memory-efficient kernel; it replaces QK^T, softmax, dropout, PV and the copy.
    assert flash["efficient_attention_fwd"] == 1
    assert sum(flash.values()) == sum(per_layer(mapped["megatron"], "recompute").values()) - 4


def test_backward_kernels_of_a_layer(mapped):
    found = per_layer(mapped["megatron"], "bwd")
    assert found["wgrad_gemm_accum"] == found["aten::mm"] == 4
    assert found["bias_gelu_bwd"] == found["scaled_masked_softmax_bwd"] == 1
    assert found["bias_dropout_add_bwd"] == 2
    # Bias and layer norm gradients are still added one by one: 4 biases, 2 x (weight, bias).
    assert found["aten::add_.Tensor"] == 8


def test_kernels_of_a_layer_in_16_bits(graph, mapped):
    narrow = load_graph(BF16)
    kernels = usual_kernels(narrow)
    assert (kernels, usual_kernels(graph)) == ("cudnn", "megatron")
    assert usual_kernels(mapped["flash"]) == "flash"  # what is applied stays
    mapped = apply_kernels(narrow, kernels)
    # As in fp32, with attention in one kernel, and gathers and scatters where there all_reduces were.
    forward = per_layer(mapped, "fwd")
    assert {name: count for name, count in forward.items() if count >= 1} == {  # less: once a microbatch
        "aten::native_layer_norm": 2,
        "nccl::all_gather": 2,
        "aten::mm": 4,
        "aten::add.Tensor": 1,
        "cudnn_attention_fwd": 1,
        "nccl::reduce_scatter": 2,
        "bias_dropout_add_fwd": 2,
        "bias_gelu_fwd": 1,
    }
    found = per_layer(mapped, "bwd")
    assert found["wgrad_gemm_accum"] == found["aten::mm"] == 4 and found["cudnn_attention_bwd"] == 1
    # Gathered: both outputs' gradients, and both inputs again for the weight gradients.
    assert found["nccl::all_gather"] == 4 and found["nccl::reduce_scatter"] == 2
    assert per_layer(mapped, "recompute") == {}


def test_flops_are_conserved_and_flash_recomputes_one_product(mapped):
    total = {}
    for kernels, graph in mapped.items():
        flat = graph.flat_ops(middle(graph))
        total[kernels] = int(graph.ops.flops[flat.row].sum())
    assert total["megatron"] == total["unfused"]
    # One more product in backward, 2 s^2 d per head: 96 heads over 8 ranks, s = 2048, d = 128.
    extra = 2 * 2048**2 * 128 * 12 * LAYERS_PER_STAGE * MICROBATCHES
    assert total["flash"] == total["unfused"] + extra


def test_softmax_traffic(mapped):
    graph = mapped["megatron"]
    row = graph.ops.name.tolist().index("scaled_masked_softmax_fwd")
    # 12 heads of 2048 x 2048 fp32 scores once in and once out, and the bool mask.
    assert graph.ops.bytes_read[row] == 4 * 12 * 2048**2 + 2048**2
    assert graph.ops.bytes_written[row] == 4 * 12 * 2048**2


def test_memory_shrinks_with_fusion(mapped):
    peaks = {k: [one.total for one in peak_memory(graph)] for k, graph in mapped.items()}
    assert all(m < u for m, u in zip(peaks["megatron"], peaks["unfused"], strict=True))
    assert all(f < m for f, m in zip(peaks["flash"], peaks["megatron"], strict=True))


def test_peak_agrees_with_the_tracer(graph):
    # Up to the allocator's rounding: at most 511 bytes for each of some hundred live storages.
    for one, program in zip(peak_memory(graph), graph.programs, strict=True):
        assert 0 <= one.total - program.memory.peak <= MIB


@pytest.mark.parametrize("kernels", ["flash", "cudnn"])
def test_no_backward_releases_more_of_its_forward_than_that_allocated(kernels):
    """Several forwards (the first microbatch's makes buffers, too) share a backward, which releases once."""
    graph = apply_kernels(load_graph(BF16), kernels)
    released = Counter()
    frees = graph.frees
    for template, num_bytes, owner, scope in zip(
        frees.template, frees.num_bytes, frees.owner, frees.owner_scope, strict=True
    ):
        if scope == RELATIVE_OWNER:
            released[int(template), int(owner)] += int(num_bytes)
    assert released
    forwards = forward_templates(graph)
    for (template, owner), num_bytes in released.items():
        for forward in forwards[template]:
            assert num_bytes <= graph.ops.alloc_bytes[int(graph.template_start[forward]) + owner]
