"""Published runs asked as a user asks them: the job as YAML, through ``run_sim``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from simcore.apps.child import ask_run_sim
from simcore.apps.measured.runs.predict import predict_case
from simcore.apps.measured.runs.score import RowScore, case_weight
from simcore.apps.progress import Countdown
from simcore.apps.run.fitting import outside_of, played, verdict_of
from simcore.errors import InputError, SimcoreError, nearest
from simcore.hardware import load_cluster
from simcore.records import dataclass
from workloads.jobs.published import Band, Case, RunRow, describe

#: How far a user's answer may be from the validated one, relative.
TOLERANCE: Final = 1e-3


@dataclass(frozen=True)
class Asked:
    """One case: seconds per step as validated and as ``run_sim`` says them, or why it says none."""

    row: str
    validated_s: float
    told_s: float
    reason: str = ""

    @property
    def differs(self) -> bool:
        """Whether a user is told something else."""
        return bool(self.reason) or abs(self.told_s - self.validated_s) > TOLERANCE * self.validated_s


def case_yaml(case: Case, *, fits: bool | None = None) -> str:
    """The case as a file that ``run_sim`` takes; memory only warns where a job that ran seems not to fit,
    which its storages tell unless it is known.
    """
    import yaml

    plain = json.loads(json.dumps(dict(case.said)))
    if not (_fits(case) if fits is None else fits):
        plain["set"] = {**plain.get("set", {}), "memory.check": "warn"}
    return str(yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100))


def show(rows: Sequence[RunRow], wanted: str, number: int = 1) -> str:
    """The YAML of the row whose id is ``wanted``; of a band the case ``number``, counted from 1.

    Errors: InputError for an unknown id or number, or a row that cannot be described.
    """
    row = next((row for row in rows if row.id == wanted), None)
    if row is None:
        raise InputError(f"no row {wanted!r}{nearest(wanted, [row.id for row in rows])}")
    band = describe(row)
    if not 1 <= number <= len(band.cases):
        raise InputError(f"--case {number}: {wanted} has cases 1 to {len(band.cases)}")
    return "".join(f"# {line}\n" for line in _remarks(row, band, number)) + case_yaml(band.cases[number - 1])


def _fits(case: Case) -> bool:
    cluster = load_cluster(case.cluster, case.overrides)
    try:
        available = outside_of(cluster, case).available_bytes(cluster.gpu)
        return verdict_of(available, played(case)).word != "does not fit"
    except SimcoreError:
        return True


def _remarks(row: RunRow, band: Band, number: int) -> Iterable[str]:
    source = " ".join(f"{row.text('source_repo_or_paper')} {row.text('source_location')}".split())
    yield f"{row.id}: {source or 'a table of runs'}"
    if len(band.cases) > 1:
        yield f"case {number} of {len(band.cases)}; not published: {', '.join(band.unpublished)}"
        for other, case in enumerate(band.cases, start=1):
            yield f"  --case {other}: {case.assumed}"
    chosen = band.cases[number - 1]
    yield from (f"assumed: {line}" for line in chosen.assumptions)
    yield from (f"warning: {line}" for line in chosen.warnings)


def ask(scores: Sequence[RowScore]) -> list[Asked]:
    """The cheapest row of each family asked through ``run_sim``, beside what validation says of it."""
    cheapest: dict[str, tuple[str, Case]] = {}
    for score in sorted(scores, key=lambda score: case_weight(score.described.band.cases[0])):
        row = score.described.row
        cheapest.setdefault(row.family, (row.id, score.described.band.cases[0]))
    progress = Countdown("asked as a user asks")
    found = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for asked in pool.map(lambda pair: _ask(*pair), cheapest.values()):
            found.append(asked)
            progress(len(found), len(cheapest))
    return found


def _ask(row: str, case: Case) -> Asked:
    try:
        validated, refused = predict_case(case), ""
    except SimcoreError as error:  # a corner of a band that cannot be: a user must be refused, too
        validated, refused = 0.0, str(error)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(case_yaml(case), encoding="utf-8")
        try:
            told = float(ask_run_sim([str(path), "--out", str(Path(folder) / "run")])["step_time_s"])
        except InputError as error:
            return Asked(row, validated, 0.0, "" if refused else str(error).splitlines()[-1])
    return Asked(row, validated, told, f"answered, but validation refuses: {refused}" if refused else "")
