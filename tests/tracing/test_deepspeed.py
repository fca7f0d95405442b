"""DeepSpeed's ZeRO stages: what an unmodified script communicates in a step of two microbatches."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import InputError
from simcore.graph.ops import OpKind
from tests.tracing.every_rank import compared
from tests.tracing.small_jobs import column, rows
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.framework_imports import Preparation
from workloads.tracing.drive.rounds import workers
from workloads.tracing.drive.script_job import ScriptJob

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)
SCRIPT = Path(__file__).parent / "scripts" / "zero.py"

# Three blocks of linear 64 -> 256 -> 64 and a norm, in bf16; every tensor is divisible by 8 ranks.
TENSORS = (64 * 256, 256, 256 * 64, 64, 64, 64)
#: Argument of the script for stage 3 with parameters released after the forward pass.
NO_REUSE = -3
MODEL = 2 * 3 * sum(TENSORS)
#: Arguments of the script -> how the tests call it.
RUNS = {
    **{(str(stage),): stage for stage in (0, 1, 2, 3, NO_REUSE)},
    **{("2", "offload"): "offload 2", ("3", "offload"): "offload 3", ("3", "narrow"): "narrow"},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """One worker, forked from a process that has imported DeepSpeed."""
    with workers(1, preparation=Preparation((("deepspeed", ()),))) as running:
        yield running


@pytest.fixture(scope="module")
def traced(pool: WorkerPool) -> dict[Any, Any]:
    """The RankTrace of rank 1 of 8, by stage and what is special about it."""
    from workloads.tracing.drive import rank_run

    runs = {
        name: pool.submit(rank_run.run_rank, ScriptJob(SCRIPT, args, world_size=8, gpus_per_node=4), 1)
        for args, name in RUNS.items()
    }
    return {name: run.result() for name, run in runs.items()}


@pytest.fixture(scope="module")
def found(traced: dict[Any, Any]) -> dict[int, Any]:
    """By stage, where all is the GPU's and has 16 bits."""
    return {stage: one for stage, one in traced.items() if isinstance(stage, int)}


def bytes_of(found: Any, collective: str) -> Counter[str]:
    """Bytes of a step's collectives, by phase; flags and norms of a few bytes left out."""
    counted: Counter[str] = Counter()
    for entry in found.program.skeleton:
        template = found.program.templates[entry.template]
        names = ("phase", "collective", "num_bytes")
        for phase, name, size in zip(*(column(template, one) for one in names), strict=True):
            if name == collective and size > 16:
                counted[phase] += size
    return counted


def test_without_zero_and_in_stage_1_gradients_are_reduced_once(found: dict[int, Any]) -> None:
    for stage in (0, 1):
        assert bytes_of(found[stage], "all_reduce") == {"grad_sync": MODEL}
    assert bytes_of(found[0], "all_gather") == {}
    assert bytes_of(found[1], "all_gather") == {"optimizer": MODEL}  # of what each rank has updated


def test_stage_2_reduces_in_every_microbatch(found: dict[int, Any]) -> None:
    assert bytes_of(found[2], "all_reduce") == {"grad_sync": 2 * MODEL}
    assert bytes_of(found[2], "all_gather") == {"optimizer": MODEL}


def test_stage_3_gathers_for_each_pass_and_scatters_gradients(found: dict[int, Any]) -> None:
    assert bytes_of(found[3], "reduce_scatter") == {"grad_sync": 2 * MODEL}
    # What the backward pass uses again within 1e9 parameters (the default) stays gathered.
    assert bytes_of(found[3], "all_gather") == {"fwd": 2 * MODEL}
    # Else it is gathered again: forward and backward of two microbatches.
    again = bytes_of(found[NO_REUSE], "all_gather")
    assert again["fwd"] + again["bwd"] == again.total() == 4 * MODEL


def test_states_are_sharded(found: dict[int, Any]) -> None:
    # Adam's mean and square in fp32; whole without ZeRO, an eighth else.
    assert found[0].memory.optimizer_states >= 2 * 2 * MODEL
    for stage in (1, 2, 3):
        states = found[stage].memory.optimizer_states
        assert 2 * 2 * MODEL / 8 <= states < 2 * 2 * MODEL / 4


def test_the_optimizer_is_one_kernel(found: dict[int, Any]) -> None:
    for one in found.values():
        kernels = [
            (name, read, written)
            for template in one.program.templates.values()
            for name, read, written in zip(
                *(column(template, key) for key in ("name", "bytes_read", "bytes_written")), strict=True
            )
            if name == "multi_tensor_adam"
        ]
        # Reads gradient, parameter, mean and square of each element, writes the last three.
        assert kernels and all(3 * read == 4 * written for _, read, written in kernels)


def test_a_step_is_two_microbatches_and_ends_with_the_engines_step(found: dict[int, Any]) -> None:
    for one in found.values():
        assert one.num_microbatches == 2
        kinds = [one.program.templates[entry.template].name for entry in one.program.skeleton]
        assert kinds.count("bwd") == 2 and "optimizer" in kinds


def test_states_in_files_are_refused_by_name(pool: WorkerPool) -> None:
    from workloads.tracing.drive import rank_run

    job = ScriptJob(SCRIPT, ("3", "files"), world_size=8, gpus_per_node=4)
    with pytest.raises(InputError, match=r"offload to NVMe .* not known"):
        pool.submit(rank_run.run_rank, job, 1).result()


def test_offloaded_states_are_updated_by_the_host(traced: dict[Any, Any]) -> None:
    own = MODEL // 2 // 8  # elements whose states this rank keeps
    for stage in (2, 3):
        one = traced[f"offload {stage}"]
        assert one.memory.optimizer_states == 0
        ops = rows(one, "name", "kind", "phase", "bytes_read", "stream")
        updates = [(read, stream) for name, _, _, read, stream in ops if name == "cpu_adam"]
        # Gradient, parameter, mean and square in 32 bits are read, the last three written.
        assert sum(read for read, _ in updates) == (4 + 2 * 12) * own
        assert {stream for _, stream in updates} == {"host"}
        copies = [read for name, kind, _, read, _ in ops if kind == OpKind.MEMCPY and name[:4] != "cpu_"]
        # At least gradients to the host and parameters back, in 16 bits or 32.
        assert sum(copies) >= 2 * (2 + 2) * own


def test_zero_plus_plus_gathers_eight_bits_and_exchanges_four(traced: dict[Any, Any]) -> None:
    one = traced["narrow"]
    weights = 3 * 2 * 64 * 256
    rest = 3 * (256 + 64 + 64 + 64)
    gathered = bytes_of(one, "all_gather")["fwd"]
    assert weights + rest < gathered / 2 < 1.1 * (weights + rest)  # a pass each, scales beside
    exchanged = bytes_of(one, "all_to_all")["grad_sync"] / 2
    # Of every weight half a byte among four ranks of a node, then a fourth of it between nodes.
    assert weights * 5 / 8 < exchanged < weights
    assert bytes_of(one, "reduce_scatter") == {"grad_sync": 2 * 2 * rest}


def test_every_rank_of_sharded_states_does_what_its_class_does(pool: WorkerPool) -> None:
    found = compared(pool, ScriptJob(SCRIPT, ("1",), world_size=12, gpus_per_node=6))
    assert found.wrong == [] and len(found.graph.programs) > 2
    assert (
        len(found.report.ranks_run) < 12
    )  # places with pieces of equal sizes are told by how tensors are cut
