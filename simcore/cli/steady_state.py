"""``--steady-state``: a long interleaved pipeline, continued from two shorter ones as validation does it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcore.cli.loading import loaded
from simcore.cli.progress import Stages
from simcore.cli.scenario import Scenario
from simcore.cli.simulation import Outcome, run_scenario
from simcore.errors import InputError
from simcore.report import json_object
from simcore.timeline.schema import TIMELINE_FILE
from workloads.parallel.steady import continued, shorter_counts


@dataclass(frozen=True)
class Continued:
    """The longer of the two steps as simulated, and the whole step as ``--json`` shows it."""

    outcome: Outcome
    shown: dict[str, Any]
    note: str


def run_steady_state(
    scenario: Scenario, out_dir: Path | None, stages: Stages, run: Callable[..., Outcome] = run_scenario
) -> Continued | Outcome:
    """The step of a described job, continued from two shorter ones where it is interleaved and long.

    Errors: as :func:`run_scenario`; InputError for a workload that is no description, OutOfMemoryError as
    the whole step would run out.
    """
    if scenario.described is None:
        raise InputError("--steady-state needs a described job: a model's name, config.json or YAML file")
    whole = loaded(scenario)
    assert whole.description is not None
    job, count = whole.description, whole.graph.workload.num_microbatches
    counts = shorter_counts(job.parallel, count)
    if counts is None:
        return run(scenario, out_dir, stages)
    memory, _ = whole.fits(whole.graph, whole.cluster, refuse=scenario.settings.refuse_memory)
    out_dir = out_dir or Path("runs") / whole.graph.workload.name
    each = job.training.micro_batch * job.parallel.dp
    with tempfile.TemporaryDirectory() as scratch:
        shorter = [
            _shown(run(_with(scenario, each * number), Path(scratch) / f"{number}", stages))
            for number in counts[:-1]
        ]
    outcome = run(_with(scenario, each * counts[-1]), out_dir, stages)
    longest = _shown(outcome)
    shown = _whole_step([*shorter, longest], counts, count)
    if shown is None:
        return run(scenario, out_dir, stages)
    shown["peak_memory_bytes"] = max(one.total for one in memory)
    few, more = counts[0], counts[-1]
    note = (
        f"steady state: {shown['step_time_s']:.4g} s for {count} microbatches is a straight line through"
        f" steps of {few} ({shorter[0]['step_time_s']:.4g} s) to {more} ({longest['step_time_s']:.4g} s);"
        f" tables and timeline show the step of {more}"
    )
    shown["warnings"] = [*longest["warnings"], note]
    return Continued(outcome, shown, note)


def _with(scenario: Scenario, global_batch: int) -> Scenario:
    assert scenario.described is not None
    overrides = {**scenario.described.overrides, "training.global_batch": str(global_batch)}
    return replace(scenario, described=replace(scenario.described, overrides=overrides))


def _shown(outcome: Outcome) -> dict[str, Any]:
    return dict(json_object(outcome.info, outcome.analysis, outcome.run_dir / TIMELINE_FILE, 0.0))


def _whole_step(
    steps: list[dict[str, Any]], counts: tuple[int, int, int], count: int
) -> dict[str, Any] | None:
    """Times of ``count`` microbatches from steps of smaller ``counts``, rates by them; None if not a line."""
    longest = steps[-1]
    step_s = continued(counts, [one["step_time_s"] for one in steps], count)
    if step_s is None:
        return None
    grown = (count - counts[2]) / (counts[2] - counts[1])
    parts = [one["breakdown_s"] for one in steps[1:]]
    shown = {**longest, "step_time_s": step_s}
    shown["breakdown_s"] = {
        name: parts[1][name] + grown * (parts[1][name] - parts[0][name]) for name in parts[1]
    }
    if longest["band"]:
        ends = {end: longest["band"][end] * step_s / longest["step_time_s"] for end in ("low_s", "high_s")}
        shown["band"] = {**longest["band"], **ends}
    faster = count / counts[2] * longest["step_time_s"] / step_s
    for rate in ("mfu", "model_tflops_per_gpu", "tokens_per_s"):
        shown[rate] = longest[rate] * faster
    shown["engine_events"] = sum(one["engine_events"] for one in steps)
    return shown
