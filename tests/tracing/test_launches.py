"""How processes of a job begin: by a script that starts them itself, and in which order at barriers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simcore.errors import InputError
from tests.tracing.small_jobs import rows
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import Rounds
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "launches.py"


def run(pool: WorkerPool, how: str, mail: Path) -> Any:
    """The RankTrace of rank 1 of two."""
    rounds = Rounds(pool, lambda _: ScriptJob(SCRIPT, (how,), world_size=2), mail)
    rounds.run([1])
    return rounds.seen[1]


def reduced(found: Any) -> int:
    """Bytes of gradients."""
    return sum(size for phase, size in rows(found, "phase", "num_bytes") if phase == "grad_sync")


@pytest.mark.parametrize("how", ["spawned", "started"])
def test_processes_that_a_script_starts_itself(pool: WorkerPool, tmp_path: Path, how: str) -> None:
    found = run(pool, how, tmp_path)
    assert reduced(found) == 4 * (4 * 4 + 4)


def test_another_world_than_the_script_makes_is_refused(pool: WorkerPool, tmp_path: Path) -> None:
    job = ScriptJob(SCRIPT, ("spawned",), world_size=4)
    with pytest.raises(InputError, match="2 processes are started on a node of 4 ranks"):
        Rounds(pool, lambda _: job, tmp_path).run([1])
    job = ScriptJob(SCRIPT, ("started",), world_size=4)
    with pytest.raises(InputError, match="rank 1 of 2, and is traced as rank 1 of 4"):
        Rounds(pool, lambda _: job, tmp_path).run([1])


def test_others_wait_at_a_barrier_for_what_rank_0_prepares(pool: WorkerPool, tmp_path: Path) -> None:
    job = ScriptJob(SCRIPT, ("prepared", str(tmp_path)), world_size=2)
    (tmp_path / "mail").mkdir()
    rounds = Rounds(pool, lambda _: job, tmp_path / "mail")
    rounds.run([0, 1])
    for (
        found
    ) in rounds.seen.values():  # both are six wide: batch 2, 4 -> 6, forward and the weight's gradient
        assert sum(number for (number,) in rows(found, "flops")) == 2 * (2 * 2 * 4 * 6)


def test_a_thread_of_the_program_sees_the_device_too(pool: WorkerPool, tmp_path: Path) -> None:
    found = run(pool, "threaded", tmp_path)
    assert sum(number for (number,) in rows(found, "flops")) == 2 * (2 * 2 * 4 * 6)


def test_a_step_without_an_optimizer_ends_where_parameters_have_been_updated(
    pool: WorkerPool, tmp_path: Path
) -> None:
    found = run(pool, "updated", tmp_path)
    names = [name for (name,) in rows(found, "name")]
    assert names.count("aten::sub_.Tensor") == 2 and names[-1] == "aten::sub_.Tensor"
    # Evaluated, forward, and the weight's gradient: batch 2, 4 -> 4.
    assert sum(number for (number,) in rows(found, "flops")) == 3 * (2 * 2 * 4 * 4)
    assert [one.kind for one, _ in found.asked] == ["evaluation"]
