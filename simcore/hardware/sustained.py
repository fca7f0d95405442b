"""What a die keeps up in long training, beside what its boards are rated at.

Note [Slowest GPU]
    GPUs of one type differ in the clock that they keep at the power limit (arXiv 2208.11035), and in a step
    everybody waits for everybody: over tensor-parallel sums, pipeline messages and gradients the slowest GPU
    of the job sets the pace.  Clocks are taken as normal; of N draws the least is expected about
    Phi^-1((N - 3/8) / (N + 1/4)) standard deviations below the mean (Blom's approximation).

Note [Clock at the power limit]
    Under load a GPU lowers its clock until it draws its limit.  What it draws beyond its static power grows
    as clock times voltage squared, which is the clock to some power, and with the work per clock: the rate of
    its matrix products.  Two boards of one die spend the same energy on a product, so that::

        limit - static  ~  products per second at the rated clock * clock ** exponent

    One board's measured clock then gives the other's.  A board whose products need less than its limit keeps
    the rated clock.  docs/clocks.md says which runs this was held against, and what else was tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache, lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Final

from simcore.elementary import power
from simcore.records import dataclass
from simcore.tables import load
from simcore.units import Number

if TYPE_CHECKING:
    from simcore.hardware.specs import GpuSpec

#: The math mode whose products set the clock.
_MODE: Final = "bf16"


@dataclass(frozen=True)
class Sustained:
    """Numbers of a die under continuous load, relative to the profile's rated ones.

    ``clock``: mean SM clock at the power limit.  ``fp8``: rate of fp8 products over twice that of bf16 ones,
    which is what the datasheet promises.  ``spread``: standard deviation of clocks between GPUs over their
    mean, see Note [Slowest GPU].  ``measured_on``: names of the GPUs that they were fitted on;
    ``reference``: the profile of the board that they hold for, by whose power limit others are told;
    ``boards``: by the name of a GPU, a ``clock`` of its own, or another ``reference``.
    """

    clock: Annotated[float, Number("ratio")] = 1.0
    fp8: Annotated[float, Number("ratio")] = 1.0
    spread: Annotated[float, Number("ratio", zero_allowed=True, at_most=1)] = 0.0
    reference: str = field(default="", compare=False)
    measured_on: tuple[str, ...] = field(default=(), compare=False)
    boards: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def clock_of(self, board: str) -> float:
        """Mean clock of a board by its GPU's name, if nobody changed its power limit."""
        return float(self.boards.get(board, {}).get("clock", self.clock))

    def slowest_clock(self, num_gpus: int) -> float:
        """The clock to expect of the slowest of ``num_gpus``, relative to the rated one."""
        return self.clock * (1 - self.spread * _deviations(num_gpus))


@lru_cache(maxsize=1 << 10)
def _deviations(num_gpus: int) -> float:
    if num_gpus <= 1:
        return 0.0
    # Rounded, as its logarithm is the C library's; see Note [Same bits everywhere].
    return round(NormalDist().inv_cdf((num_gpus - 0.375) / (num_gpus + 0.25)), 12)


@cache
def _of_power() -> Mapping[str, Any]:
    schema = {"exponent": Number("ratio"), "sustained_throttle_s": Number("time")}
    table: Mapping[str, Any] = load(schema, "hardware_profiles", "measured/power.toml")
    return table


def power_exponent() -> float:
    """Exponent of the clock in power beyond static, from ``hardware_profiles/measured/power.toml``."""
    return float(_of_power()["exponent"])


def sustained_throttle_s() -> float:
    """Length of a product that half of the power limit's slowdown reaches when it is repeated for long."""
    return float(_of_power()["sustained_throttle_s"])


def clock_at_limit(board: GpuSpec, reference: GpuSpec, reference_clock: float) -> float:
    """Relative clock that ``board`` keeps under load when ``reference`` keeps ``reference_clock``.

    Both are relative to the clock that each profile's peaks are rated at.  See Note [Clock at the power
    limit].  ``reference_clock`` itself where a profile does not say its power.
    """
    ratio = 1.0
    for gpu, sign in ((board, 1), (reference, -1)):
        if gpu.power_limit_w is None or gpu.static_power_w is None or _MODE not in gpu.peak_flops:
            return reference_clock
        ratio *= (_dynamic_w(gpu) / (gpu.peak_flops[_MODE] * gpu.gemm_efficiency)) ** sign
    return min(max(1.0, reference_clock), reference_clock * power(ratio, 1 / power_exponent()))


def _dynamic_w(gpu: GpuSpec) -> float:
    """Watts that the limit leaves for work."""
    assert gpu.power_limit_w is not None and gpu.static_power_w is not None
    return gpu.power_limit_w - gpu.static_power_w
