"""From a scenario to a run folder: load, check, simulate, write, analyse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.analysis import StepAnalysis, analyse
from simcore.apps.progress import StageTimer
from simcore.apps.run.aside import aside
from simcore.apps.run.asked import asked_states
from simcore.apps.run.band import stated_band
from simcore.apps.run.beside import beside_analysis, memory_beside, stored_tables
from simcore.apps.run.facts import run_facts
from simcore.apps.run.launching import launch_of, predicted_lines
from simcore.apps.run.loading import (
    Loaded,
    assumed_of,
    rank_gpus,
)
from simcore.apps.run.memory_curves import StepInstances
from simcore.apps.run.question import RunQuestion, asked_of, rule_files, run_folder, usual_folder
from simcore.apps.run.scenario import Scenario
from simcore.apps.run.tornado import other_hardware
from simcore.clock import give_back_memory
from simcore.engine import Answered
from simcore.graph import Graph
from simcore.hardware import ClusterSpec
from simcore.memory import MemoryVerdict
from simcore.records import dataclass
from simcore.run import Ran, Setup, run
from simcore.timeline import RunFacts, RunInfo
from simcore.timeline.facts import asked_commit, stage_memory
from simcore.timeline.info import AssumedValue, ResourceChange
from simcore.timeline.simulated import SimulatedTables
from simcore.timeline.writer import unwritten
from simcore.units import s_from_ps

if TYPE_CHECKING:
    from simcore.apps.run.edits import EditStep
    from simcore.interference import LearnedInterference
    from simcore.rules import Matched, Rule


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, what ``run.json`` says, its analysis, what the Perfetto file shows, who
    answered for which op executions, and tables to be printed.
    """

    run_dir: Path
    info: RunInfo
    analysis: StepAnalysis
    perfetto_ranks: tuple[int, ...]
    perfetto_left_out: tuple[str, ...]
    edits: tuple[EditStep, ...] = ()
    rules: tuple[tuple[Rule, tuple[Matched, ...]], ...] = ()
    answered: Answered = field(default_factory=Answered)
    tables: str = ""


def run_scenario(
    scenario: Scenario,
    out_dir: Path | None,
    stages: StageTimer,
    *,
    fold: bool = True,
    edits: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    learned: LearnedInterference | None = None,
    perfetto: bool = True,
    page: bool = False,
    tornado: bool = False,
    emit: str = "",
    advise: bool = False,
    question: RunQuestion | None = None,
    meanwhile: Callable[[RunInfo, StepAnalysis], str] | None = None,
) -> FinishedRun:
    """Simulate ``scenario`` into ``out_dir`` (default: a folder of ``runs`` named by it), atomically.

    With ``fold`` one rank stands for all that must behave like it; the result is the same without.
    ``edits`` (``KEY=VALUE``) change the workload first; the step time is found before each of them too.
    ``rules`` of the user's own change what each of these states issues.
    ``learned`` says how communication slows kernels, instead of what they share.  ``perfetto``: also write
    a file for Perfetto, ``page``: and ``report.html``, ``tornado``: with what other hardware would change.
    ``emit``: and one by which this framework runs the job.  ``question``: what the run
    is a part of the answer to, where that is another than it seems.  ``advise``: of a job that does not fit,
    simulate what would.  ``meanwhile`` makes tables to be printed when there is nothing to do but wait for
    other processes.

    Errors: InputError for what does not fit together or where ``out_dir`` holds the answer to another
    question, OutOfMemoryError when a stage does not fit its GPUs,
    DeadlockError when the workload hangs.
    """
    with stages.stage("loading"):
        asked = asked_states(scenario, edits, rules)
        found, ruled = asked.found, asked.ruled
        graph, cluster = asked.states[-1]
        edited = bool(asked.done or rules)
        if emit:
            launch_of(found, emit, edited=edited)  # what cannot be written is known at once
        fitting = partial(found.fits, asked.before_rules, cluster, scenario, timed=advise)
    described = None if asked.done else found.description
    of_memory = partial(memory_beside, fitting, graph, described)
    with aside(of_memory, forked=page, awaited=2) as fitted:
        with stages.stage("loading"):
            fitted.check()
        setup = setup_of(scenario, fold=fold, learned=learned)
        question = question or asked_of(scenario, found.asked, found.cluster, setup, edits=edits, rules=rules)
        if out_dir is None:
            out_dir = usual_folder(
                question, found.graph.workload.name, scenario, [*edits, *rule_files(rules)]
            )
        plain = dataclasses.replace(setup, fold=True, noise_sigma=0.0, rank_gpus={})
        with stages.stage("simulating before edits"):
            before_s = [run(*state, plain).step_s for state in asked.states[:-1]]
        # Opened before the long part: what cannot be written is known at once.
        answers: tuple[ResourceChange, ...] = ()
        if tornado:
            on = {**(found.description.gpu if found.description else {}), **scenario.settings.hardware}

            def of_other(other: ClusterSpec) -> float:
                fitted.check()
                return run(graph, other, setup).step_s

            with stages.stage("simulating other hardware") as update:
                answers = other_hardware(scenario.cluster, on, cluster, of_other, update)
        with run_folder(out_dir, question, force=scenario.force) as folder:
            with stages.stage("simulating") as update:

                def go_on(done: float) -> None:
                    update(done)
                    fitted.check()  # a job that does not fit is refused as soon as that is known

                ran = run(graph, cluster, setup, progress=_throttled(go_on))
            result = ran.result
            changes = asked.timed([*before_s, s_from_ps(result.step_ps)])
            fitted.tell((folder, StepInstances.of(graph, result)))
            tables = SimulatedTables(folder, graph, result)
            give_back_memory()  # of which a fork would have as much
            with ExitStack() as under_way:
                commit = under_way.enter_context(asked_commit())
                writing = aside(partial(stored_tables, folder, tables), forked=page)
                stored = under_way.enter_context(writing)
                added = (
                    *found.assumptions,
                    *(line for change in changes for line in change.lines()),
                    *(ruled.lines if ruled else ()),
                )
                warned = (*asked.unordered, *(ruled.warnings if ruled else ()), *found.warnings)
                facts = _facts(scenario, found, graph, cluster, ran, question, stages, warned)
                timeline = unwritten(folder, graph, result, facts, tables)
                timeline.let_go()
                stage_of = {
                    rank: graph.programs[graph.program_of_rank[rank]].stage for rank, _ in tables.spans
                }
                beside = partial(
                    beside_analysis, timeline, stage_of, fitted.wait, path=page and timeline.is_large,
                    perfetto=perfetto,
                )  # fmt: skip
                give_back_memory()
                exported = under_way.enter_context(aside(beside, forked=page))
                with stages.stage("analysing"):
                    analysis = analyse(timeline)
                    band, nearest = stated_band(
                        ran.step_s, graph.workload, cluster.gpu, settings=scenario.settings.given,
                        network=scenario.network, edited=bool(asked.done), ruled=bool(rules),
                    )  # fmt: skip
                    of_stages = fitted.result(1)  # which may take longer
                    memory, fits = of_stages.peaks, of_stages.fits
                    info = timeline.info.model_copy(
                        update={
                            "commit": commit(),
                            "band": band,
                            "nearest": nearest,
                            "memory": stage_memory(memory, fits.available_bytes),
                            "memory_verdict": str(fits),
                            "warnings": (*result.warnings, *_tight(fits), *facts.warnings),
                            "assumptions": (*facts.assumptions, f"memory {fits}, by {fits.source}", *added),
                            "memory_peaks": of_stages.held,
                            "digest": exported.result().digest,
                            "tornado": answers,
                        }
                    )
                timeline.info = info
                if emit:
                    fullest = max(one.total for one in memory)
                    lines = predicted_lines(
                        s_from_ps(result.step_ps), info.band, fullest, fits.available_bytes
                    )
                    launched = launch_of(found, emit, edited=edited, predicted=lines)
                    launched.write(folder, "launch")
                if page:
                    from simcore.report.page import PAGE_FILE, write_page

                    timeline.let_go()
                    give_back_memory()
                    with stages.stage("writing the page"):
                        write_page(timeline, analysis, folder / PAGE_FILE, lambda: exported.result(1).path)
                shown_tables = meanwhile(info, analysis) if meanwhile is not None else ""
                with stages.stage("writing the timeline"):
                    stored.result()
                with stages.stage("writing for Perfetto") if perfetto else nullcontext():
                    shown = exported.result(2 if perfetto else 1)
            info = info.model_copy(update={"wall_s": dict(stages.seconds)})
            info.write(folder)
        return FinishedRun(
            out_dir, info, analysis, shown.ranks, shown.left_out, changes,
            ruled.matched if ruled else (), result.answered, shown_tables,
        )  # fmt: skip


def _facts(
    scenario: Scenario, found: Loaded, graph: Graph, cluster: ClusterSpec, ran: Ran,
    question: RunQuestion, stages: StageTimer, warned: tuple[str, ...],
) -> RunFacts:  # fmt: skip
    """What the writer cannot know, but for memory and measured runs: they are asked later."""
    assumed = assumed_of(scenario, found.description, found.graph)
    told = run_facts(scenario, graph, cluster, ran, stages)
    return dataclasses.replace(
        told,
        asked=question.text,
        question=question.key,
        software=found.software,
        assumed=tuple(AssumedValue(key=one.key, value=one.value, why=one.why) for one in assumed),
        warnings=(*warned, *told.warnings),
    )


def _tight(fits: MemoryVerdict) -> tuple[str, ...]:
    """What to warn of where the job does not fit, or may not."""
    if fits.word == "fits":
        return ()
    return (f"{fits}: the step time is that of GPUs on which it would fit",)


def setup_of(scenario: Scenario, *, fold: bool = True, learned: LearnedInterference | None = None) -> Setup:
    """How the scenario says that its job is simulated."""
    settings = scenario.settings
    return Setup(
        network=scenario.network,
        nccl=settings.nccl,
        fp32_math=settings.fp32_math,
        tables=settings.tables,
        packets=settings.packets,
        rank_gpus=rank_gpus(settings, scenario.cluster, force=scenario.force),
        noise_sigma=settings.noise_sigma,
        seed=scenario.seed,
        learned=learned,
        fold=fold,
        shortcuts=settings.shortcuts,
    )


def _throttled(update: Callable[[float], None]) -> Callable[[float], None]:
    """Pass on whole percents only: an update takes a lock that the display shares."""
    last = -1

    def progress(done: float) -> None:
        nonlocal last
        if int(100 * done) != last:
            last = int(100 * done)
            update(done)

    return progress
