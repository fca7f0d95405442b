"""Kernels that programs bring along, and layers for which torch has no rules of shapes."""

from __future__ import annotations

import os
import pickle
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.tracing.small_jobs import rows
from tests.tracing.test_habits import SCRIPT, flops, trace
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import Rounds
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.fake.mail import unlink_segments


def test_recurrent_layers_over_packed_sequences(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "recurrent", tmp_path, script="own_kernels").values()
    tokens, steps = 3 + 2, 6  # of packed sequences, and of the padded input
    cells = tokens * (3 * 8 * (4 + 8) + 4 * 4 * (8 + 4))  # gates of inputs and states
    assert flops(found, "fwd") == 2 * (steps * 4 * 4 + cells)


def test_functions_of_an_extension_that_is_compiled(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "extension", tmp_path, script="own_kernels").values()
    launched = [row for row in rows(found, "name", "bytes_read", "bytes_written") if "::" in row[0][:12]]
    own = {row[0]: row[1:] for row in launched if not row[0].startswith("aten")}
    assert own == {  # 2 x 4 floats: x twice; x alone; x and what is added to; x, four halves and as much as x
        "scan::forward": (2 * 32, 32),
        "scan::scale": (32, 32),
        "inline::add_to": (2 * 32, 32),
        "inline::halved": (32, 2 * 4 + 32),
    }
    said = [asked.rule for asked, _ in found.asked if asked.kind == "missing"]
    assert len(said) == 4 and all("compiled code" in one for one in said)


def test_norms_and_an_optimizer_of_apex(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "apex", tmp_path, script="own_kernels").values()
    assert found.stand_ins == ("apex",) and flops(found, "fwd") == 2 * 2 * 4 * 4
    own = [op for op in rows(found, "name", "bytes_read", "bytes_written") if op[0].startswith("multi")]
    held = 4 * (4 * 4 + 4 * 4)  # fp32: a matrix and four rows of four
    assert own == [("multi_tensor_l2norm", held, 4), ("multi_tensor_lamb", 4 * held, 3 * held)]


def test_tokens_are_moved_without_a_graph(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "moved", tmp_path, script="own_kernels").values()
    moves = [(name, size) for name, size in rows(found, "name", "bytes_read") if name.startswith("moe_")]
    tokens, chosen, shares = 3 * 4 * 4, 6 * 4, 6 * 4  # of 4 floats; int32; float32
    assert moves == [
        ("moe_permute_topK_kernel", tokens + chosen),
        ("moe_recover_topK_kernel", 2 * tokens + chosen),
        ("moe_recover_topK_bwd_kernel", 3 * tokens + chosen + shares),
    ]


def test_memory_that_ranks_share_outlives_who_made_it(pool: WorkerPool, tmp_path: Path) -> None:
    name = f"simcore-test-{os.getpid()}"
    job = ScriptJob(SCRIPT.with_stem("own_kernels"), ("shared", name), world_size=2)
    rounds = Rounds(pool, lambda _: job, tmp_path)
    for rank in (0, 1, 0):
        rounds.run([rank])
    assert {0, 1} == set(rounds.seen)
    unlink_segments(tmp_path)
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def test_who_waits_for_a_file_finds_it_once_it_is_gone(pool: WorkerPool, tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    job = ScriptJob(SCRIPT.with_stem("own_kernels"), ("signalled", str(tmp_path)), world_size=2, hang_s=5)
    rounds = Rounds(pool, lambda _: job, tmp_path / "mail")
    for rank in (0, 1):
        rounds.run([rank])
    assert {0, 1} == set(rounds.seen) and not (tmp_path / "ready").exists()


def test_ranks_send_as_many_bytes_as_the_longest_object_has(pool: WorkerPool, tmp_path: Path) -> None:
    job = ScriptJob(SCRIPT.with_stem("own_kernels"), ("described",), world_size=2)
    rounds = Rounds(pool, lambda _: job, tmp_path)
    rounds.run([0, 1])
    calls = [[row for row in rows(rounds.seen[rank], "collective", "num_bytes") if row[0]] for rank in (0, 1)]
    longest = len(pickle.dumps("x" * 30))
    assert calls == 2 * [[("all_gather", 2 * 8), ("all_gather", 2 * longest)]]


def test_a_tuner_of_a_programs_own(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "tuned", tmp_path, script="own_kernels").values()
    launched = [row[1:] for row in rows(found, "name", "bytes_read", "bytes_written") if row[0] == "double"]
    assert launched == [(32, 32)]  # 2 x 4 floats


def test_scans_over_states(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "scanned", tmp_path, script="own_kernels").values()
    elements, convolution = 2 * 3 * 4, 2 * 24 * 2  # two taps
    own = [op for op in rows(found, "name", "flops") if op[0].endswith("kernel")]
    assert own == [
        ("causal_conv1d_fwd_kernel", convolution),
        ("causal_conv1d_fwd_kernel", convolution),
        ("causal_conv1d_bwd_kernel", 2 * convolution),
        ("selective_scan_fwd_kernel", 9 * elements * 5),
        ("selective_scan_bwd_kernel", 3 * 9 * elements * 5),
        ("causal_conv1d_bwd_kernel", 2 * convolution),
    ]


def test_a_choice_is_listed_where_the_host_comes_to_rely_on_it(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "rated", tmp_path, script="own_kernels").values()
    lines = (Path(__file__).parent / "scripts" / "own_kernels.py").read_text(encoding="utf-8").splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if "topk(2" in text)
    assert [(asked.kind, asked.site) for asked, _ in found.asked] == [("routing", f"own_kernels.py:{line}")]
