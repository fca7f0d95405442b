"""Several calls between ncclGroupStart and ncclGroupEnd: one kernel, whose channels they share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from simcore.collectives.plan import CollectivePlan

#: Channels of one launch, as far as a message does not have more of its own: those of a communicator's
#: send/recv (src/include/device.h, MAXCHANNELS of the releases that the profiles run).
_MAX_SHARED_CHANNELS: Final = 32


def launch_channels(plans: Iterable[CollectivePlan]) -> int:
    """Thread blocks of the launch that carries out all ``plans``.

    NCCL gives the calls of a group different channels until they run out, then several to each
    (src/enqueue.cc, scheduleCollTasksToPlan and scheduleP2pTasksToPlan).
    """
    channels = [plan.channels for plan in plans]
    return max(min(_MAX_SHARED_CHANNELS, sum(channels)), max(channels, default=0))
