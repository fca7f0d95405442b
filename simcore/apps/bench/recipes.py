"""The command ``bench recipes``: what a plan finds where NVIDIA published how it trains, and by how much."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import yaml

from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError, SimcoreError, nearest
from simcore.records import dataclass

if TYPE_CHECKING:  # --help of all commands loads this file
    from simcore.planning.question import Question
    from workloads.jobs.published import Case, RunRow

#: What of a recipe is the question; all else of ``training`` and ``parallel`` is its answer.
_ASKED: Final = ("precision", "seq", "global_batch")
_GAP: Final = 0.02


@dataclass(frozen=True)
class Found:
    """A recipe and the best strategy of a plan for the same job, each as the simulator has it, seconds.

    ``measured_s``: what was published of the recipe.  ``refused``: why it is no candidate of plans, or "".
    """

    row: str
    gpus: int
    measured_s: float | None
    recipe: str
    recipe_s: float
    refused: str
    best: str
    best_s: float
    gap: float
    num_candidates: int
    num_simulated: int

    @property
    def ratio(self) -> float:
        """The best step over the recipe's."""
        return self.best_s / self.recipe_s

    @property
    def lacking(self) -> bool:
        """Whether the recipe is faster than anything in the space can be."""
        return self.recipe_s < self.best_s * (1 - self.gap)


def bench_recipes(
    runs: Annotated[Path, typer.Argument(metavar="CSV", help="Published training runs, as validate reads.")],
    rows: Annotated[
        list[str] | None, typer.Argument(metavar="ID ...", help="Of these rows.", show_default=False)
    ] = None,
    most_gpus: Annotated[int, typer.Option(min=1, help="Where no rows are named: on at most so many.")] = 128,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="Of each plan.")] = 600.0,
    as_json: Json = False,
) -> None:
    """A plan for each model and precision of NVIDIA's recipes, beside the recipe in the same model."""
    from workloads.jobs.published import read_run_rows

    every = read_run_rows(str(runs))
    by_id = {row.id: row for row in every}
    for name in rows or ():
        if name not in by_id:
            raise InputError(f"{runs}: no row {name!r}{nearest(name, by_id)}")
    chosen = [by_id[name] for name in rows] if rows else recipes(every, most_gpus)
    found: list[Found] = []
    refused: dict[str, str] = {}
    if not as_json:
        print(f"{'measured s':>12}{'simulated s':>13}{'over recipe':>13}{'gap':>8}  strategy", flush=True)
    for row in chosen:
        say(f"{row.id} ...")
        try:
            found.append(beside(row, budget_s=budget))
            lines = _lines(found[-1])
        except SimcoreError as error:
            refused[row.id] = str(error).splitlines()[0]
            lines = [f"{row.id}: {refused[row.id]}"]
        if not as_json:  # at once: whoever interrupts minutes of planning keeps what was found
            print("\n".join(lines), flush=True)
    if as_json:
        shown = [{**asdict(one), "ratio": one.ratio, "lacking": one.lacking} for one in found]
        print(json.dumps({"rows": shown, "refused": refused}))
        return
    print(_summary(found))


def recipes(rows: Iterable[RunRow], most_gpus: int) -> list[RunRow]:
    """The largest of each model, precision and length among NVIDIA's rows, the latest of equals."""
    from workloads.jobs.published import describe

    found: dict[tuple[str, str, int], tuple[int, RunRow]] = {}
    for row in rows:
        if not row.text("source_repo_or_paper").upper().startswith("NVIDIA"):
            continue
        try:
            case = describe(row).cases[0]
        except SimcoreError:
            continue
        if case.parallel.world_size > most_gpus:
            continue
        key = case.model.name.lower(), case.training.precision, case.training.seq
        if key not in found or found[key][0] <= case.parallel.world_size:
            found[key] = case.parallel.world_size, row
    return [row for _, row in found.values()]


def beside(row: RunRow, *, budget_s: float) -> Found:
    """The recipe of ``row`` beside the best of a plan.  InputError for what cannot be planned."""
    from simcore.apps.plan.asking import asked
    from simcore.apps.plan.journal import Journal
    from simcore.apps.plan.planning import planned
    from simcore.planning.appraisal import Appraiser
    from simcore.planning.space import asked_axes
    from simcore.planning.words import short_form
    from workloads.jobs.published import describe

    cases = describe(row).cases
    with tempfile.TemporaryDirectory(prefix="bench-recipes-") as scratch:

        def question(name: str, said: Mapping[str, Any]) -> Question:
            file = Path(scratch) / f"{name}.yaml"
            file.write_text(yaml.safe_dump(json.loads(json.dumps(said))), encoding="utf-8")
            return asked(str(file), None, []).question

        # Of what is not published, the first that fits, else what lacks least.
        asked_so = [(case, question("recipe", case.said)) for case in cases]
        examined = [recipe.examined({}) for _, recipe in asked_so]
        fitting = [number for number, one in enumerate(examined) if not one.reason]
        leanest = min(range(len(cases)), key=lambda number: examined[number].peak_bytes or math.inf)
        case, recipe = asked_so[fitting[0] if fitting else leanest]
        job = question("job", open_job(case))
        done = Appraiser(recipe).simulated({})
        if done.reason:
            raise InputError(done.reason)
        axes = asked_axes("", job.said)
        journal = Journal(Path(scratch) / "simulations.jsonl", job)
        plan = planned(job, axes, gap=_GAP, budget_s=budget_s, journal=journal)
    if plan.search is None or plan.search.best is None:
        raise InputError(plan.census.advice())
    best = plan.search.best
    return Found(
        row=row.id,
        gpus=case.parallel.world_size,
        measured_s=_measured_s(row, recipe),
        recipe=short_form(recipe.completed({})),
        recipe_s=done.step_s,
        refused=recipe.examined({}).reason,
        best=short_form(job.completed(best.settings)),
        best_s=best.step_s or 0.0,
        gap=plan.search.certificate().gap,
        num_candidates=plan.census.num_candidates,
        num_simulated=plan.search.num_simulated,
    )


def open_job(case: Case) -> dict[str, Any]:
    """What a recipe trains on which machines, without how."""
    said = dict(case.said)
    said.pop("parallel", None)
    training = said.get("training", {})
    return {**said, "training": {key: training[key] for key in _ASKED if key in training}}


def _measured_s(row: RunRow, recipe: Question) -> float | None:
    from workloads.jobs.published import measured_step_s

    try:
        return measured_step_s(row, recipe.completed({}).model, recipe.cluster.gpu)
    except InputError:
        return None


def _lines(one: Found) -> list[str]:
    """The recipe with its measured and simulated step, then what the plan found."""
    note = f": {one.refused}" if one.refused else ""
    measured = "" if one.measured_s is None else f"{one.measured_s:.4g}"
    return [
        *textwrap.wrap(f"{one.row}, {one.gpus} GPUs{note}", subsequent_indent="    "),
        f"{measured:>12}{one.recipe_s:13.4g}{'':21}  {one.recipe}",
        f"{'':12}{one.best_s:13.4g}{one.ratio:13.3f}{one.gap:8.1%}  {one.best}",
    ]


def _summary(found: Sequence[Found]) -> str:
    if not found:
        return "no recipe could be planned"
    ratios = sorted(one.ratio for one in found)
    slower, lacking = sum(ratio > 1.0 for ratio in ratios), sum(one.lacking for one in found)
    return textwrap.fill(
        f"{len(ratios)} recipes: the plan's step over the recipe's {ratios[0]:.3f} to {ratios[-1]:.3f},"
        f" {statistics.median(ratios):.3f} in the middle; {slower} are slower, {lacking} by more than the"
        " gap: of these the space lacks something"
    )
