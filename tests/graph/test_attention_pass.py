"""Attention as one kernel: what it moves, computes and saves, and that nothing leaks."""

from __future__ import annotations

import json

from simcore.graph import apply_kernels, graph_hash
from simcore.memory import peak_memory
from tests.graph.aten_programs import (
    DIM,
    HEADS,
    PRODUCT,
    QKV_BYTES,
    SCORE_BYTES,
    SEQ,
    attention,
    column,
    left_at_the_end,
    names,
)


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


def test_flash_attention_writes_contiguous_gradients():
    graph = apply_kernels(attention(leaves=True), "flash")
    assert names(graph) == names(apply_kernels(attention(), "flash"))
    assert column(graph, "alloc_bytes", "flash_attention_bwd") == 3 * QKV_BYTES
    assert left_at_the_end(graph) == 0


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
