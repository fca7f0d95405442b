"""What stages hold through a simulated step, by category and by the clock: the table ``memory.parquet``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.apps.run.memory_picture import held_over_time
from simcore.distinct import distinct
from simcore.engine import SimulationResult
from simcore.graph import Graph, Program
from simcore.memory import activations_of
from simcore.memory.lifetimes import BEFORE, OPTIMIZER
from simcore.records import dataclass
from simcore.timeline.info import HeldAtPeak, MemoryPeak
from simcore.timeline.memory_table import write_memory

if TYPE_CHECKING:
    from simcore.memory.lifetimes import StageLifetimes
    from workloads.jobs import Description

IntArray = npt.NDArray[np.int64]

#: Stages whose curves are kept, and points of each: what a page can show.
_STAGES: Final = 6
_POINTS: Final = 300
_LARGEST: Final = 20
_BESIDE: Final = {BEFORE: "the whole step", OPTIMIZER: "the optimizer's step"}
_PASSES: Final = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes of each category on one GPU of a stage from each of ``times_ps`` on."""

    stage: int
    times_ps: IntArray
    by_category: dict[str, IntArray]


@dataclass(frozen=True)
class StepInstances:
    """When template instances of a step's stages whose curves are kept begin and end, ps."""

    of_stages: tuple[tuple[IntArray, IntArray], ...]
    step_ps: int

    @classmethod
    def of(cls, graph: Graph, result: SimulationResult) -> StepInstances:
        """Of a simulated step."""
        return cls(tuple(_instances(graph, one, result) for one in _spread(graph)), result.step_ps)


class MemoryCurves:
    """Curves of some stages, the fullest among them, but for their times: those are a simulated step's."""

    def __init__(self, graph: Graph, description: Description | None) -> None:
        self._graph, self._programs = graph, _spread(graph)
        self._lifetimes = _lifetimes(description, self._programs) if description is not None else None

    def write(self, folder: Path, instances: StepInstances) -> tuple[MemoryPeak, ...]:
        """Write them; what each stage holds at its peak."""
        found = []
        for number, (program, of_stage) in enumerate(zip(self._programs, instances.of_stages, strict=True)):
            if self._lifetimes is None:
                found.append(_recorded(self._graph, program, of_stage, instances.step_ps))
            else:
                found.append(_described(program, self._lifetimes[number], of_stage, instances.step_ps))
        write_memory(folder, [(curve.stage, curve.times_ps, curve.by_category) for curve, _ in found])
        return tuple(peak for _, peak in found)


def _lifetimes(description: Description, programs: list[Program]) -> list[StageLifetimes]:
    """Of a described job: every storage of stages in their second step."""
    from workloads.parallel.job import Job
    from workloads.parallel.lifetimes import stage_lifetimes

    job, (schedule, _) = Job.of(description), description.schedule()
    return [stage_lifetimes(job, one.stage, schedule[one.stage]) for one in programs]


def _spread(graph: Graph) -> list[Program]:
    """A program of each stage, of many stages some, evenly spread and the fullest among them."""
    by_stage = {program.stage: program for program in reversed(graph.programs)}
    stages = sorted(by_stage)
    fullest = max(stages, key=lambda stage: by_stage[stage].memory.peak)
    if len(stages) > _STAGES:
        picked = np.linspace(0, len(stages) - 1, _STAGES).round().astype(int).tolist()
        stages = sorted({fullest, *(stages[at] for at in picked)})
    return [by_stage[stage] for stage in stages]


def _instances(graph: Graph, program: Program, result: SimulationResult) -> tuple[IntArray, IntArray]:
    """When each template instance of a program begins and ends, ps, on one of its ranks."""
    times = result.times_of(program.ranks[0][0])
    sizes = np.diff(graph.template_start)[program.template]
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    filled = sizes > 0
    begin, end = np.zeros(len(sizes), dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)
    if filled.any():
        begin[filled] = np.minimum.reduceat(times.start_ps, first[filled])
        end[filled] = np.maximum.reduceat(times.end_ps, first[filled])
    return np.maximum.accumulate(begin), np.maximum.accumulate(end)


def _recorded(
    graph: Graph, program: Program, instances: tuple[IntArray, IntArray], step_ps: int
) -> tuple[MemoryCurve, MemoryPeak]:
    """Of a traced program: what lives through the step, and what its templates allocate and release."""
    begin, end = instances
    before, highest = activations_of(graph, program)
    held = program.memory
    if not highest.any():  # nothing is known but the recorded peak
        highest = np.full(len(begin), held.activations_peak)
        before = highest
    times = np.stack([begin, (begin + end) // 2, end], axis=1).ravel()
    after = np.append(before[1:], before[:1])
    live = np.stack([before, highest, after], axis=1).ravel()
    at = int(np.argmax(live)) if len(live) else 0
    keep = _thinned(times, live, at, step_ps)
    steady = {
        "parameters": held.parameters, "gradients": held.gradients, "optimizer states": held.optimizer_states,
    }  # fmt: skip
    levels = {name: np.full(len(keep), size, dtype=np.int64) for name, size in steady.items()}
    levels["activations"] = live[keep]
    microbatch = int(program.microbatch[at // 3]) if len(live) else -1
    name = graph.template_names[int(program.template[at // 3])] if len(live) else ""
    peak = MemoryPeak(
        stage=program.stage,
        time_ps=int(times[at]) if len(times) else 0,
        num_bytes=sum(steady.values()) + (int(live[at]) if len(live) else 0),
        instant=f"microbatch {microbatch}'s {name}" if microbatch >= 0 else name,
    )
    return MemoryCurve(program.stage, times[keep], levels), peak


def _described(
    program: Program, lifetimes: StageLifetimes, instances: tuple[IntArray, IntArray], step_ps: int
) -> tuple[MemoryCurve, MemoryPeak]:
    """Of a described job: every storage of the stage in its second step, an event spread over the pass that
    it belongs to.
    """
    begin, end = instances
    passes = np.flatnonzero(program.microbatch >= 0)
    skipped = _second_step(lifetimes.action)
    action = lifetimes.action[skipped:]
    times = _times_of_events(
        action, len(lifetimes.actions), np.append(begin[passes], end[passes][-1:]),
        np.append(end[passes], step_ps),
    )  # fmt: skip
    levels = {name: level[skipped:] for name, level in held_over_time(lifetimes).items()}
    live = np.sum(list(levels.values()), axis=0)
    at = int(np.argmax(live))
    keep = _thinned(times, live, at, step_ps)
    number = int(action[at])
    of = lifetimes.actions[number] if number >= 0 else None
    instant = f"microbatch {of.microbatch}'s {_PASSES[of.kind]}" if of else _BESIDE[number]
    peak = MemoryPeak(
        stage=program.stage,
        time_ps=int(times[at]),
        num_bytes=int(live[at]),
        instant=instant,
        largest=_largest(lifetimes, skipped + at),
    )
    curve = {name: level[keep] for name, level in levels.items()}
    return MemoryCurve(program.stage, times[keep], curve), peak


def _second_step(action: IntArray) -> int:
    """The event before the second step's first: the first step ends by making what the optimizer keeps."""
    stepped = np.flatnonzero((action[:-1] == OPTIMIZER) & (action[1:] >= 0))
    return int(stepped[0]) if len(stepped) else 0


def _times_of_events(action: IntArray, num_actions: int, begin: IntArray, end: IntArray) -> IntArray:
    """When events happen: those of an action evenly over its pass, of the optimizer evenly over the last part
    of ``begin`` and ``end``; the first at 0.
    """
    num_passes = len(begin) - 1
    if num_passes <= 0:
        return np.zeros(len(action), dtype=np.int64)
    number = np.where(action == OPTIMIZER, num_actions, action)
    number[0] = BEFORE
    # One pass an action, or where some share one (DualPipe's pairs) the pass at the same part of the order.
    of = np.append(np.arange(num_actions) * num_passes // max(1, num_actions), num_passes)
    counts = np.bincount(number[number >= 0], minlength=num_actions + 1)
    firsts = np.searchsorted(number, np.arange(num_actions + 1))
    place = np.arange(len(number)) - firsts[np.maximum(number, 0)]
    share = (place + 0.5) / np.maximum(1, counts[np.maximum(number, 0)])
    at = of[np.maximum(number, 0)]
    found = begin[at] + np.rint(share * (end[at] - begin[at])).astype(np.int64)
    return np.maximum.accumulate(np.where(number < 0, 0, found))


def _thinned(times: IntArray, live: IntArray, peak: int, step_ps: int) -> IntArray:
    """Points to keep: the fullest of each of so many parts of the step, the peak, the first and the last."""
    if not len(times):
        return np.zeros(0, dtype=np.int64)
    part = np.minimum(times * _POINTS // max(1, step_ps), _POINTS - 1)
    order = np.lexsort((-live, part))
    first = np.concatenate([[True], np.diff(part[order]) > 0])
    return distinct(np.concatenate([order[first], [0, peak, len(times) - 1]]))


def _largest(lifetimes: StageLifetimes, at: int) -> tuple[HeldAtPeak, ...]:
    """What is live after event ``at``, alike storages together, the most bytes first."""
    events = lifetimes.events
    storage, size = events.storage[: at + 1], events.num_bytes[: at + 1]
    released = np.zeros(int(events.storage.max(initial=0)) + 1, dtype=np.bool_)
    released[storage[size < 0]] = True
    live = np.flatnonzero((size >= 0) & ~released[storage])
    key = np.stack([lifetimes.holder[live], size[live]], axis=1)
    alike, count = np.unique(key, axis=0, return_counts=True)
    by_name: dict[tuple[str, str, str], list[int]] = {}
    for (holder, num_bytes), number in zip(alike.tolist(), count.tolist(), strict=True):
        one = lifetimes.holders[holder]
        known = by_name.setdefault((one.category, one.module, one.name), [0, 0])
        known[0] += number
        known[1] += number * num_bytes
    found = [
        HeldAtPeak(category=category, name=f"{module} {name}".strip(), count=number, num_bytes=num_bytes)
        for (category, module, name), (number, num_bytes) in by_name.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.num_bytes)[:_LARGEST])
