"""What kernels were fitted on, as far as boards differ: SMs, and products per SM and clock.

Note [Beyond fitted kernels]
    Constants of a generation's kernels hold for SMs like those of its boards.  A board whose SMs do more
    products a clock than any of them is fed as quickly as its products need: caches keep pace, as they do
    from one generation to the next, so that products of twice the rate take half the time.  Fewer products a
    clock, other clocks and other memories are what formulas are for.  Times of kernels beyond that are
    extrapolated, and a run says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from simcore.hardware.profiles import gpu_names, read_gpu
from simcore.hardware.specs import GpuSpec
from simcore.records import dataclass

#: Datasheets round: a rate so little above the highest known is no other.
_SAME = 1.02


@dataclass(frozen=True)
class CoveredSms:
    """SMs of one generation's boards: fewest, most, and flop per SM and clock by math mode."""

    fewest: int
    most: int
    rates: Mapping[str, float]

    def beyond(self, gpu: GpuSpec) -> dict[str, float]:
        """By math mode how many times faster the GPU's SMs are than any known, where they are."""
        found = {
            mode: peak / (gpu.num_sms * gpu.boost_clock_hz) / self.rates[mode]
            for mode, peak in gpu.peak_flops.items()
            if mode in self.rates
        }
        return {mode: rate for mode, rate in found.items() if rate > _SAME}

    def holds(self, gpu: GpuSpec) -> bool:
        """Whether so many SMs are known."""
        return self.fewest <= gpu.num_sms <= self.most


@cache
def covered_sms(generation: str) -> CoveredSms | None:
    """What boards of a generation (``GpuSpec.table("cost")``) have; None where there is none."""
    boards = [
        profile.values
        for profile in map(read_gpu, gpu_names(naming=generation))
        if profile.values["generation"] == generation
    ]
    if not boards:
        return None
    rates: dict[str, float] = {}
    for board in boards:
        for mode, peak in board["peak_flops"].items():
            rates[mode] = max(rates.get(mode, 0.0), peak / (board["num_sms"] * board["boost_clock_hz"]))
    counts = [board["num_sms"] for board in boards]
    return CoveredSms(min(counts), max(counts), rates)
