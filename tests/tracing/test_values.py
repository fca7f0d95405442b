"""Values that a run on shapes does not have: where experts' tokens go, and what follows from it."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from tests.tracing.small_jobs import rows
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.fake.expert_load import assign, parse_load, token_counts

SCRIPTS = Path(__file__).parent / "scripts"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

# scripts/experts.py: 64 tokens of 32 floats choose 2 of 16 experts; 8 ranks.
TOKENS, WIDTH, EXPERTS, RANKS = 64, 32, 16, 8
ROW = 4 * WIDTH


def run(pool: WorkerPool, script: str, *arguments: str, rank: int = 1, **options: Any) -> Any:
    """The RankTrace of one rank of 8."""
    from workloads.tracing.drive import rank_run

    job = ScriptJob(SCRIPTS / script, arguments, world_size=RANKS, **options)
    return pool.submit(rank_run.run_rank, job, rank).result()


def exchanged(found: Any) -> list[int]:
    """Bytes of the all_to_alls."""
    return [size for name, size in rows(found, "collective", "num_bytes") if name == "all_to_all"]


def product_flops(found: Any) -> int:
    """Flops of the experts' forward products; the gate's are 64 rows to 16 experts, twice or once."""
    gate = 2 * TOKENS * WIDTH * EXPERTS
    flops = [
        f for phase, name, f in rows(found, "phase", "name", "flops") if phase == "fwd" and "addmm" in name
    ]
    return sum(f for f in flops if f != gate)


@needs_torch
def test_a_uniform_load_sends_every_rank_the_same(pool: WorkerPool) -> None:
    found = run(pool, "experts.py", "exchange")
    # Counts of 16 experts as int64; then 64 x 2 rows there, and back.
    assert exchanged(found) == [8 * EXPERTS, TOKENS * 2 * ROW, TOKENS * 2 * ROW]
    assert product_flops(found) == 2 * TOKENS * 2 * WIDTH * WIDTH
    assert [(asked.kind, asked.answer) for asked, _ in found.asked] == [("routing", 0.0)]


@needs_torch
def test_a_skewed_load_lasts_as_long_as_its_fullest_rank(pool: WorkerPool) -> None:
    load = parse_load("zipf:1.2")
    counts = token_counts(load.shares(EXPERTS, 0), TOKENS, 2).reshape(RANKS, 2)
    for rank in (0, 7):
        found = run(pool, "experts.py", "exchange", rank=rank, load="zipf:1.2")
        assert exchanged(found)[1:] == 2 * [RANKS * int(counts.sum(1).max()) * ROW]
        # Every rank sends this rank's experts as many tokens.
        assert product_flops(found) == 2 * RANKS * int(counts[rank].sum()) * WIDTH * WIDTH


@needs_torch
def test_experts_in_a_loop_take_the_tokens_that_chose_them(pool: WorkerPool, tmp_path: Path) -> None:
    even = run(pool, "experts.py", "eager")
    assert product_flops(even) == 2 * TOKENS * 2 * WIDTH * WIDTH  # not 16 times all tokens
    shares = tmp_path / "load.json"
    shares.write_text(json.dumps([1.0] * 4 + [0.0] * 12))
    few = run(pool, "experts.py", "eager", load=str(shares))
    products = Counter(
        shapes
        for phase, name, shapes in rows(few, "phase", "name", "out_shapes")
        if phase == "fwd" and "addmm" in name
    )
    # Four experts share the tokens, twelve are not called; the gate is.
    assert products == {f"[[{TOKENS * 2 // 4},{WIDTH}]]": 4, f"[[{TOKENS},{EXPERTS}]]": 1}


@needs_torch
def test_a_site_may_have_another_load(pool: WorkerPool) -> None:
    found = run(pool, "experts.py", "exchange", values=(("experts.py:25", 1.2),))
    assert exchanged(found) == exchanged(run(pool, "experts.py", "exchange", load="zipf:1.2"))


@needs_torch
def test_unknown_sizes_are_asked_for_with_their_sites(pool: WorkerPool) -> None:
    found = run(pool, "selecting.py")
    kinds = [(asked.site.rpartition(":")[2], asked.kind, asked.answer) for asked, _ in found.asked]
    # unique keeps all 32, the mask all rows; counts sum to one for each bin; elements of a list read as 0.
    assert kinds == [("14", "share", 1.0), ("16", "share", 1.0), ("18", "size", 16.0), ("19", "item", 0.0)]
    half = run(pool, "selecting.py", values=(("selecting.py:14", 0.5), ("selecting.py:18", 40)))
    shapes = [out for (out,) in rows(half, "out_shapes")]
    assert "[[16,4]]" in shapes and "[[40,4]]" in shapes
    syncs = [name for name, blocking in rows(found, "name", "blocking") if blocking]
    assert "aten::tolist" in syncs and len(syncs) >= 4  # the host waits for every size


@given(
    tokens=st.integers(1, 200),
    experts=st.integers(2, 32),
    top_k=st.integers(1, 4),
    weights=st.lists(st.floats(0, 10), min_size=32, max_size=32),
)
def test_every_token_chooses_different_experts(
    tokens: int, experts: int, top_k: int, weights: list[float]
) -> None:
    top_k = min(top_k, experts)
    shares = np.array(weights[:experts]) + 1e-9
    counts = token_counts(shares / shares.sum(), tokens, top_k)
    chosen = assign(counts, tokens, top_k)
    assert counts.sum() == tokens * top_k and (counts <= tokens).all()
    assert all(len(set(row)) == top_k for row in chosen.tolist())
    assert (np.bincount(chosen.ravel(), minlength=experts) == counts).all()


@pytest.mark.parametrize("text", ["even", "zipf:x", "zipf:nan", "zipf:-1", "missing.json"])
def test_a_load_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expert load"):
        parse_load(text)
