"""When data of recorded communication moves, and what a kernel beside it waits and loses."""

from dataclasses import replace

import pytest

from simcore.apps.studies.contention.beside import PHYSICS, Beside, Channels
from simcore.apps.studies.contention.pairs import Neighbour
from simcore.hardware import load_cluster

US = 1_000_000


@pytest.mark.parametrize(
    "ago_us, waits_us, sms",
    [
        (500, 12.0, 24),  # its data moves: 290 MB take NCCL 1.26 ms on 32 channels, a third more on 24
        (1700, 1.5, 3),  # it waits for the last of 8, whose channels are an eighth
    ],
)
def test_an_exchange_moves_first_and_waits_later(ago_us, waits_us, sms):
    channels = Channels(load_cluster("a100-8", {}), 1.0)
    exchange = Neighbour(-ago_us * US, 5_000 * US, 24, "all_to_all", 290_000_000, 8)
    kernel = Beside(100 * US, 0, "reduce/norm", 64, 4, None, (0, 0), (exchange,), channels)
    held = [part for part in kernel.holdings() if part.begin_ps <= 0 < part.end_ps]
    assert sum(part.num_sms for part in held) == sms
    assert kernel.time_ps() == round((100 + waits_us) * US)
    unsized = replace(exchange, num_bytes=0)
    assert replace(kernel, neighbours=(unsized,)).time_ps() == round(101.5 * US)
    whole = replace(PHYSICS, peers=False)
    assert sum(part.num_sms for part in kernel.holdings(whole) if part.begin_ps <= 0 < part.end_ps) == 24


def test_a_collective_waits_first_and_moves_last():
    # 181 MB take 8 GPUs 1.37 ms: of 3 ms the first 1.6 are waiting, which costs SMs and no fence.
    channels = Channels(load_cluster("a100-40gb-8", {}), 1.0)
    for ago_us, waits_us in ((1000, 0.0), (2000, 12.0)):
        reduce = Neighbour(-ago_us * US, (3000 - ago_us) * US, 24, "all_reduce", 181_240_752, 8)
        kernel = Beside(100 * US, 0, "reduce/norm", 64, 4, None, (0, 0), (reduce,), channels)
        assert kernel.time_ps() == round((100 + waits_us) * US)
