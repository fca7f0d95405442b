"""Edits of what a traced Megatron GPT is: each changes the description and generates the program again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simcore.errors import InputError
from workloads.edits.described.description import TracedGpt, checked, described
from workloads.edits.job import EditableJob, Edited, plays
from workloads.edits.registry import WHOLE, EditCall, Value, edit
from workloads.parallel.axis import divides

_ASSUMED = (
    "the program is described and generated again: untouched, it has the traced one's kernels, flops and"
    " communication, and its step takes as long within 0.1% (0.4% where an optimizer is sharded)"
)


def _schedule_value(text: str) -> str:
    if not re.fullmatch(r"1f1b|gpipe|interleaved(:[2-9]|:[1-9]\d)?", text):
        raise InputError(f"cannot be {text!r}; use 1f1b, gpipe, interleaved or interleaved:<model chunks>")
    return text


_SCHEDULE = Value("1f1b|gpipe|interleaved[:chunks]", _schedule_value)
_Change = Callable[[TracedGpt, Any], tuple[TracedGpt, str]]


def _describes(key: str, help: str, value: Value = WHOLE) -> Callable[[_Change], _Change]:
    """Register a change of a description, which also says what it assumed, under ``key``."""

    def register(change: _Change) -> _Change:
        @edit(key, value=value, help=help, kinds=("traced",))
        def changed(job: EditableJob, call: EditCall) -> Edited:
            before = _description(job, call.key)
            after, assumed = change(before, call.value)
            graph = after.graph()
            told = (f"{after.schedule}, {assumed}", _ASSUMED)
            return Edited(replace(job, graph=graph, origin=after), told, int(plays(graph).sum()))

        return change

    return register


def _description(job: EditableJob, key: str) -> TracedGpt:
    """What an earlier edit left, or the traced program checked against what it is described as."""
    graph = job.program(key)
    if isinstance(job.origin, TracedGpt):
        return job.origin
    return checked(graph, described(graph.workload, job.kernels))


@_describes("schedule", "another order of forwards and backwards", _SCHEDULE)
def schedule(job: TracedGpt, name: str) -> tuple[TracedGpt, str]:
    """The same work per microbatch in another order; model chunks are made of the stage's layers."""
    word, _, count = name.partition(":")
    chunks = int(count or 2) if word == "interleaved" else 1
    return job.changed(parallel={"schedule": word, "virtual_stages": chunks}), "exchanges as Megatron-Core's"


@_describes("pp", "pipeline stages; layers are regrouped")
def pipeline_stages(job: TracedGpt, count: int) -> tuple[TracedGpt, str]:
    """Layers on another number of stages."""
    return job.changed(parallel={"pp": count}), f"{count} stages of {job.model.layers} layers"


@_describes("layers", "layers of the model")
def layers(job: TracedGpt, count: int) -> tuple[TracedGpt, str]:
    """More or fewer of the same layers."""
    return job.changed(model={"layers": count}), f"{count} layers on {job.parallel.pp} stages"


@_describes("num_microbatches", "microbatches per step and replica")
def num_microbatches(job: TracedGpt, count: int) -> tuple[TracedGpt, str]:
    """More or fewer of the same microbatches."""
    return job.changed(num_microbatches=count), f"{count} microbatches of each replica"


@_describes("batch.micro", "sequences per microbatch")
def micro_batch(job: TracedGpt, count: int) -> tuple[TracedGpt, str]:
    """Larger or smaller microbatches, as many of them."""
    return job.changed(micro_batch=count), f"{job.num_microbatches} microbatches as before"


@_describes("dp", "data-parallel replicas, each with the same work")
def data_parallel(job: TracedGpt, count: int) -> tuple[TracedGpt, str]:
    """Gradients reduced over other groups, in the buckets that Megatron makes for them."""
    replicas = f"{count} replicas of {job.num_microbatches} microbatches each; tokens per step grow with them"
    return job.changed(parallel={"dp": count}), replicas


@_describes("tp", "tensor-parallel ranks")
def tensor_parallel(job: TracedGpt, count: int) -> tuple[TracedGpt, str]:
    """Column- and row-parallel weights, heads and vocabulary over another number of ranks."""
    for what, size in (("attention heads", job.model.heads), ("rows of the vocabulary", job.model.vocab)):
        divides(what, size, count, "tp")
    return job.changed(parallel={"tp": count}), "groups keep Megatron's order: tp, dp, pp"


@_describes("hidden", "hidden size; heads keep their size, ffn stays")
def hidden(job: TracedGpt, size: int) -> tuple[TracedGpt, str]:
    """Another hidden size with more or fewer heads of the same size."""
    head, tp = job.model.size_per_head, job.parallel.tp
    if size % (head * tp):
        near = max(1, round(size / (head * tp))) * head * tp
        raise InputError(f"must be a multiple of head size {head} x tp {tp}, such as {near}")
    after = job.changed(model={"hidden": size, "heads": size // head})
    return after, f"{after.model.heads} heads of size {head}; ffn {job.model.ffn} as before"


@_describes("ffn", "width of the feed-forward layers")
def ffn(job: TracedGpt, size: int) -> tuple[TracedGpt, str]:
    """Another width of the MLP."""
    if size % (tp := job.parallel.tp):
        raise InputError(f"ffn {size} is not divisible by tp {tp}, such as {max(1, round(size / tp)) * tp}")
    return job.changed(model={"ffn": size}), "hidden and heads as before"
