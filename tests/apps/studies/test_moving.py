"""When data of recorded communication moves, and what a kernel beside it waits and loses."""

from dataclasses import replace

import pytest

from simcore.apps.studies.contention.beside import PHYSICS, Beside, Channels
from simcore.apps.studies.contention.pairs import Neighbour
from simcore.hardware import load_cluster
from workloads.imports.collective_names import serves_peers

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
    exchange = Neighbour(-ago_us * US, 5_000 * US, 24, "all_to_all", 290_000_000, 8, by_peers=True)
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


def test_data_passes_hbm():
    # A streaming kernel has what an all_reduce of 181 MB leaves of HBM while it moves: of each wire byte all
    # that FIFOs and users' buffers see.
    channels = Channels(load_cluster("a100-40gb-8", {}), 1.0)
    reduce = Neighbour(-500 * US, 800 * US, 24, "all_reduce", 181_240_752, 8)
    kernel = Beside(100 * US, 0, "elementwise/copy", 4096, 16, None, (0, 0), (reduce,), channels)
    plan = channels.plan("all_reduce", 181_240_752, 8)
    drawn = plan.rate_cap_bytes_per_s * plan.hbm_bytes_per_byte / channels.gpu.hbm_bytes_per_s
    assert 0.2 < drawn < 0.6
    assert kernel.time_ps() == pytest.approx(100 * US / (1 - drawn) + 12 * US, rel=1e-6)
    without = replace(PHYSICS, draws=False)
    assert kernel.time_ps(without) == pytest.approx(100 * US * 0.85 * 108 / 84 + 12 * US, rel=1e-6)


def test_what_holds_its_sms_to_the_end():
    # DeepEP's kernels do; NCCL's sends and receives end with the data of their peers.
    assert serves_peers("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    assert serves_peers("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)")
    assert not serves_peers("void deep_ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*)")
    assert not serves_peers("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    channels = Channels(load_cluster("h800-64", {}), 1.0)
    combine = Neighbour(0, 5_000 * US, 20, "all_to_all", 0, 64)
    (held,) = channels.holdings(combine, PHYSICS)
    assert (held.num_sms, held.end_ps) == (20, 5_000 * US)
    assert 0 < held.draw < 0.3 * channels.gpu.hbm_bytes_per_s * 1e-12
    waits, *rest = channels.holdings(replace(combine, by_peers=True), PHYSICS)
    assert (waits.num_sms, waits.draw, rest) == (1, 0.0, [])


@pytest.mark.parametrize("shortest_us, sms", [(7, 0), (8, 1), (9, 1), (350, 24)])
def test_a_collective_without_a_size_is_as_large_as_fits_its_shortest_recording(shortest_us, sms):
    channels = Channels(load_cluster("h100-8", {}), 1.0)
    gather = Neighbour(0, 5_000 * US, 0, "all_gather", 0, 4, shortest_ps=shortest_us * US)
    (held,) = channels.holdings(gather, PHYSICS)
    assert held.num_sms == sms  # 8 KiB take 7.7 us, 256 KiB 9.0: not told apart, so one channel
    # Recorded blocks need no size.
    (held,) = channels.holdings(replace(gather, blocks=7), PHYSICS)
    assert held.num_sms == 7
