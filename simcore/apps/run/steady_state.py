"""``--steady-state``: a long interleaved pipeline, continued from two shorter ones as validation does it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from simcore.apps.progress import StageTimer
from simcore.apps.run.loading import loaded
from simcore.apps.run.question import asked_of, usual_folder
from simcore.apps.run.scenario import Scenario
from simcore.apps.run.simulation import FinishedRun, run_scenario, setup_of
from simcore.errors import InputError
from simcore.records import dataclass
from simcore.report import json_object
from simcore.timeline.schema import TIMELINE_FILE
from simcore.units import s_from_ps
from workloads.parallel.steady import between_groups, continued, shorter_counts


@dataclass(frozen=True)
class Continued:
    """The longer of the two steps as simulated, and the whole step as ``--json`` shows it."""

    outcome: FinishedRun
    shown: dict[str, Any]
    note: str


def run_steady_state(
    scenario: Scenario,
    out_dir: Path | None,
    stages: StageTimer,
    run: Callable[..., FinishedRun] = run_scenario,
) -> Continued | FinishedRun:
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
    memory, _ = whole.fits(whole.graph, whole.cluster, scenario)
    question = asked_of(scenario, job, whole.cluster, setup_of(scenario), steady_state=True)
    out_dir = out_dir or usual_folder(question, whole.graph.workload.name, scenario)
    each = job.training.micro_batch * job.parallel.dp
    few, more = counts
    with tempfile.TemporaryDirectory() as scratch:
        shorter = _shown(run(_with(scenario, each * few), Path(scratch) / "run", stages))
    outcome = run(_with(scenario, each * more), out_dir, stages, question=question)
    longer = _shown(outcome)
    steps_s = (shorter["step_time_s"], longer["step_time_s"])
    step_s = continued(counts, steps_s, _between_groups_s(outcome, more - few), count)
    if step_s is None:
        return run(scenario, out_dir, stages)
    shown = _whole_step(shorter, longer, step_s, (count - more) / (more - few), count / more)
    shown["peak_memory_bytes"] = max(one.total for one in memory)
    shown["training"] = shown["job"]["training"] = whole.graph.workload.options["training"]
    note = (
        f"steady state: {step_s:.4g} s for {count} microbatches is a straight line through"
        f" steps of {few} ({steps_s[0]:.4g} s) and {more} ({steps_s[1]:.4g} s);"
        f" tables and timeline show the step of {more}"
    )
    shown["warnings"] = [*longer["warnings"], note]
    return Continued(outcome, shown, note)


def _with(scenario: Scenario, global_batch: int) -> Scenario:
    assert scenario.described is not None
    overrides = {**scenario.described.overrides, "training.global_batch": str(global_batch)}
    return replace(scenario, described=replace(scenario.described, overrides=overrides))


def _shown(outcome: FinishedRun) -> dict[str, Any]:
    return dict(json_object(outcome.info, outcome.analysis, outcome.run_dir / TIMELINE_FILE, 0.0))


def _between_groups_s(outcome: FinishedRun, group: int) -> float:
    """Time between the ends of the first two groups of microbatches on the last stage."""
    columns = ["rank", "stage", "microbatch", "end_ps"]
    ops = pq.read_table(outcome.run_dir / TIMELINE_FILE, columns=columns).to_pandas()
    last = ops[ops["rank"] == ops["rank"][ops["stage"].idxmax()]]
    return s_from_ps(between_groups(last["microbatch"].to_numpy(), last["end_ps"].to_numpy(), group))


def _whole_step(
    shorter: dict[str, Any], longer: dict[str, Any], step_s: float, beyond: float, work: float
) -> dict[str, Any]:
    """A step of ``step_s``: parts ``beyond`` differences further on, rates of ``work`` times the longer's."""
    shown = {**longer, "step_time_s": step_s}
    parts, before = longer["breakdown_s"], shorter["breakdown_s"]
    shown["breakdown_s"] = {name: value + beyond * (value - before[name]) for name, value in parts.items()}
    if longer["band"]:
        ends = {end: longer["band"][end] * step_s / longer["step_time_s"] for end in ("low_s", "high_s")}
        shown["band"] = {**longer["band"], **ends}
    faster = work * longer["step_time_s"] / step_s
    for rate in ("mfu", "model_tflops_per_gpu", "tokens_per_s"):
        shown[rate] = longer[rate] * faster
    shown["engine_events"] = shorter["engine_events"] + longer["engine_events"]
    return shown
