"""What a learned predictor is told of a kernel and of the communication beside it.

The table of features follows Echo (arXiv 2412.12487, table 4: thread blocks, occupancy, compute and memory
throughput of the kernel; channels and kind of the communication) as far as both a recording and the engine
know them.  What neither holds (cache hit rates, throughput counters of a profiler) is left out.
"""

from __future__ import annotations

import math

from simcore.records import dataclass

#: Names and order of the values that :func:`features` gives.
FEATURES = (
    "alone_us", "blocks", "blocks_per_sm", "waves", "sm_share", "hbm_share", "num_sms", "comm_sms",
    "comm_share", "waves_beside", "comm_exchanges",
)  # fmt: skip

#: Collectives whose blocks each serve some peers and may end before the others do.
EXCHANGES = ("send_recv", "all_to_all")


@dataclass(frozen=True)
class Neighbours:
    """Communication that holds SMs of a GPU: how many SMs, and whether part of it is an exchange."""

    num_sms: int
    exchanges: bool


def features(
    *,
    sm_ps: float,
    hbm_ps: float,
    fixed_ps: float,
    blocks: int,
    blocks_per_sm: int,
    num_sms: int,
    beside: Neighbours,
) -> list[float]:
    """The features of one kernel beside ``beside``, in the order of :data:`FEATURES`.

    ``sm_ps``, ``hbm_ps`` and ``fixed_ps`` are its SM time, memory time and start cost alone; ``blocks`` 0
    where the grid is not known, which makes the features that need it NaN.
    """
    alone = fixed_ps + max(sm_ps, hbm_ps)
    held = min(beside.num_sms, num_sms - 1)
    slots = num_sms * blocks_per_sm
    left = (num_sms - held) * blocks_per_sm
    known = blocks > 0
    waves = math.ceil(blocks / slots) if known else math.nan
    return [
        alone * 1e-6,
        float(blocks) if known else math.nan,
        float(blocks_per_sm) if known else math.nan,
        float(waves),
        sm_ps / alone if alone > 0 else 0.0,
        hbm_ps / alone if alone > 0 else 0.0,
        float(num_sms),
        float(held),
        held / num_sms,
        math.ceil(blocks / left) / waves if known else math.nan,
        float(beside.exchanges),
    ]
