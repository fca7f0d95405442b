"""Tensors that are not dense, packed or large: what is launched for them, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from simcore.errors import InputError
from simcore.graph import Graph, OpKind
from tests.tracing.small_jobs import rows
from tests.tracing.test_habits import flops, names, trace
from workloads.tracing.drive.doubts import doubts
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_classes import TraceReport
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.recording import COLUMNS, KIND, PHASE
from workloads.tracing.record.tokens import TokensOfStep, copied_from_host, own_tokens, tokens_of_step


def test_sparse_gradients_are_rows_of_a_table(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "sparse", tmp_path, script="layouts").values()
    touched = {
        (name, read, written)
        for phase, name, read, written in rows(found, "phase", "name", "bytes_read", "bytes_written")
        if name == "aten::index_add_" and phase == "optimizer"
    }
    # A row has 4 floats, its place 8 bytes.  SGD adds six rows; SparseAdam one for each of three words, to
    # two moments and to the table.
    assert touched == {("aten::index_add_", 6 * (16 + 8), 6 * 16), ("aten::index_add_", 3 * (16 + 8), 3 * 16)}
    assert names(found).count("aten::index_add_") == 1 + 3
    assert names(found).count("coalesceValuesKernel") == 2  # the program's own, SparseAdam's
    (looked_up,) = [
        read for name, read in rows(found, "name", "bytes_read") if name == "aten::_embedding_bag"
    ]
    assert looked_up == 6 * (16 + 8) + 2 * 8  # rows, their places, where bags begin


def test_rows_are_added_up_for_groups(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "groups", tmp_path, script="layouts").values()
    assert names(found).count("aten::scatter_add_") == names(found).count("aten::segment_reduce") == 1


def test_a_sparse_matrix_multiplies_by_its_entries(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "neighbours", tmp_path, script="layouts").values()
    product, by_entries = 2 * 4 * 4 * 4, 2 * 5 * 4
    assert (flops(found, "fwd"), flops(found, "bwd")) == (product + by_entries, product + by_entries)


@pytest.mark.parametrize("made", ["by_rows", "moved"])
def test_sparse_matrices_by_rows_are_refused_by_name(made: str, pool: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the layout torch.sparse_csr .* not known(.|\n)*layouts.py:"):
        trace(pool, made, tmp_path, script="layouts")


def test_microbatches_of_other_lengths_have_the_longest(pool: WorkerPool, tmp_path: Path) -> None:
    first, others = (trace(pool, "packed", tmp_path, rank=rank, script="layouts")[rank] for rank in range(2))
    assert tokens_of_step([(1, others)], {"dp": 2}) == TokensOfStep(2 * (14 + 7), sequences=1, length=14)
    # One rank of the first kind and three of the other, each pair of which holds the same.
    found = tokens_of_step([(1, first), (3, others)], {"dp": 2, "tp": 2})
    assert found == TokensOfStep((5 + 4 + 3 * (14 + 7)) // 2, sequences=1, length=14)


def test_a_vocabulary_in_parts_and_attention_as_a_module(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "vocabulary", tmp_path, script="layouts")[1]
    calls = [row for row in rows(found, "phase", "collective", "num_bytes") if row[1]]
    assert calls == [("fwd", "all_gather", 2 * 6 * 4), ("fwd", "all_reduce", 6 * 4)]
    products, scores = 2 * 6 * 32 * 10, 4 * 8 * 2 * 2  # 4 heads of 8, two products of 2 flops a score
    assert flops(found, "fwd") == products + scores * (6 * 6 + 2 * 2 + 4 * 4)


def test_copies_that_name_no_tensor_are_no_batches() -> None:
    row: list[object] = ["" for _ in COLUMNS]
    row[KIND], row[PHASE] = OpKind.MEMCPY, "fwd"
    program = SimpleNamespace(templates={"": SimpleNamespace(rows=[row])})
    assert copied_from_host(cast("RankTrace", SimpleNamespace(program=program))) == {}


def test_products_of_16_bits_are_added_to_32(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "wide", tmp_path, script="layouts").values()
    product = 2 * 6 * 8 * 3
    wide = [row for row in rows(found, "flops", "dtype", "op_class") if row[0] == product]
    assert wide == [(product, "bfloat16", kind) for kind in ("gemm", "gemm", "bgemm")]


def test_a_loss_that_works_out_its_gradients_is_no_microbatch(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "chunks", tmp_path, script="layouts").values()
    assert found.num_microbatches == 1
    head, model = 2 * 6 * 4 * 8, 2 * 6 * 4 * 4
    assert (flops(found, "fwd"), flops(found, "bwd")) == (model + 3 * head, model)


@pytest.mark.parametrize(
    ("attended", "share", "own"),
    [
        ((2, 4, 8, 16), 1, [(2, 8)]),
        ((8, 8, 8), 1, [(2, 8)]),
        ((32, 4, 16), 2, [(2, 8)]),
        ((16, 4, 16), 2, [(2, 4)]),
        ((2, 4, 9, 16), 1, []),
    ],
)
def test_what_is_looked_up_is_what_is_attended_to(
    attended: tuple[int, ...], share: int, own: list[tuple[int, ...]]
) -> None:
    assert list(own_tokens((2, 8), {attended}, share)) == own


@pytest.mark.parametrize("what", ["heads", "heads_of_all"])
def test_a_sequence_that_ranks_exchange_counts_once(what: str, pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, what, tmp_path, script="layouts")[1]
    assert tokens_of_step([(2, found)], {"cp": 2}) == TokensOfStep(8, sequences=1, length=8)


@pytest.mark.parametrize("what", ["labels", "queries"])
def test_labels_of_pictures_are_no_tokens(what: str, pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, what, tmp_path, script="layouts").values()
    assert tokens_of_step([(1, found)], {}) == TokensOfStep()


def test_where_batches_of_ranks_differ_in_length_every_rank_is_run(pool: WorkerPool) -> None:
    job, report = ScriptJob(Path(__file__).parent / "scripts" / "lengths.py", world_size=8), TraceReport()
    graph = trace_in(pool, job, report)
    assert [list(one.rank_list()) for one in graph.programs] == [[0, 1, 2, 4, 5, 6], [3, 7]]
    assert report.ranks_run == list(range(8)) and not any("batches" in one for one in report.warnings)
    few = TraceReport()
    trace_in(pool, replace(job, max_ranks=6), few)
    assert len(few.ranks_run) == 6 and any("batches differ in shape" in one for one in few.warnings)


def test_jagged_tensors_attend_within_their_sequences(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "jagged", tmp_path, script="layouts").values()
    product, scores = 2 * 14 * 32 * 32, 4 * (5 * 5 + 9 * 9) * 32
    assert (flops(found, "fwd"), flops(found, "bwd")) == (product + scores, product + scores * 5 // 2)


def test_attention_is_what_torch_chooses_on_the_gpu(pool: WorkerPool, tmp_path: Path) -> None:
    """As measured on an H200 with torch 2.11: cuDNN's for 16 bits, memory-efficient for fp32."""
    found = trace(pool, "chosen", tmp_path, script="layouts")[1]
    release = tuple(map(int, dict(found.versions)["torch"].split(".")[:2]))
    first = "cudnn" if release >= (2, 11) else "flash"
    chosen = [op.removeprefix("aten::_scaled_dot_product_") for op in names(found) if "scaled_dot" in op]
    # bf16, causal and not; fp32; heads of 256, for which cuDNN is not trained; without cuDNN; with a mask;
    # with one that is learnt, of which cuDNN gives no gradient.
    masked = "cudnn" if first == "cudnn" else "efficient"
    expected = [f"{first}_attention", f"{first}_attention_full", "efficient_attention_full"]
    expected += ["flash_attention", "flash_attention", f"{masked}_attention_full", "efficient_attention_full"]
    assert [op for op in chosen if "backward" not in op] == expected
    assert sorted(op.replace("_backward", "") for op in chosen if "backward" in op) == sorted(expected)


def test_what_is_too_large_to_be_followed_is_said(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "masked", tmp_path, script="layouts").values()
    (asked,) = {asked for asked, _ in found.asked}
    assert (asked.rule, asked.answer) == ("computed of more elements than are followed", 0.0)
    told = {"site": asked.site, "kind": asked.kind, "answer": 0.0, "rule": asked.rule, "overridden": False}
    ops = SimpleNamespace(
        flops=np.ones(1),
        kind=np.zeros(1),
        name=np.array([""]),
        module=np.array([""]),
        out_shapes=np.array([""]),
    )
    (doubt,) = doubts(cast("Graph", SimpleNamespace(ops=ops)), [told])
    assert "too large" in doubt and f"--value {asked.site}=" in doubt and "layouts.py:" in asked.site


def test_a_ring_of_ranks_that_do_the_same_is_no_pipeline(pool: WorkerPool) -> None:
    graph = trace_in(
        pool, ScriptJob(Path(__file__).parent / "scripts" / "layouts.py", ("ring",), world_size=4)
    )
    assert graph.workload.dims == {"dp": 4}
