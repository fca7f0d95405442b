"""Logs of a pipeline's stages: per stage and iteration when each forward and backward began and ended.

What Megatron-based trainers write for pictures of a pipeline: a file ``pp_rank_<stage>.json`` per stage,
``{iteration: {"total", "memory", "fwd_start", "fwd_end", "bwd_start", "bwd_end"}}`` in ms after the stage's
own begin of the iteration, lists in the order of execution, with ``wgrad_start``, ``wgrad_end`` where weight
gradients are computed apart and ``<kind>_minibatch``, ``<kind>_chunk`` where the order is not Megatron's; and
``config.json`` with ``pp_size``, ``vp_size`` (or ``vpp_size``) and ``num_mbs`` (or ``micro_batches``).
MegaScan's logs are brought into this form (:mod:`~workloads.imports.logs.megascan`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from simcore.errors import InputError
from simcore.graph.schedules import Action, interleaved_one_f_one_b
from simcore.outside import quoted
from simcore.records import dataclass
from simcore.units import PS_PER_S
from workloads.imports.files import TraceFile, head_of, read_each, read_object
from workloads.imports.logs.megascan import is_megascan, read_megascan
from workloads.imports.logs.pipeline_chunks import counted_chunks
from workloads.imports.recorded import MAX_SPAN_S

_PS_PER_MS = 1_000_000_000
_KINDS = {"F": "fwd", "B": "bwd", "W": "wgrad"}
_OVERLAP_MS = 0.5  # of two actions of a stage: the resolution of GPU event timers, generously
_CONFIG_KEYS = ("pp_size", "num_mbs", "micro_batches")
_Content = dict[str, Any]  # of a JSON file
_Given = tuple[str, int, _Content]  # label, stage (-1: its file does not say), log or configuration
_STOOD_IN = 8  # stages for each that has a log, at most
_MAX_MS = 24 * 3600 * 1e3  # an iteration of more than a day is a mistake


@dataclass(frozen=True)
class LoggedAction:
    """One action of a stage: forward (F), backward (B; the inputs' part where W is logged) or weight gradient
    (W) of a microbatch on a model chunk; ps after the stage's own begin of the iteration.
    """

    kind: str
    microbatch: int
    chunk: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True)
class StageLog:
    """One iteration of one stage: its actions by start, and its whole time (0 where not logged)."""

    actions: tuple[LoggedAction, ...]
    total_ps: int

    @property
    def span_ps(self) -> int:
        """How long it lasted, ps: as logged, or until the last action ended."""
        return max(self.total_ps, max((action.end_ps for action in self.actions), default=0))


@dataclass(frozen=True)
class PipelineLog:
    """A pipeline as logged: ``iterations[number][stage]``.

    ``labels`` are the files, by stage, "" for a stage without one: it has no actions.  ``skipped`` are
    files that were left out, with the reason.  ``counted``: how chunks and microbatches are told where no
    configuration says so, "" where one does.
    """

    labels: tuple[str, ...]
    num_chunks: int
    num_microbatches: int
    world_size: int
    iterations: dict[int, tuple[StageLog, ...]]
    skipped: tuple[str, ...] = ()
    counted: str = ""

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.labels)

    @property
    def missing(self) -> tuple[int, ...]:
        """Stages that no file tells of."""
        return tuple(stage for stage, label in enumerate(self.labels) if not label)


def is_pipeline_log(_source: TraceFile, head: bytes) -> bool:
    """Whether a file begins like the log of a stage, or like the configuration beside it."""
    begin = head.lstrip()[:1]
    if is_megascan(head):
        return True
    stage = b'"fwd_start"' in head and b'"bwd_start"' in head
    config = b'"pp_size"' in head and any(f'"{key}"'.encode() in head for key in _CONFIG_KEYS[1:])
    return begin == b"{" and b'"traceEvents"' not in head and (stage or config)


def read_pipeline_log(sources: Sequence[TraceFile], skip_bad: bool = False) -> PipelineLog:
    """Read the files of one pipeline, in any order.

    ``skip_bad`` leaves out files that cannot be read, and stages of which there is none.
    Errors: InputError with file, iteration and reason: not JSON, lists of different lengths, an end before
    its start, actions that overlap, a stage without a file, a configuration that does not fit.
    """
    by_file, skipped = read_each(sources, _read, skip_bad=skip_bad, needed=False)
    contents = [content for found in by_file for content in found]
    config, config_label = _config(contents)
    stages = _by_stage([given for given in contents if given[2] is not config])
    if not stages:
        what = f"{config_label}: a configuration" if config_label else "; ".join(skipped)
        raise InputError(f"{what} without logs of stages (pp_rank_<stage>.json)")
    held: dict[str, str] = {}
    for label, content in stages.values():
        first = held.setdefault(repr(content), label)
        if first is not label:
            raise InputError(f"{first} and {label} hold the same log: one was copied over the other")
    expected = _size(config, config_label, "pp_size") or max(stages) + 1
    for stage in (*range(expected), *stages):
        if stage not in stages and not skip_bad:
            raise InputError(f"{stages[min(stages)][0]}: the log of stage {stage} of {expected} is missing")
        if stage >= expected:
            raise InputError(f"{stages[stage][0]}: stage {stage}, but {config_label} has pp_size {expected}")
    if expected > _STOOD_IN * len(stages):
        what = f"{len(stages)} of {expected:,} stages have a log"
        raise InputError(
            f"{config_label or next(iter(stages.values()))[0]}: {what}: too few to stand in for the others"
        )
    return _assemble(config, config_label, stages, expected, skipped, skip_bad)


def _read(source: TraceFile) -> list[_Given]:
    """What a file holds: the log of a stage or of several, or a configuration."""
    if is_megascan(head_of(source)):
        stages = sorted(read_megascan(source).items())
        return [(f"{source.label} (stage {stage})", stage, content) for stage, content in stages]
    named = re.search(r"rank[_-]?(\d{1,6})(?!\d)", PurePath(source.member or source.path.name).name)
    return [(source.label, int(named.group(1)) if named else -1, read_object(source, "iterations"))]


def _config(contents: Sequence[_Given]) -> tuple[_Content, str]:
    """The configuration among the files, and which it is; empty where there is none."""
    found = [
        (content, label) for label, _, content in contents if any(key in content for key in _CONFIG_KEYS)
    ]
    if len(found) > 1:
        raise InputError(f"{found[1][1]} and {found[0][1]}: two configurations of pipelines")
    return found[0] if found else ({}, "")


def _by_stage(contents: Sequence[_Given]) -> dict[int, tuple[str, _Content]]:
    """Label and content by stage: the one that a file names, else the next that none does."""
    stages: dict[int, tuple[str, _Content]] = {}
    unnamed = []
    for label, stage, content in contents:
        if stage < 0:
            unnamed.append((label, content))
            continue
        if stage in stages:
            raise InputError(f"{label} and {stages[stage][0]} are both of stage {stage}")
        stages[stage] = (label, content)
    free = (stage for stage in range(len(contents)) if stage not in stages)
    stages.update(dict(zip(free, unnamed, strict=False)))
    return stages


def _assemble(
    config: _Content, config_label: str, stages: dict[int, tuple[str, _Content]], num_stages: int,
    skipped: list[str], skip_bad: bool,
) -> PipelineLog:  # fmt: skip
    chunks = _size(config, config_label, "vp_size") or _size(config, config_label, "vpp_size")
    label, content = stages[min(stages)]
    numbers = [name for name in content if all(name in other for _, other in stages.values())]
    if not numbers:
        raise InputError(f"{label}: no iteration stands in the logs of all stages")
    first = content[numbers[0]]
    length = _logged(first)
    counted = ""
    if not config:
        entries = {stage: other[numbers[0]] for stage, (_, other) in stages.items()}
        chunks, counted = counted_chunks(entries, num_stages, length)
    chunks = chunks or 1
    microbatches = _size(config, config_label, "num_mbs") or _size(config, config_label, "micro_batches")
    microbatches = microbatches or length // chunks
    for name in numbers:
        if not re.fullmatch(r"-?\d{1,18}", name):
            raise InputError(f"{label}: iteration {quoted(name)} is no number")
    if len({int(name) for name in numbers}) < len(numbers):
        raise InputError(f"{label}: an iteration stands twice, its number written in two ways")
    # A configuration may claim any size; an order is made only of what the logs hold.
    held = max(_logged(content[numbers[0]]) for _, content in stages.values())
    order = _megatron_order(num_stages, microbatches, chunks) if microbatches * chunks <= held else {}
    logs: dict[int, list[StageLog]] = {}
    for stage, (label, content) in stages.items():
        try:
            logs[stage] = [
                _stage(f"{label}: iteration {name}", content[name], microbatches, chunks, order)
                for name in numbers
            ]
        except InputError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
    if not logs:
        raise InputError("no trace could be read: " + "; ".join(skipped))
    _check_length(config_label or label, logs.values())
    nothing = [StageLog((), 0)] * len(numbers)
    iterations = {
        int(name): tuple(logs.get(stage, nothing)[place] for stage in range(num_stages))
        for place, name in enumerate(numbers)
    }
    return PipelineLog(
        labels=tuple(stages[stage][0] if stage in logs else "" for stage in range(num_stages)),
        num_chunks=chunks,
        num_microbatches=microbatches,
        world_size=_size(config, config_label, "world_size") or num_stages,
        iterations=dict(sorted(iterations.items())),
        skipped=tuple(skipped),
        counted=counted,
    )


def _logged(entry: Any) -> int:
    """How many forwards an iteration of a stage has."""
    found = entry.get("fwd_start") if isinstance(entry, dict) else None
    return len(found) if isinstance(found, list) else 0


def _check_length(label: str, logs: Iterable[Sequence[StageLog]]) -> None:
    """InputError when the iterations together are longer than a recording can be: they are played in turn."""
    for stage in logs:
        total_ps = sum(log.span_ps for log in stage)
        if total_ps > MAX_SPAN_S * PS_PER_S:
            raise InputError(
                f"{label}: the iterations take {total_ps / PS_PER_S / 86400:.3g} days; a week can be played:"
                " give some of them"
            )


def _megatron_order(num_stages: int, microbatches: int, chunks: int) -> dict[str, list[Action]]:
    """The order of forwards and of backwards, the same on all stages; empty where Megatron has none."""
    if microbatches < 1 or (chunks > 1 and microbatches % num_stages):
        return {}
    actions = interleaved_one_f_one_b(num_stages, microbatches, chunks)[0]
    return {kind: [action for action in actions if action.kind == kind] for kind in ("F", "B")}


def _stage(
    where: str, entry: Any, microbatches: int, chunks: int, order: dict[str, list[Action]]
) -> StageLog:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: is no object of lists")
    actions: list[LoggedAction] = []
    for kind, word in _KINDS.items():
        starts, ends = (_times(where, entry, f"{word}_{end}", kind != "W") for end in ("start", "end"))
        if len(starts) != len(ends):
            raise InputError(f"{where}: {len(starts)} {word}_start but {len(ends)} {word}_end")
        if kind == "W" and not starts:
            continue
        if len(starts) != microbatches * chunks:
            raise InputError(
                f"{where}: {len(starts)} {word}_start for {microbatches} microbatches on {chunks} chunk(s)"
            )
        places = _places(where, entry, kind, len(starts), chunks, order)
        for position, ((microbatch, chunk), start, end) in enumerate(zip(places, starts, ends, strict=True)):
            if end < start:
                raise InputError(f"{where}: {word}_end[{position}] {end} ms is before its start {start} ms")
            actions.append(
                LoggedAction(kind, microbatch, chunk, round(start * _PS_PER_MS), round(end * _PS_PER_MS))
            )
    actions.sort(key=lambda action: (action.start_ps, action.end_ps))
    for before, after in pairwise(actions):
        if after.start_ps < before.end_ps - round(_OVERLAP_MS * _PS_PER_MS):
            raise InputError(
                f"{where}: {before.kind} of microbatch {before.microbatch} and {after.kind} of microbatch"
                f" {after.microbatch} overlap at {after.start_ps / _PS_PER_MS:.3f} ms"
            )
    total = entry.get("total", 0.0)
    for name, value in (("total", total), ("memory", entry.get("memory", 0.0))):
        if not _is_time(value) or value < 0:
            raise InputError(f"{where}: {name} is {quoted(value)}")
    return StageLog(tuple(actions), round(total * _PS_PER_MS))


def _places(
    where: str,
    entry: dict[str, Any],
    kind: str,
    count: int,
    num_chunks: int,
    order: dict[str, list[Action]],
) -> list[tuple[int, int]]:
    """Microbatch and chunk of each action of a kind, in the list's order."""
    word = _KINDS[kind]
    known = order.get("B" if kind == "W" else kind, [])
    places = [(action.microbatch, action.chunk) for action in known]
    numbers = entry.get(f"{word}_minibatch") or []
    chunks = entry.get(f"{word}_chunk") or []
    if not numbers and not chunks and not places:
        raise InputError(
            f"{where}: the microbatches are no multiple of the stages, and {word}_minibatch is missing"
        )
    for name, values in ((f"{word}_minibatch", numbers), (f"{word}_chunk", chunks)):
        whole = isinstance(values, list) and all(isinstance(value, int) for value in values)
        if not whole or len(values) not in (0, count):
            raise InputError(f"{where}: {name} must be {count} whole numbers")
    microbatches = numbers or [microbatch for microbatch, _ in places]
    first = min(microbatches)  # some count from 1
    chunk_of = chunks or [chunk for _, chunk in places] or [0] * count
    found = [(microbatch - first, chunk) for microbatch, chunk in zip(microbatches, chunk_of, strict=True)]
    beyond = [chunk for _, chunk in found if not 0 <= chunk < num_chunks]
    if beyond:
        raise InputError(f"{where}: {word}_chunk {beyond[0]} of {num_chunks} chunk(s)")
    if len(set(found)) < count:
        raise InputError(f"{where}: {word} stands twice for one microbatch and chunk")
    return found


def _size(config: dict[str, Any], label: str, name: str) -> int:
    """A positive size of the configuration; 0 where it has none."""
    value = config.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 20:
        raise InputError(f"{label}: {name} is {quoted(value)}, no size")
    return value


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_MS


def _times(where: str, entry: dict[str, Any], name: str, needed: bool) -> list[float]:
    values = entry.get(name, None if needed else [])
    if not isinstance(values, list):
        raise InputError(f"{where}: has no list {name!r}")
    for position, value in enumerate(values):
        if not _is_time(value) or math.isnan(value) or value < 0:
            raise InputError(f"{where}: {name}[{position}] is {quoted(value)}, no time in ms")
    return values
