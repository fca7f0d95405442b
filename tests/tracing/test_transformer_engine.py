"""Layers of Transformer Engine, stood in for, compute, keep and communicate what the real ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simcore.graph.ops import OpKind
from tests.tracing.small_jobs import column, played, rows
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import Rounds
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "engine_layers.py"
SEQ, BATCH, WIDTH, HEADS = 8, 2, 16, 4
TOKENS = SEQ * BATCH


def trace(pool: WorkerPool, which: str, mail: Path, load: str = "uniform") -> Any:
    """Rank 1 of two."""
    job = ScriptJob(SCRIPT, tuple(which.split()), world_size=2, load=load)
    rounds = Rounds(pool, lambda _: job, mail)
    rounds.run([1])
    return rounds.seen[1]


def kernels(found: Any, *op_classes: str) -> list[tuple[Any, ...]]:
    """Name and flops of the kernels of these classes, in order."""
    ops = rows(found, "op_class", "name", "flops")
    return [op[1:] for op in ops if op[0] in op_classes]


def collectives(found: Any) -> list[tuple[Any, ...]]:
    """Phase, kind and bytes, in order; sends and receives, too."""
    ops = rows(found, "phase", "collective", "kind", "num_bytes")
    return [
        (phase, collective or OpKind(kind).name.lower(), size)
        for phase, collective, kind, size in ops
        if collective or kind in (OpKind.SEND, OpKind.RECV)
    ]


def test_tensor_parallel_layers_reduce_where_the_engine_does(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "tensor parallel", tmp_path)
    size = 2 * TOKENS * WIDTH
    assert collectives(found) == [("fwd", "all_reduce", size), ("bwd", "all_reduce", size)]


def test_sequence_parallel_layers_gather_and_scatter(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "sequence parallel", tmp_path)
    size = 2 * TOKENS * WIDTH
    # Backward: the gradient of the row-parallel output is gathered, then the input of the column-parallel
    # layer, beside the product for its gradient, which is scattered beside the product for the weight's.
    assert collectives(found) == [
        ("fwd", "all_gather", size),
        ("fwd", "reduce_scatter", size),
        ("bwd", "all_gather", size),
        ("bwd", "all_gather", size),
        ("bwd", "reduce_scatter", size),
    ]
    qkv, out = 2 * TOKENS * WIDTH * 3 * WIDTH // 2, 2 * TOKENS * WIDTH // 2 * WIDTH
    scores = 4 * BATCH * (HEADS // 2) * SEQ * SEQ * (WIDTH // HEADS)
    assert kernels(found, "gemm", "attention_fwd", "attention_bwd", "norm_fwd", "norm_bwd") == [
        ("rmsnorm_fwd_kernel", 0),
        ("aten::addmm", qkv),
        ("cudnn_attention_fwd", scores),
        ("aten::mm", out),
        ("aten::mm", out),
        ("wgrad_gemm_accum", out),
        ("cudnn_attention_bwd", scores * 5 // 2),
        ("aten::mm", qkv),
        ("wgrad_gemm_accum", qkv),
        ("rmsnorm_bwd_kernel", 0),
    ]
    traffic = {
        name: sizes
        for name, *sizes in rows(found, "name", "bytes_read", "bytes_written")
        if name == "wgrad_gemm_accum"
    }
    # The last is that of queries, keys and values: input and gradient in bf16, what is added to in fp32; the
    # gradient of the bias comes with it.
    weight = 4 * 3 * WIDTH // 2 * WIDTH
    given = 2 * TOKENS * (WIDTH + 3 * WIDTH // 2)
    assert traffic == {"wgrad_gemm_accum": [given + weight, weight + 2 * 3 * WIDTH // 2]}


@pytest.mark.parametrize("load", ["uniform", "zipf:1"])
def test_experts_multiply_the_tokens_that_chose_them(pool: WorkerPool, load: str, tmp_path: Path) -> None:
    found = trace(pool, "experts", tmp_path, load)
    # Two of four experts a token: 8 tokens each; or 32 / (25 / 12) / i, which is 15.36, 7.68, 5.12, 3.84.
    counts = [8, 8, 8, 8] if load == "uniform" else [16, 8, 5, 3]
    products = [2 * count * WIDTH * WIDTH for count in counts]
    routed = 2 * TOKENS * WIDTH * 4
    found_products = [flops for _, flops in kernels(found, "gemm")]
    assert found_products == [routed, *products, *products, *products, routed, routed]
    streams = {stream for stream, name in rows(found, "stream", "name") if name == "wgrad_gemm"}
    assert len(streams) == 4 + 1  # the router's on the main stream


def test_keys_and_values_go_round(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "ring", tmp_path)
    pair = 2 * 4 * TOKENS // 2 * WIDTH // 2  # fp32, half the sequence, half as many heads as queries have
    # Forward one exchange of two ranks; backward keys and values first, then their gradients alone.
    assert collectives(found) == [
        ("fwd", "recv", pair), ("fwd", "send", pair),
        ("bwd", "recv", pair), ("bwd", "send", pair), ("bwd", "recv", pair), ("bwd", "send", pair),
    ]  # fmt: skip
    # The own part is causal and the other a half (rank 1 sees the front of rank 0's): 4 s_q s_k a head and
    # width, as torch counts; backward, where they come the other way, 2.5 times that.
    own = 4 * BATCH * (SEQ // 2) ** 2 * WIDTH
    attention = [flops for name, flops in kernels(found, "attention_fwd", "attention_bwd")]
    assert attention == [own, own // 2, own // 2 * 5 // 2, own * 5 // 2]


def test_attention_is_computed_beside_what_goes_round(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "ring", tmp_path)
    for way in ("fwd", "bwd"):
        template = played(found.program, way)
        kinds, classes = column(template, "kind"), column(template, "op_class")
        received = [place for place, kind in enumerate(kinds) if kind == OpKind.RECV]
        first, second = [place for place, one in enumerate(classes) if one == f"attention_{way}"]
        waits = {(dst, src) for dst, src, *_ in template.edges}
        # The second waits for what the first was computed beside, and for no other exchange.
        assert received[0] < first and not {(first, place) for place in received} & waits
        assert {(second, place) for place in received} & waits == {(second, received[0])}
        assert received[1:] == [place for place in received if first < place < second]
        if way == "fwd":  # on two streams in turn
            streams = column(template, "stream")
            assert streams[first] != streams[second] and (second, first) not in waits


def test_products_in_fp8_by_the_maximum_of_each_tensor(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "current", tmp_path)
    size, maximum = TOKENS * WIDTH, 4  # in 8 bits; one float
    # What is a part of the tokens is cast by the maximum of all parts, and gathered in 8 bits; sums have 16.
    assert collectives(found) == [
        ("fwd", "all_reduce", maximum),
        ("fwd", "all_gather", size),
        ("fwd", "reduce_scatter", 2 * size),
        ("bwd", "all_reduce", maximum),
        ("bwd", "all_gather", size),
        ("bwd", "all_gather", size),
        ("bwd", "reduce_scatter", 2 * size),
    ]
    qkv, out = 2 * TOKENS * WIDTH * 3 * WIDTH // 2, 2 * TOKENS * WIDTH // 2 * WIDTH
    ops = rows(found, "phase", "name", "flops", "dtype")
    assert [op[1:] for op in ops if "mm" in op[1]] == [
        ("aten::_scaled_mm", qkv, "float8_e4m3fn"),
        ("aten::_scaled_mm", out, "float8_e4m3fn"),
        ("aten::_scaled_mm", out, "float8_e4m3fn"),
        ("wgrad_gemm_accum", out, "float8_e4m3fn"),
        ("aten::_scaled_mm", qkv, "float8_e4m3fn"),
        ("wgrad_gemm_accum", qkv, "float8_e4m3fn"),
    ]
    casts = [(op[0], op[1]) for op in ops if op[1].endswith("fp8")]
    whole = ["amax_fp8", "cast_transpose_fp8"]  # with the transpose that a gradient's product reads
    # Input in parts, weight; input, weight; the gradient in parts, turned; the gradient, the input turned.
    assert [name for way, name in casts if way == "fwd"] == ["amax_fp8", "cast_fp8", *whole, *whole, *whole]
    assert [name for way, name in casts if way == "bwd"] == [
        *("amax_fp8", "cast_fp8", "transpose_fp8"), *whole, "transpose_fp8",
    ]  # fmt: skip


def test_products_in_fp8_by_earlier_maxima_share_them(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "delayed", tmp_path)
    shared = [call for call in collectives(found) if call[1] == "all_reduce"]
    # Of two products: three maxima each behind the forward pass, two behind the backward pass.
    assert shared == [("fwd", "all_reduce", 4 * 2 * 3), ("bwd", "all_reduce", 4 * 2 * 2)]
    assert "amax_fp8" not in {name for (name,) in rows(found, "name")}


def test_blocks_of_32_are_gathered_in_both_orders(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "mxfp8", tmp_path)
    size = TOKENS * WIDTH
    gathers = [(way, number) for way, call, number in collectives(found) if call == "all_gather"]
    assert gathers == [("fwd", size), ("bwd", size), ("bwd", size), ("bwd", size)]
    assert [name for (name,) in rows(found, "name") if "gemm" in name].count("mxfp8_gemm") == 4


@pytest.mark.parametrize(("recipe", "casts"), [("delayed", 1), ("current", 4)])
def test_experts_in_fp8_multiply_rows_that_are_filled_up(
    pool: WorkerPool, recipe: str, casts: int, tmp_path: Path
) -> None:
    found = trace(pool, f"experts in {recipe}", tmp_path)
    # 8 tokens of each of four experts are filled up to 16; the router's products are in fp8, too.
    product, routed = 2 * 16 * WIDTH * WIDTH, 2 * TOKENS * WIDTH * 4
    assert [flops for _, flops in kernels(found, "gemm")] == [routed, *[product] * 12, routed, routed]
    names = [name for (name,) in rows(found, "name")]
    assert names.count("multi_padding_kernel") == names.count("multi_unpadding_backward_kernel") == 1
    # The router's input, weight and gradient; rows of experts, each way; and four weights.
    assert names.count("cast_transpose_fp8") == 3 + 2 * casts + 4
    kept = {name for name, dtype in rows(found, "name", "dtype") if dtype == "float8_e4m3fn"}
    assert {"aten::_scaled_mm", "wgrad_gemm"} <= kept
    if recipe == "delayed":  # maxima of five products
        assert [size for *_, size in collectives(found)] == [4 * 5 * 3, 4 * 5 * 2]


def test_attention_in_fp8_casts_what_it_multiplies(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "attention in delayed", tmp_path)
    ops = [op for op in rows(found, "name", "dtype", "bytes_read", "bytes_written") if "wgrad" not in op[0]]
    sequence, size = SEQ // 2, SEQ // 2 * BATCH * WIDTH
    sums = 4 * BATCH * HEADS * sequence
    assert [op for op in ops if op[0] == "cast_fp8" or "attention" in op[0]] == [
        ("cast_fp8", "float32", 3 * 4 * size, 3 * size),
        ("cudnn_attention_fwd", "float8_e4m3fn", 3 * size, 4 * size + sums),
        ("cast_fp8", "float32", 4, size),  # the gradient of a sum is one number
        ("cudnn_attention_bwd", "float8_e4m3fn", 4 * size + 4 * size + sums, 3 * 4 * size),
    ]


def test_numbers_of_four_bits_are_refused(pool: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Transformer Engine is not installed, and its stand-in has no nvfp4"):
        trace(pool, "nvfp4", tmp_path)
