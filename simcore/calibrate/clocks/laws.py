"""Laws of the clock under load: each gives a step's time from its simulated points by one number.

Note [Power of a step]
    What a step draws is the energy of its work over its time, and static power::

        static + scale * (products + attention) * clock ** (exponent - 1) / time + scale * bytes / time

    The energy of a product follows from the profile: a large one, running alone at the limit, settles at
    ``gemm_efficiency`` of the peak where its main loop could do ``efficiency``.  fp8 takes ``FP8_ENERGY`` of
    it, attention draws ``ATTENTION_SHARE`` of the limit while it runs, a byte of HBM ``BYTE_J``.
    ``scale`` is the free number, 1 if a step is made of nothing but such kernels and readings are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.calibrate.clocks.points import BASE, REFERENCES, Measured
from simcore.calibrate.runs_score import Described
from simcore.cost.parameters import load_parameters
from simcore.hardware import GpuSpec, load_cluster, load_gpu
from simcore.hardware.power import clock_at_limit, power_exponent

FloatArray = npt.NDArray[np.float64]

#: From power readings of an H200 (ai-dynamo/aiconfigurator at 095f58a51c): 697 W at 4.27 TB/s of streaming,
#: less 135 W; attention at 458 W (median of 84) of 700 W, less the same; block-wise fp8 products at
#: 1,079 Tflop/s where bf16 ones reach 682, both at the limit.
BYTE_J: Final = 1.33e-10
ATTENTION_SHARE: Final = 0.46
FP8_ENERGY: Final = 0.6

_CLOCKS: Final = np.geomspace(0.55, 1.0, 61)


@dataclass(frozen=True)
class Row:
    """A published run and what was simulated of it: with its own board's rate of products and the die's."""

    described: Described
    own: Measured
    like_reference: Measured

    @property
    def die(self) -> str:
        """Group of boards with one die."""
        return self.described.band.cases[0].board

    @property
    def board(self) -> str:
        """Name of the GPU profile."""
        return self.gpu.name

    @cached_property
    def gpu(self) -> GpuSpec:
        """The board, with the rate of products of the die's reference."""
        case = self.described.band.cases[0]
        gpu = load_cluster(case.cluster, case.overrides).gpu
        return replace(gpu, gemm_efficiency=load_gpu(REFERENCES[case.board]).gemm_efficiency)

    def error(self, seconds: FloatArray) -> FloatArray:
        """Signed relative error of step times; 0 within the row's band."""
        measured = self.described.measured_s
        high = seconds * self.described.widened
        return np.asarray(np.clip(measured, seconds, high) / measured - 1)


def step_s(at: Measured, products: FloatArray, attention: FloatArray, others: FloatArray) -> FloatArray:
    """Step time at the clocks of three classes of kernels.

    Time that a clock touches is proportional to its inverse; products have three points and a parabola.
    """
    s, inverse = at.seconds, 1 / np.asarray(products)
    knots = 1 / np.array([0.72, BASE, 1.0])
    values = (s["slow products"], s["base"], s["fast products"])
    total = np.zeros_like(inverse)
    for k, value in enumerate(values):
        others_k = np.delete(knots, k)
        total += value * np.prod([(inverse - x) / (knots[k] - x) for x in others_k], axis=0)
    for name, clock in (("fast attention", attention), ("fast others", others)):
        total += (s[name] - s["base"]) * (1 / np.asarray(clock) - 1 / BASE) / (1 - 1 / BASE)
    return total


def constant(row: Row, numbers: FloatArray) -> FloatArray:
    """One clock for all kernels."""
    return step_s(row.own, numbers, numbers, numbers)


def products_only(row: Row, numbers: FloatArray) -> FloatArray:
    """One clock for matrix products; all else at the rated one."""
    return step_s(row.own, numbers, np.ones_like(numbers), np.ones_like(numbers))


def products_and_attention(row: Row, numbers: FloatArray) -> FloatArray:
    """One clock for products and attention; SM-bound elementwise kernels at the rated one."""
    return step_s(row.own, numbers, numbers, np.ones_like(numbers))


def die_clock(row: Row, numbers: FloatArray) -> FloatArray:
    """A die's clock, for boards with their own limit by :func:`clock_at_limit`."""
    reference = load_gpu(REFERENCES[row.die])
    clocks = np.array([clock_at_limit(row.gpu, reference, number) for number in numbers])
    return step_s(row.like_reference, clocks, clocks, clocks)


def products_by_power(row: Row, numbers: FloatArray) -> FloatArray:
    """Products at the clock of their own power; all else, which draws less, at the rated one."""
    gpu, exponent = row.gpu, power_exponent()
    memory_w = 0.1 * BYTE_J * gpu.hbm_bytes_per_s  # what large products stream
    left = (_limit_w(gpu) - _static_w(gpu) - numbers * memory_w) / (numbers * _products_w(row))
    clocks = np.clip(left, 0.1, 1.0) ** (1 / exponent)
    return step_s(row.like_reference, clocks, np.ones_like(clocks), np.ones_like(clocks))


def mean_power(row: Row, numbers: FloatArray) -> FloatArray:
    """All kernels at the clock at which the step's mean power meets the limit."""
    return _by_mean(row, numbers, step_s(row.like_reference, _CLOCKS, _CLOCKS, _CLOCKS))


def mean_power_when_busy(row: Row, numbers: FloatArray) -> FloatArray:
    """The same, with the mean over the time in which kernels compute."""
    done = row.like_reference.done
    return _by_mean(row, numbers, (done.products_s + done.attention_s) * BASE / _CLOCKS + done.others_s)


def _by_mean(row: Row, numbers: FloatArray, over_s: FloatArray) -> FloatArray:
    done, gpu, exponent = row.like_reference.done, row.gpu, power_exponent()
    p = load_parameters(gpu.generation).tensor
    product_j = _products_w(row) / (p.efficiency * gpu.peak_flops["bf16"])
    products = product_j * (done.products + FP8_ENERGY * done.fp8_products)
    # Seconds of attention shrink with the clock, its power grows with it: energy is taken at BASE.
    reference_w = _limit_w(load_gpu(REFERENCES[row.die]))
    attention = ATTENTION_SHARE * reference_w * done.attention_s * BASE
    scaled = ((products + attention) * _CLOCKS ** (exponent - 1) + BYTE_J * done.hbm_bytes) / over_s
    room = _limit_w(gpu) - _static_w(gpu)
    clocks = np.array([np.interp(room, number * scaled, _CLOCKS) for number in numbers])
    return step_s(row.like_reference, clocks, clocks, clocks)


def _products_w(row: Row) -> float:
    """Watts of large bf16 products at the rated clock, from where they settle on the reference board."""
    reference = load_gpu(REFERENCES[row.die])
    p = load_parameters(reference.generation).tensor
    room = _limit_w(reference) - _static_w(reference) - 0.1 * BYTE_J * reference.hbm_bytes_per_s
    return float(room * (p.efficiency / reference.gemm_efficiency) ** power_exponent())


def _limit_w(gpu: GpuSpec) -> float:
    assert gpu.power_limit_w is not None, gpu.name
    return gpu.power_limit_w


def _static_w(gpu: GpuSpec) -> float:
    assert gpu.static_power_w is not None, gpu.name
    return gpu.static_power_w


Law = Callable[[Row, FloatArray], FloatArray]

_SHARES: Final = np.round(np.arange(0.6, 1.0005, 0.005), 3)
_SCALES: Final = np.round(np.arange(0.6, 2.4, 0.02), 2)

#: Name, law, and the values of its number that are tried.
LAWS: Final[tuple[tuple[str, Law, FloatArray], ...]] = (
    ("one clock", constant, _SHARES),
    ("one clock, products only", products_only, _SHARES),
    ("one clock, products and attention", products_and_attention, _SHARES),
    ("one clock, boards by their limit", die_clock, _SHARES),
    ("products by their own power", products_by_power, _SCALES),
    ("mean power of the step", mean_power, _SCALES),
    ("mean power while kernels compute", mean_power_when_busy, _SCALES),
)
