"""MegaScan's logs (MegatronApp) in the form of stage logs: begins and ends of forwards and backwards.

A file per worker, ``benchmark-data-D-pipeline-P-tensor-T.json``: a list of events in the order of execution,
iterations between ``{"name": "iteration", "ph": "B"}`` and ``"E"``, times ``rel_ts`` in ns after their begin.
Or what is merged of them for a trace viewer: ``ts`` in us on one clock, iterations in ``args``.  An end says
``microbatch``, ``model_chunk`` and ``pp_rank``.  Events of other names are nested in these, and left aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from simcore.errors import InputError
from simcore.outside import json_document, quoted
from workloads.imports.files import TraceFile, read_whole

_WORDS = {"forward": "fwd", "backward": "bwd"}
_BEGIN, _END = "iteration begin", "iteration end"
_Content = dict[str, dict[str, Any]]  # of a stage, by iteration


class _Tick(NamedTuple):
    """The begin or end of something in an iteration: when, ms, and what the log says of it."""

    where: str
    name: str
    is_begin: bool
    iteration: int
    at_ms: float
    told: dict[str, Any]


def is_megascan(head: bytes) -> bool:
    """Whether a file begins like a worker's log, or like what is merged of several."""
    worker = b'"pad_before"' in head and b'"rel_ts"' in head
    merged = b'"model_chunk"' in head and b'"pp_rank"' in head and b'"iteration"' in head
    return head.lstrip()[:1] == b"[" and (worker or merged)


def read_megascan(source: TraceFile) -> dict[int, _Content]:
    """By stage and iteration: times of forwards and backwards in lists, which they are, and the whole time.

    Errors: InputError with file, event and reason for events that are not in pairs or do not say what they
    are.
    """
    events = json_document(read_whole(source), source.label)
    if not isinstance(events, list):
        raise InputError(f"{source.label}: is no JSON list of events")
    for number, event in enumerate(events):
        if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
            raise InputError(f"{source.label}: event {number} is no object")
    merged = any("ts" in event for event in events)
    stages: dict[int, _Content] = {}
    begun: dict[tuple[Any, str], float] = {}
    stage_of: dict[Any, int] = {}  # by process
    for tick in (_merged_ticks if merged else _worker_ticks)(source.label, events):
        process = tick.told.get("pid")
        if tick.name == _END and process in stage_of:
            of_stage = stages[stage_of[process]]
            if str(tick.iteration) in of_stage:
                of_stage[str(tick.iteration)]["total"] = tick.at_ms
        if tick.name not in _WORDS:
            continue
        if tick.is_begin:
            if (process, tick.name) in begun:
                raise InputError(f"{tick.where}: a {tick.name} begins in another")
            begun[process, tick.name] = tick.at_ms
            continue
        if (process, tick.name) not in begun:
            raise InputError(f"{tick.where}: a {tick.name} ends that did not begin")
        stage_of[process] = stage = _whole(tick, "pp_rank")
        entry = stages.setdefault(stage, {}).setdefault(str(tick.iteration), _empty())
        word = _WORDS[tick.name]
        entry[f"{word}_start"].append(begun.pop((process, tick.name)))
        entry[f"{word}_end"].append(tick.at_ms)
        entry[f"{word}_minibatch"].append(_whole(tick, "microbatch"))
        entry[f"{word}_chunk"].append(_whole(tick, "model_chunk"))
    if not stages:
        raise InputError(f"{source.label}: no forward says its microbatch, model chunk and stage")
    return stages


def _worker_ticks(label: str, events: list[dict[str, Any]]) -> Iterator[_Tick]:
    iteration = -1
    for number, event in enumerate(events):
        where, name, is_begin = f"{label}: event {number}", event.get("name"), event.get("ph") == "B"
        if name == "iteration" and is_begin:
            iteration += 1
        elif name in ("iteration", *_WORDS):
            at_ms = _time(where, event, "rel_ts") * 1e-6
            yield _Tick(where, _END if name == "iteration" else name, is_begin, iteration, at_ms, event)


def _merged_ticks(label: str, events: list[dict[str, Any]]) -> Iterator[_Tick]:
    ticks, begins = [], dict[int, float]()
    for number, event in enumerate(events):
        where, name = f"{label}: event {number}", event.get("name")
        if name not in (_BEGIN, _END, *_WORDS):
            continue
        told = {**event, **event.get("args", {})}
        at_ms = _time(where, event, "ts") * 1e-3
        tick = _Tick(where, name, event.get("ph") == "B", 0, at_ms, told)
        tick = tick._replace(iteration=_whole(tick, "iteration"))
        begins[tick.iteration] = min(begins.get(tick.iteration, at_ms), at_ms)
        ticks.append(tick)
    for tick in ticks:
        yield tick._replace(at_ms=tick.at_ms - begins[tick.iteration])


def _empty() -> dict[str, Any]:
    return {
        f"{word}_{what}": [] for word in _WORDS.values() for what in ("start", "end", "minibatch", "chunk")
    }


def _time(where: str, event: dict[str, Any], key: str) -> float:
    value = event.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e18:
        raise InputError(f"{where}: {key} is {quoted(value)}, no time")
    return value


def _whole(tick: _Tick, key: str) -> int:
    value = tick.told.get(key)
    if type(value) is not int or not 0 <= value < 1 << 20:
        raise InputError(f"{tick.where}: {key} is {quoted(value)}, no number")
    return value
