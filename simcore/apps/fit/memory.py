"""Fit of the memory-bound constants to recorded kernels: joint over GPU generations, but for start costs.

Shares, instruction counts and what of L2 stays warm belong to the kernels' code, so one value serves all
generations and a GPU without a trace is predicted with it.  The start of a kernel belongs to a generation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcore.apps.fit.kernels import print_constants, search
from simcore.apps.measured.recorded_kernels import RecordedRow, memory_bound, read_recorded_rows
from simcore.cost.parameters import GenerationParameters, TrafficParameters, load_parameters
from simcore.cost.roofline import RooflineCost
from simcore.hardware import load_gpu

#: Joint constants and where a fit starts: of all classes, then by class.
JOINT = {"warm_l2_share": 0.35, "index_instructions": 53.0, "index_waits": 0.3}
BY_CLASS = {
    ("reduction", "bandwidth_share"): 0.9,
    ("reduction", "waits"): 1.0,
    ("embedding_fwd", "instructions"): 60.0,
    ("copy", "waits"): 0.3,
    ("norm_fwd", "waits"): 0.7,
    ("norm_bwd", "waits"): 0.7,
}
_START_S = 1.5e-6


def predict_rows(rows: Sequence[RecordedRow], values: dict[str, float] | None = None) -> list[float]:
    """Seconds of each row's kernels without the gaps before them, by the constants in use or ``values``."""
    costs: dict[tuple[str, bool], RooflineCost] = {}
    for gpu, tf32 in {(row.gpu, row.tf32) for row in rows}:
        spec = load_gpu(gpu)
        constants = load_parameters(spec.generation)
        changed = _changed(constants, values) if values else constants
        costs[gpu, tf32] = RooflineCost(spec, "tf32" if tf32 else "ieee", parameters=changed)
    return [_seconds(row, costs[row.gpu, row.tf32]) for row in rows]


def fit_memory(rows: Sequence[RecordedRow], rounds: int = 3) -> tuple[dict[str, float], float]:
    """Constants by name ("warm_l2_share", "reduction.waits", "ampere.prologue_s"), and the error.

    A group of rows of one trace, class and decade of duration counts as the square root of its number: a
    trace has hundreds of rows of small tensors.  A class without rows keeps where it would start.
    """
    seen = {row.kernel.op_class for row in rows}
    by_class = {
        f"{op_class}.{name}": value for (op_class, name), value in BY_CLASS.items() if op_class in seen
    }
    generations = {load_gpu(row.gpu).generation for row in rows}
    start = {**JOINT, **by_class, **{f"{name}.prologue_s": _START_S for name in sorted(generations)}}
    measured = np.log([row.seconds for row in rows])
    groups = [
        (row.trace, row.kernel.op_class, row.kernel.strided, int(np.log10(row.seconds))) for row in rows
    ]
    sizes = Counter(groups)
    weights = np.array([sizes[group] ** -0.5 for group in groups])

    def error(values: dict[str, float]) -> float:
        errors = np.abs(np.log(predict_rows(rows, values)) - measured)
        return float(np.average(errors, weights=weights))

    return search(error, start, rounds)


def print_memory_fit(paths: Sequence[str], rounds: int) -> None:
    """Fit the memory-bound kernels of recorded traces and print the constants, as TOML."""
    print_constants("[memory]", *fit_memory(memory_bound(read_recorded_rows(paths)), rounds))


def leave_one_trace_out(rows: Sequence[RecordedRow], rounds: int = 2) -> list[float]:
    """Seconds of each row by a fit to the other traces; a start takes as many cycles as on their GPUs."""
    predicted = [0.0] * len(rows)
    for trace in sorted({row.trace for row in rows}):
        values, _ = fit_memory([row for row in rows if row.trace != trace], rounds)
        fitted_on = {load_gpu(row.gpu).generation: load_gpu(row.gpu) for row in rows if row.trace != trace}
        cycles = np.mean(
            [values[f"{name}.prologue_s"] * gpu.boost_clock_hz for name, gpu in sorted(fitted_on.items())]
        )
        left = [(index, row) for index, row in enumerate(rows) if row.trace == trace]
        for _, row in left:
            spec = load_gpu(row.gpu)
            values.setdefault(f"{spec.generation}.prologue_s", float(cycles) / spec.boost_clock_hz)
        for (index, _), seconds in zip(left, predict_rows([row for _, row in left], values), strict=True):
            predicted[index] = seconds
    return predicted


def _seconds(row: RecordedRow, cost: RooflineCost) -> float:
    return cost.seconds(row.kernel) - cost.work(row.kernel).launches * cost.gpu.kernel_gap_s


def _changed(constants: GenerationParameters, values: dict[str, float]) -> GenerationParameters:
    memory = constants.memory
    classes: dict[str, dict[str, Any]] = defaultdict(dict)
    for (op_class, name), start in BY_CLASS.items():
        classes[op_class][name] = values.get(f"{op_class}.{name}", start)
    traffic: dict[str, TrafficParameters] = {
        **memory.classes,
        **{op_class: replace(memory.classes[op_class], **changes) for op_class, changes in classes.items()},
    }
    start_s = values.get(f"{constants.generation}.prologue_s", memory.prologue_s)
    changed = replace(
        memory, prologue_s=start_s, classes=traffic, warm_l2_share=values["warm_l2_share"],
        index_instructions=values["index_instructions"], index_waits=values["index_waits"],
    )  # fmt: skip
    return replace(constants, memory=changed)
