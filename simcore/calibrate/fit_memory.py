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

from simcore.calibrate.fit import search
from simcore.calibrate.recorded_rows import RecordedRow
from simcore.cost.parameters import GenerationParameters, TrafficParameters, load_parameters
from simcore.cost.roofline import RooflineCost
from simcore.hardware import load_gpu

#: Joint constants and where a fit starts: of all classes, then by class.
JOINT = {"warm_l2_share": 0.35, "index_instructions": 53.0}
BY_CLASS = {
    ("reduction", "bandwidth_share"): 0.9,
    ("reduction", "latency_s"): 3e-6,
    ("embedding_fwd", "instructions"): 60.0,
    ("copy", "latency_s"): 1e-6,
    ("norm_fwd", "latency_s"): 2e-6,
    ("norm_bwd", "latency_s"): 2e-6,
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
    """Constants by name ("warm_l2_share", "reduction.latency_s", "ampere.prologue_s"), and the error.

    A group of rows of one trace, class and decade of duration counts as the square root of its number: a
    trace has hundreds of rows of small tensors.
    """
    start = dict(JOINT)
    start.update({f"{op_class}.{name}": value for (op_class, name), value in BY_CLASS.items()})
    start.update({f"{name}.prologue_s": _START_S for name in {load_gpu(row.gpu).generation for row in rows}})
    measured = np.log([row.seconds for row in rows])
    groups = [(row.trace, row.kernel.op_class, row.strided, int(np.log10(row.seconds))) for row in rows]
    sizes = Counter(groups)
    weights = np.array([sizes[group] ** -0.5 for group in groups])

    def error(values: dict[str, float]) -> float:
        errors = np.abs(np.log(predict_rows(rows, values)) - measured)
        return float(np.average(errors, weights=weights))

    return search(error, start, rounds)


def leave_one_trace_out(rows: Sequence[RecordedRow], rounds: int = 2) -> list[float]:
    """Seconds of each row by a fit to the other traces; the start is the mean of their generations'."""
    predicted = [0.0] * len(rows)
    for trace in sorted({row.trace for row in rows}):
        values, _ = fit_memory([row for row in rows if row.trace != trace], rounds)
        starts = [value for name, value in values.items() if name.endswith(".prologue_s")]
        left = [(index, row) for index, row in enumerate(rows) if row.trace == trace]
        for _, row in left:
            values.setdefault(f"{load_gpu(row.gpu).generation}.prologue_s", float(np.mean(starts)))
        for (index, _), seconds in zip(left, predict_rows([row for _, row in left], values), strict=True):
            predicted[index] = seconds
    return predicted


def _seconds(row: RecordedRow, cost: RooflineCost) -> float:
    work = cost.work(row.kernel)
    gap_s = work.launches * cost.gpu.kernel_gap_s
    seconds = cost.seconds(row.kernel) - gap_s
    if not row.strided:
        return seconds
    return max(seconds, cost.indexing_ps(row.kernel) * 1e-12 + work.launches * work.prologue_s)


def _changed(constants: GenerationParameters, values: dict[str, float]) -> GenerationParameters:
    memory = constants.memory
    classes: dict[str, dict[str, Any]] = defaultdict(dict)
    for op_class, name in BY_CLASS:
        classes[op_class][name] = values[f"{op_class}.{name}"]
    traffic: dict[str, TrafficParameters] = {
        **memory.classes,
        **{op_class: replace(memory.classes[op_class], **changes) for op_class, changes in classes.items()},
    }
    start_s = values.get(f"{constants.generation}.prologue_s", memory.prologue_s)
    changed = replace(
        memory, prologue_s=start_s, classes=traffic, warm_l2_share=values["warm_l2_share"],
        index_instructions=values["index_instructions"],
    )  # fmt: skip
    return replace(constants, memory=changed)
