"""What clock a board's power limit leaves it under load, told from another board of the same die.

Note [Clock at the power limit]
    Under load a GPU lowers its clock until it draws its limit.  What it draws beyond its static power grows
    as clock times voltage squared, which is the clock to some power, and with the work per clock: the rate of
    its matrix products.  Two boards of one die spend the same energy on a product, so that::

        limit - static  ~  products per second at the rated clock * clock ** exponent

    One board's measured clock then gives the other's.  A board whose products need less than its limit keeps
    the rated clock.  docs/clocks.md says which runs this was held against, and what else was tried.
"""

from __future__ import annotations

import math
import tomllib
from functools import cache
from importlib import resources

from simcore.hardware.specs import GpuSpec

#: The math mode whose products set the clock.
_MODE = "bf16"


@cache
def power_exponent() -> float:
    """Exponent of the clock in power beyond static, from ``hardware_profiles/measured/power.toml``."""
    text = (resources.files("hardware_profiles") / "measured" / "power.toml").read_text(encoding="utf-8")
    return float(tomllib.loads(text)["exponent"]["value"])


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
    return min(max(1.0, reference_clock), reference_clock * math.pow(ratio, 1 / power_exponent()))


def _dynamic_w(gpu: GpuSpec) -> float:
    """Watts that the limit leaves for work."""
    assert gpu.power_limit_w is not None and gpu.static_power_w is not None
    return gpu.power_limit_w - gpu.static_power_w
