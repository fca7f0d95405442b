"""Fits of kernel constants to measured rows: one parameter set per GPU generation, all rows at once.

The objective is the mean absolute logarithmic error, so a row counts the same whatever its duration.
It is piecewise smooth (tile choices change), hence a simplex search in the logarithms of the constants,
restarted from its best point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from simcore.apps.measured.kernels import KernelRow, predict_row, read_kernel_rows
from simcore.cost.gemm import estimate_gemm, gemm_dims, is_swept, operand_bytes, scales_of
from simcore.cost.parameters import AttentionParameters, GemmParameters, GenerationParameters, load_parameters
from simcore.cost.roofline import RooflineCost
from simcore.errors import InputError
from simcore.hardware import load_gpu
from simcore.hardware.specs import GpuSpec
from simcore.hardware.sustained import sustained_throttle_s

FloatArray = npt.NDArray[np.float64]

#: Constants of products that a fit finds, by the table of a generation's file that they stand in, and the
#: math mode of the rows that tell them.
GEMM_CONSTANTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "tensor": ("bf16", (
        "efficiency", "operand_intensity", "tile_latency_s", "epilogue_s", "tail_share",
        "split_latency_s", "warm_l2_share", "hbm_share", "overlap_loss", "throttle_s", "prologue_s",
    )),
    "fp4": ("fp4", ("efficiency", "epilogue_s", "overlap_loss", "swept_l2_share")),
    "blockwise": ("fp8", ("operand_intensity", "epilogue_s", "overlap_loss")),
}  # fmt: skip

#: Constants that are shares: a fit may not leave 0..1.
_SHARES = {
    "efficiency", "tail_share", "warm_l2_share", "hbm_share", "overlap_loss", "math_efficiency",
    "backward_efficiency", "backward_overlap_loss", "wide_share", "reduction.bandwidth_share",
    "swept_l2_share",
}  # fmt: skip

#: Start of a constant that is zero, so that its logarithm exists.
_TINY = 1e-9

_EVALUATIONS_PER_CONSTANT = 70

_Parameters = TypeVar("_Parameters", GemmParameters, AttentionParameters)


def fit_gemm(
    parameters: GenerationParameters, rows: Sequence[KernelRow], unit: str = "tensor", rounds: int = 3
) -> tuple[dict[str, float], float]:
    """Constants of the table ``unit`` of products from the rows of its generation, and the error reached.

    Errors: InputError when no row tells them.
    """
    mode, names = GEMM_CONSTANTS[unit]
    found = _gemms(parameters.generation, rows, unit)
    columns = [_gemm_columns(*kind, of) for kind, of in found.items()]
    own = getattr(parameters, unit)
    if not columns or own is None:
        raise InputError(f"no {mode} GEMM row of a {parameters.generation} GPU")

    def error(values: dict[str, float]) -> float:
        p = _with(own, values)
        held = replace(p, throttle_s=sustained_throttle_s())
        errors = [
            np.abs(np.log((_gemm_seconds(held if of.sustained else p, mode, of) + of.around_s) / of.seconds))
            for of in columns
        ]
        return float(np.mean(np.concatenate(errors)))

    start = {name: float(getattr(own, name)) for name in names}
    return search(error, start, rounds)


def fit_attention(
    parameters: GenerationParameters, rows: Sequence[KernelRow], rounds: int = 3
) -> Iterator[tuple[str, dict[str, float], float]]:
    """Constants and error of each attention family of a generation that has rows.

    Forward constants are only fitted where rows time forward alone, since a sum does not tell its parts, and
    backward constants where rows time backward; otherwise they stay what the file's source says.
    """
    by_family: dict[str, list[KernelRow]] = defaultdict(list)
    for row in rows:
        last = row.kernels[-1]
        if last.op_class.startswith("attention") and load_gpu(row.gpu).generation == parameters.generation:
            by_family[last.name.split("_")[0]].append(row)
    for family, found in sorted(by_family.items()):
        if family in parameters.attention:
            yield family, *_fit_family(parameters, family, found, rounds)


def _fit_family(
    parameters: GenerationParameters, family: str, rows: Sequence[KernelRow], rounds: int
) -> tuple[dict[str, float], float]:
    start = parameters.attention[family]
    names = ["block_s"]
    if any(row.kernels[-1].op_class == "attention_fwd" for row in rows):
        names += ["math_efficiency", "overlap_loss"]
    if any(row.kernels[-1].op_class == "attention_bwd" for row in rows):
        names += ["backward_efficiency", "backward_overlap_loss"]
    if any(kernel.in_shapes[0][-1] > start.wide_head_dim for row in rows for kernel in row.kernels[-1:]):
        names.append("wide_share")
    if family == "trtllm":
        names.append("prologue_s")
    if start.step_s:
        names.append("step_s")
    # Many rows differ in batch and heads alone; every few of them tell the same.
    sample = rows[:: max(1, len(rows) // 400)]
    gpus = {row.gpu: load_gpu(row.gpu) for row in sample}
    measured = np.array([row.seconds for row in sample])

    def error(values: dict[str, float]) -> float:
        p = _with(start, values)
        changed = replace(parameters, attention={**parameters.attention, family: p})
        costs = {name: RooflineCost(gpu, parameters=changed) for name, gpu in gpus.items()}
        predicted = np.array([predict_row(row, costs[row.gpu]) for row in sample])
        # A weak pull to the start keeps constants that the rows hardly tell apart (one head size only).
        pull = sum(np.log(values[name] / max(getattr(start, name), _TINY)) ** 2 for name in names)
        return float(np.mean(np.abs(np.log(predicted / measured)))) + 1e-4 * float(pull)

    return search(error, {name: float(getattr(start, name)) for name in names}, rounds)


def tells(generation: str, rows: Sequence[KernelRow], unit: str) -> bool:
    """Whether some of ``rows`` tell the constants of a table of products."""
    return bool(_gemms(generation, rows, unit))


def _gemms(generation: str, rows: Sequence[KernelRow], unit: str) -> dict[tuple[str, bool], list[KernelRow]]:
    """Rows that tell a table, by GPU, and by whether they were repeated until the power limit held them."""
    found: dict[tuple[str, bool], list[KernelRow]] = defaultdict(list)
    for row in rows:
        kernel = row.kernels[-1]
        if kernel.op_class != "gemm" or load_gpu(row.gpu).generation != generation:
            continue
        blocks, four = scales_of(kernel.name) > 0, kernel.dtype.startswith("float4")
        of = "fp4" if four else "blockwise" if blocks else "tensor" if kernel.dtype == "bfloat16" else ""
        if of == unit:
            found[row.gpu, row.sustained].append(row)
    return found


@dataclass(frozen=True)
class _GemmColumns:
    """Rows of one GPU: ``dims`` are m, n, k, batch and warm bytes; ``each`` bytes of an operand's element."""

    gpu: GpuSpec
    sustained: bool
    dims: FloatArray
    seconds: FloatArray
    around_s: FloatArray
    each: float
    sweeps: bool


def _gemm_columns(gpu: str, sustained: bool, rows: Sequence[KernelRow]) -> _GemmColumns:
    kernels = [row.kernels[-1] for row in rows]
    dims = np.array([(*gemm_dims(kernel), kernel.warm_bytes) for kernel in kernels], dtype=np.float64).T
    seconds, around_s = np.array([row.seconds for row in rows]), np.array([row.around_s for row in rows])
    name = kernels[0].name
    each = operand_bytes(kernels[0].dtype, name)
    return _GemmColumns(load_gpu(gpu), sustained, dims, seconds, around_s, each, is_swept(name))


def _gemm_seconds(p: GemmParameters, mode: str, of: _GemmColumns) -> FloatArray:
    m, n, k, batch, warm_bytes = of.dims
    gpu = of.gpu
    estimate = estimate_gemm(
        m, n, k, batch, gpu=gpu, parameters=p, peak_flops=gpu.peak_flops[mode], warm_bytes=warm_bytes,
        sustained_efficiency=gpu.gemm_efficiency, element_bytes=of.each, out_bytes=2, sweeps=of.sweeps,
    )  # fmt: skip
    memory = estimate.hbm_bytes / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
    total: FloatArray = np.maximum(estimate.sm_s, memory) + estimate.exposed_s
    total += gpu.kernel_gap_s + p.prologue_s
    return total


def _with(parameters: _Parameters, values: dict[str, float]) -> _Parameters:
    """Constants with some of them changed."""
    return replace(parameters, **values)  # type: ignore[arg-type]


def search(
    error: Callable[[dict[str, float]], float], start: dict[str, float], rounds: int
) -> tuple[dict[str, float], float]:
    """Simplex search over the logarithms of positive constants, restarted ``rounds`` times."""
    names = list(start)
    scale = np.array([max(start[name], _TINY) for name in names])

    def values(x: FloatArray) -> dict[str, float]:
        found = scale * np.exp(x)
        return {
            name: min(float(value), 1.0) if name in _SHARES else float(value)
            for name, value in zip(names, found, strict=True)
        }

    evaluations = _EVALUATIONS_PER_CONSTANT * len(names)
    best = np.zeros(len(names))
    reached = error(values(best))
    for turn in range(rounds):
        spread = 0.2 if turn % 2 == 0 else -0.2
        simplex = np.vstack([best, best + spread * np.eye(len(names))])
        result = minimize(
            lambda x: error(values(x)),
            best,
            method="Nelder-Mead",
            options={"maxfev": evaluations, "adaptive": True, "initial_simplex": simplex},
        )
        if result.fun < reached:
            best, reached = result.x, float(result.fun)
    return values(best), reached


def print_kernel_fit(generation: str, path: str, rounds: int, only: str | None) -> None:
    """Fit the rows of ``path`` and print a generation's constants as TOML; ``only``: gemm or attention."""
    rows, _ = read_kernel_rows(path)
    parameters = load_parameters(generation)
    if only != "attention":
        for unit in GEMM_CONSTANTS:
            if unit == "tensor" or (getattr(parameters, unit) and tells(generation, rows, unit)):
                print_constants(f"[gemm.{unit}]", *fit_gemm(parameters, rows, unit, rounds))
    if only != "gemm":
        for family, values, error in fit_attention(parameters, rows, rounds):
            print_constants(f"[attention.{family}]", values, error)


def print_constants(heading: str, values: dict[str, float], error: float) -> None:
    """A fitted table, as TOML."""
    print(f"{heading}  # mean absolute log error {100 * error:.2f}%")
    for name, value in values.items():
        print(f"{name} = {value:.4g}")
