"""``calibrate.py all --watts KERNELS LIMITS``: what measured watts say of clocks (docs/clocks.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np

from simcore.apps.measured.tables import read_rows
from simcore.cost.gemm import estimate_gemm
from simcore.cost.parameters import load_parameters
from simcore.hardware import load_gpu

Row = dict[str, str]

#: Measuring windows below this lag behind the kernel: NVML averages.
_WINDOW_S: Final = 0.25
_EDGES_MS: Final = (0.02, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 1e4)
_KERNEL_COLUMNS: Final = (
    "gpu", "op", "dtype", "m", "n", "k", "time_us", "power_w", "power_limit_w", "power_window_s_min",
)  # fmt: skip
_LIMIT_COLUMNS: Final = (
    "gpu", "dataset", "network", "batch_size", "optimizer", "power_limit_w", "time_per_epoch_s",
    "average_gpu_power_w",
)  # fmt: skip
#: Below this share of full speed voltage is at its least, and power follows the clock alone.
_SLOWEST: Final = 0.55
_STATIC_SHARES: Final = (0.1, 0.15, 0.2, 0.25)


def print_watts(kernels: str, limits: str) -> None:
    """Print watts of kernels and what lasts longer at the limit, and the exponent of power over the clock.

    ``kernels`` has ``_KERNEL_COLUMNS``, ``limits`` ``_LIMIT_COLUMNS``.  Errors: InputError for a missing file
    or column.
    """
    every = _read(kernels, _KERNEL_COLUMNS)
    lasting = [row for row in every if float(row["power_window_s_min"]) >= _WINDOW_S]
    print(
        "\n".join([*_median_watts(lasting), *_slowdowns(every), *_exponents(_read(limits, _LIMIT_COLUMNS))])
    )


def _read(path: str, needed: Sequence[str]) -> list[Row]:
    return read_rows(path, "power", needed, lambda _, columns: columns)[0]


def _median_watts(rows: Iterable[Row]) -> list[str]:
    by_kind: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_kind[row["gpu"], row["op"], row["dtype"]].append(row)
    lines = [f"{'watts in windows of 0.25 s and more':54}{'n':>5}{'median':>8}{'at limit':>10}"]
    for kind, members in sorted(by_kind.items()):
        watts = [float(row["power_w"]) for row in members]
        held = np.mean([w > 0.97 * float(r["power_limit_w"]) for w, r in zip(watts, members, strict=True)])
        lines.append(f"{' '.join(kind):54}{len(members):>5}{median(watts):>8.0f}{100 * held:>9.0f}%")
    return lines


def _slowdowns(rows: Iterable[Row]) -> list[str]:
    """Products of H200 over the formula without throttling, by length; those bound by math, aligned."""
    gpu = load_gpu("h200")
    p = replace(load_parameters(gpu.generation).tensor, throttle_s=math.inf)
    by_length: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if not row["gpu"].startswith("H200") or (row["op"], row["dtype"]) != ("gemm", "bfloat16"):
            continue
        m, n, k = (float(row[key]) for key in "mnk")
        if m < 256 or n % 8 or k % 8:
            continue
        found = estimate_gemm(
            *(np.array([size]) for size in (m, n, k, 1.0)), gpu=gpu, parameters=p,
            peak_flops=gpu.peak_flops["bf16"], sustained_efficiency=gpu.gemm_efficiency,
            element_bytes=2, out_bytes=2,
        )  # fmt: skip
        memory_s = found.hbm_bytes[0] / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
        if found.sm_s[0] > 1.3 * memory_s:
            seconds = float(found.sm_s[0] + found.exposed_s[0]) + p.prologue_s + gpu.kernel_gap_s
            by_length[int(np.searchsorted(_EDGES_MS, 1e3 * seconds))].append(
                float(row["time_us"]) / 1e6 / seconds
            )
    lines = ["", f"{'bf16 products of H200 over no throttling, ms':54}{'n':>5}{'median':>8}"]
    for bin_, ratios in sorted(by_length.items()):
        lines.append(f"{f'up to {_EDGES_MS[bin_]:g}':54}{len(ratios):>5}{median(ratios):>8.2f}")
    return lines


def _exponents(rows: Sequence[Row]) -> list[str]:
    """Slope of the logarithm of power over static with that of speed, settings of one job compared."""
    lines = [
        "",
        f"{'power over static ~ clock ** x':54}{'n':>5}" + "".join(f"{s:>8.0%}" for s in _STATIC_SHARES),
    ]
    for gpu in sorted({row["gpu"] for row in rows}):
        mine = [row for row in rows if row["gpu"] == gpu]
        full_w = max(float(row["power_limit_w"]) for row in mine)
        jobs: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in mine:
            jobs[row["dataset"], row["network"], row["batch_size"], row["optimizer"]].append(row)
        points = [point for job in jobs.values() for point in _held_back(job, full_w)]
        slopes = [_slope(points, share * full_w) for share in _STATIC_SHARES]
        lines.append(f"{gpu:54}{len(points):>5}" + "".join(f"{slope:>8.2f}" for slope in slopes))
    return lines


def _held_back(job: Sequence[Row], full_w: float) -> list[tuple[int, float, float]]:
    """(job, watts, speed) of the settings in which a job draws its limit; none of a job that never does."""
    fastest = min(float(row["time_per_epoch_s"]) for row in job)
    if max(float(row["average_gpu_power_w"]) for row in job) <= 0.9 * full_w:
        return []
    points = [
        (id(job), float(row["average_gpu_power_w"]), fastest / float(row["time_per_epoch_s"]))
        for row in job
        if float(row["average_gpu_power_w"]) > 0.9 * float(row["power_limit_w"])
    ]
    return [point for point in points if point[2] > _SLOWEST]


def _slope(points: Sequence[tuple[int, float, float]], static_w: float) -> float:
    jobs = np.array([job for job, _, _ in points])
    x = np.log([watts - static_w for _, watts, _ in points])
    y = np.log([speed for _, _, speed in points])
    for job in set(jobs.tolist()):
        x[jobs == job] -= x[jobs == job].mean()
        y[jobs == job] -= y[jobs == job].mean()
    return float((x @ x) / (x @ y))
