"""What a plan leaves behind: every candidate in a table, the best as files that ``run_sim.py`` takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from simcore.apps.plan.planning import Planned
from simcore.apps.progress import say
from simcore.apps.run.band import stated_band
from simcore.apps.run.launching import launch_file, predicted_lines
from simcore.errors import InputError
from simcore.files import whole_file, whole_text
from simcore.planning.ground import PLACEMENT
from simcore.planning.search import Trial
from simcore.units import s_from_ps
from workloads.jobs import Description

TRIALS: Final = "trials.parquet"
JOURNAL: Final = "simulations.jsonl"
BEST: Final = "best"
#: Columns of :data:`TRIALS` beside one for each setting.
_COLUMNS: Final = (
    ("reason", pa.string()),  # why it was dropped; "" where it was not
    ("peak_memory_bytes", pa.int64()),
    ("bound_s", pa.float64()),  # its step takes at least so long; null where it was dropped
    ("close_bound", pa.bool_()),  # whether that is the closer of the two bounds
    ("step_time_s", pa.float64()),  # null where it was not simulated
)


def write_trials(path: Path, plan: Planned) -> None:
    """One row for each candidate, in the order of the space.  InputError when it cannot be written."""
    trials = {} if plan.search is None else {id(trial.appraised): trial for trial in plan.search.trials}
    keys = sorted({key for one in plan.census.every for key in one.settings})
    rows: dict[str, list[Any]] = {name: [] for name in (*keys, *(name for name, _ in _COLUMNS))}
    for one in plan.census.every:
        trial = trials.get(id(one))
        for key in keys:
            rows[key].append(one.settings.get(key))
        rows["reason"].append(one.reason or (trial.reason if trial is not None else ""))
        rows["peak_memory_bytes"].append(one.peak_bytes or None)
        rows["bound_s"].append(None if one.reason else trial.bound_s if trial else s_from_ps(one.rough_ps))
        rows["close_bound"].append(trial is not None and trial.close)
        rows["step_time_s"].append(trial.step_s if trial is not None else None)
    schema = pa.schema([*((key, pa.string()) for key in keys), *_COLUMNS])
    try:
        with whole_file(path) as fresh:
            pq.write_table(pa.table(rows, schema=schema), fresh, compression="zstd")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def write_best(
    folder: Path, plan: Planned, trials: list[Trial], cluster: str, given: Mapping[str, str]
) -> None:
    """``1.yaml`` and so on in ``folder``: complete jobs on ``cluster`` with the settings ``given``."""
    for number, trial in enumerate(trials, start=1):
        job = plan.question.completed(trial.settings)
        said = (
            f"# {plan.question.named(trial.settings)}: {trial.step_s:.4g} s a step, as plan.py simulated it\n"
        )
        placed = {key: text for key, text in trial.settings.items() if key == PLACEMENT}
        content = job_content(job, cluster, {**given, **placed})
        text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
        whole_text(folder / f"{number}.yaml", said + text)


def write_launches(folder: Path, plan: Planned, trials: list[Trial], framework: str) -> None:
    """``1.megatron.sh`` and so on beside the YAML; where the framework does not run a job, why not."""
    question = plan.question
    cluster, refused = question.cluster, dict[str, list[int]]()
    for number, trial in enumerate(trials, start=1):
        job = question.completed(trial.settings)
        assert trial.step_s is not None
        workload = job.graph().workload
        band, _ = stated_band(
            trial.step_s, workload, cluster.gpu, settings=question.overrides, network="fluid"
        )
        peak = trial.appraised.peak_bytes
        lines = predicted_lines(trial.step_s, band, peak, question.available_bytes)
        if PLACEMENT in trial.settings:
            lines = [*lines, f"with GPUs given to ranks as --set {PLACEMENT}={trial.settings[PLACEMENT]}"]
        try:
            launch_file(framework, job, cluster, lines).write(folder, str(number))
        except InputError as error:
            refused.setdefault(str(error), []).append(number)
            whole_text(folder / f"{number}.{framework}.txt", f"{error}\n")
    for reason, numbers in refused.items():
        say(f"no launch file of {framework} for number {', '.join(map(str, numbers))}: {reason}")


def job_content(job: Description, cluster: str, given: Mapping[str, str]) -> dict[str, Any]:
    """A complete job as a file has it: nothing is left to be assumed."""

    def plain(spec: Any, **more: Any) -> dict[str, Any]:
        found = {key: value for key, value in spec.model_dump(mode="json").items() if value is not None}
        return {**more, **found}

    software = plain(job.software, preset=job.software.name)
    del software["name"]
    content: dict[str, Any] = {
        "model": plain(job.model), "parallel": plain(job.parallel), "training": plain(job.training),
        "software": software,
    }  # fmt: skip
    if Path(cluster).suffix == "":  # a file stays where it is: --cluster names it
        content["cluster"] = cluster
    if given:
        content["set"] = dict(given)
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]
