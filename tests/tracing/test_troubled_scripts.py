"""Scripts that fail, hang, or whose ranks disagree: what is said of them."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from simcore.apps.errors import as_app
from simcore.errors import InputError
from workloads.tracing.drive import cli, hang
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.named_ranks import named_ranks
from workloads.tracing.drive.script_job import ScriptHangError, ScriptJob

app = as_app(cli.app)
SCRIPTS = Path(__file__).parent / "scripts"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def run(pool: WorkerPool, script: str, *arguments: str, **options: Any) -> Any:
    """The RankTrace of rank 1 of 8."""
    from workloads.tracing.drive import rank_run

    job = ScriptJob(SCRIPTS / script, arguments, world_size=8, **options)
    return pool.submit(rank_run.run_rank, job, 1).result()


@pytest.mark.parametrize(
    ("how", "options", "messages"),
    [
        (
            "assertion",
            {},
            ['AssertionError: assert how != "assertion" or step == 0', "in the script: troubled.py:"],
        ),
        (
            "types",
            {},
            [
                "aten::addmm expects tensors of one dtype, but got torch.float32, torch.bfloat16",
                "in the script: troubled.py:",
            ],
        ),
        ("exit", {}, ["called exit('enough') at troubled.py:", "before step 2", "let it run 3 steps"]),
        ("shapes", {}, ["RuntimeError: Error(s) in loading state_dict for Linear: size mismatch for weight"]),
        (
            "hang",
            {"hang_s": 0.5},
            [
                "no tensor operation for 0.5 s",
                "in the script: troubled.py:",
                "in main\n  called from: troubled.py:",
                "remove",
            ],
        ),
        (
            "endless",
            {"hang_s": 0.25},
            ["no tensor operation for", "s of processors used", "in the script: troubled.py:"],
        ),
        (
            "divided",
            {},
            ["ZeroDivisionError", "before, not being known: 0 at troubled.py:", "--value FILE.py:LINE"],
        ),
        ("lookup", {}, ["looks up models.example.org", "troubled.py:", "local files"]),
        ("network", {}, ["connects to 192.0.2.1", "troubled.py:", "local files"]),
        ("devices", {}, ["device cuda:9 of a node with 8 GPUs", "troubled.py:", "--gpus-per-node"]),
        (
            "swallowed",
            {},
            ["0 whole steps seen", "caught by the script: operator simcore_tests::opaque has no rule"],
        ),
        ("opaque", {}, ["simcore_tests::opaque has no rule", "troubled.py:", "register_fake", "--setup"]),
    ],
)
def test_what_is_said_of_scripts_that_fail(
    pool: WorkerPool, how: str, options: dict[str, Any], messages: Sequence[str]
) -> None:
    with pytest.raises(InputError) as raised:
        run(pool, "troubled.py", how, **options)
    for message in ("rank 1", *messages):
        assert message in str(raised.value)


@pytest.mark.parametrize(("queued", "hangs"), [(0.9, False), (0.1, True)])
def test_who_finds_no_processor_does_not_hang(
    monkeypatch: pytest.MonkeyPatch, queued: float, hangs: bool
) -> None:
    """It runs for 2% of its time, and is ready for ``queued`` of it."""
    began = time.monotonic()
    monkeypatch.setattr(hang, "_WATCH_S", 0.05)
    monkeypatch.setattr(hang, "_processor_s", lambda: 0.02 * (time.monotonic() - began))
    monkeypatch.setattr(hang, "_queued_s", lambda: queued * (time.monotonic() - began))
    with (
        pytest.raises(ScriptHangError) if hangs else nullcontext(),
        hang.watched(0.2, SimpleNamespace(num_calls=0)),
    ):
        time.sleep(0.5)


def test_a_rank_that_computes_on_the_host_is_no_hang(pool: WorkerPool) -> None:
    assert run(pool, "troubled.py", "computing", hang_s=1.0).num_microbatches == 1


def test_a_pass_that_fails_is_told_of_although_the_script_goes_on(pool: WorkerPool) -> None:
    found = run(pool, "troubled.py", "caught")
    rules = [asked.rule for asked, _ in found.asked if asked.kind == "failure"]
    assert found.num_microbatches == 1 and len(rules) == 2
    assert "opaque has no rule" in rules[0] + rules[1] and "RuntimeError" in rules[0] + rules[1]


@needs_torch
@pytest.mark.parametrize(("how", "odd", "world"), [("diverges", 1, "2"), ("third", 2, "4")])
def test_ranks_that_communicate_differently_are_refused(
    one_pool: None, tmp_path: Path, how: str, odd: int, world: str
) -> None:
    target = tmp_path / "graph"
    arguments = [str(SCRIPTS / "troubled.py"), how, "--world-size", world, "--jobs", "1"]
    ran = CliRunner().invoke(app, [*arguments, "--out", str(target)])
    assert ran.exit_code == 2 and list(tmp_path.iterdir()) == []
    line = 1 + (SCRIPTS / "troubled.py").read_text(encoding="utf-8").splitlines().index(
        "            dist.all_reduce(loss.detach())"
    )
    assert f"rank {odd}: at troubled.py:{line}" in ran.output


def test_ranks_that_code_names(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nr = int(os.environ['RANK'])\nx = r == 1 or os.environ['RANK'] == '2'\n"
        "y = 3 < args.local_rank or dist.get_rank() in (4, 5) or r == 0 or size == 6 or rank != 63\n"
    )
    assert named_ranks(script, 64) == (1, 2, 3, 4, 5)
    script.write_text("r, w = dist.get_rank(), dist.get_world_size()\nx = r in (2, 3, 6) or w == 5\n")
    assert named_ranks(script, 64) == (2, 3, 6)
    script.write_text(
        "parser.add_argument('--log-rank', type=int, default=7)\nparser.add_argument('--steps', default=9)\n"
        "if rank == args.profile_rank or rank == args.log_rank or config['odd'] == get_rank(): 0\n"
        "n == steps\n"
    )
    assert named_ranks(script, 64, ("--profile-rank", "11", "trainer.odd=13")) == (7, 11, 13)
