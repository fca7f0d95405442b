"""What is emitted is what is described: the flags, traced with the framework itself, give the same step.

Compared are all products by their flops, and all collectives and messages by their bytes, pass by pass.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.jobs.launch.traced_cases import CASES, counts, kept, without_attention

RECIPE = Path(__file__).parents[3] / "workloads/tracing/recipes/titan.py"


@pytest.mark.parametrize("name", CASES)
def test_a_description_is_what_its_flags_run(name: str) -> None:
    case = CASES[name]
    flags, theirs = kept(name)
    ours = counts(case.job().graph(), case.framework)
    if name == "titan-cp":
        theirs, ours = without_attention(theirs), without_attention(ours)
    assert case.flags() == flags
    assert ours == theirs
    assert sum(ours.values()) > 100


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("titan")])
def test_kept_traces_are_what_tracing_gives_now(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from workloads.tracing.drive.rounds import workers
    from workloads.tracing.drive.script_job import ScriptJob
    from workloads.tracing.drive.trace import trace_in

    with workers(1) as pool:
        now = trace_in(pool, ScriptJob(RECIPE, tuple(CASES[name].flags()), world_size=8, step=1))
    assert counts(now, "torchtitan") == kept(name)[1]
