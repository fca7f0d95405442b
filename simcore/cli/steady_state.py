"""``--steady-state``: a step of many microbatches, continued from two shorter ones.

Once a pipeline is full, each further microbatch adds the same time, that of the slowest stage.  Two steps are
simulated, both long enough to fill the pipeline; times beyond are a straight line through them.
"""

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
from workloads.parallel.spec import ParallelSpec


@dataclass(frozen=True)
class Continued:
    """The longer of the two steps as simulated, and the whole step as ``--json`` shows it."""

    outcome: Outcome
    shown: dict[str, Any]
    note: str


def simulated_counts(parallel: ParallelSpec) -> tuple[int, int]:
    """Two numbers of microbatches between which one more adds what any further one does."""
    pp = parallel.pp
    if parallel.virtual_stages > 1 and parallel.placement == "loop":
        group = parallel.microbatch_group or pp
        return 2 * group, 3 * group
    if parallel.schedule in ("zero_bubble", "dualpipe", "dualpipe_v", "zb_v"):
        return 2 * pp + 2, 2 * pp + 4
    return (2, 3) if pp == 1 else (pp + 1, pp + 2)


def run_steady_state(
    scenario: Scenario, out_dir: Path | None, stages: Stages, run: Callable[..., Outcome] = run_scenario
) -> Continued | Outcome:
    """The step of a described job, continued from two shorter ones where it is longer than both.

    Errors: as :func:`run_scenario`; InputError for a workload that is no description, OutOfMemoryError as
    the whole step would run out.
    """
    if scenario.described is None:
        raise InputError("--steady-state needs a described job: a model's name, config.json or YAML file")
    whole = loaded(scenario)
    assert whole.description is not None
    job, count = whole.description, whole.graph.workload.num_microbatches
    few, more = simulated_counts(job.parallel)
    if count <= more:
        return run(scenario, out_dir, stages)
    memory = whole.fits(whole.graph, whole.cluster)
    out_dir = out_dir or Path("runs") / whole.graph.workload.name
    with tempfile.TemporaryDirectory() as scratch:
        shorter = _shown(run(_with(scenario, job.training.micro_batch * job.parallel.dp * few),
                             Path(scratch) / "run", stages))  # fmt: skip
    outcome = run(_with(scenario, job.training.micro_batch * job.parallel.dp * more), out_dir, stages)
    longer = _shown(outcome)
    shown = _continued(shorter, longer, (count - more) / (more - few), count / more)
    shown["peak_memory_bytes"] = max(one.total for one in memory)
    note = (
        f"steady state: {shown['step_time_s']:.4g} s for {count} microbatches is a straight line through"
        f" steps of {few} ({shorter['step_time_s']:.4g} s) and {more} ({longer['step_time_s']:.4g} s);"
        f" tables and timeline show the step of {more}"
    )
    shown["warnings"] = [*longer["warnings"], note]
    return Continued(outcome, shown, note)


def _with(scenario: Scenario, global_batch: int) -> Scenario:
    assert scenario.described is not None
    overrides = {**scenario.described.overrides, "training.global_batch": str(global_batch)}
    return replace(scenario, described=replace(scenario.described, overrides=overrides))


def _shown(outcome: Outcome) -> dict[str, Any]:
    return dict(json_object(outcome.info, outcome.analysis, outcome.run_dir / TIMELINE_FILE, 0.0))


def _continued(shorter: dict[str, Any], longer: dict[str, Any], beyond: float, work: float) -> dict[str, Any]:
    """Times ``beyond`` differences further on; rates of ``work`` times the longer step's work."""

    def line(before: float, after: float) -> float:
        return after + beyond * (after - before)

    shown = dict(longer)
    shown["step_time_s"] = line(shorter["step_time_s"], longer["step_time_s"])
    shown["breakdown_s"] = {
        name: line(shorter["breakdown_s"][name], value) for name, value in longer["breakdown_s"].items()
    }
    faster = work * longer["step_time_s"] / shown["step_time_s"]
    for rate in ("mfu", "model_tflops_per_gpu", "tokens_per_s"):
        shown[rate] = longer[rate] * faster
    shown["engine_events"] = shorter["engine_events"] + longer["engine_events"]
    return shown
