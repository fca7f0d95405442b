"""GPUs and links are SimPy resources: processes read as SimPy code, stock resources work beside them."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from simpy.resources.base import BaseResource

from simcore.clock import Clock
from simcore.collectives import NcclPlanner
from simcore.collectives.plan import LinkUse
from simcore.engine import Gpu
from simcore.errors import InputError
from simcore.network import Flow, FluidNetwork
from simcore.network.fluid import fluid_network
from tests.engine.lab import US, cluster


def bench(*gb_per_s: float):
    clock = Clock()
    network = FluidNetwork(clock, np.array(gb_per_s) * 1e9)
    return clock, network, [network.link(i) for i in range(len(gb_per_s))]


def test_two_transfers_on_one_link():
    # 100 MB at 0 and at 1 ms on 50 GB/s: they end at 3 and 4 ms.
    clock, _, (nic,) = bench(50)
    ends = {}

    def sender(name, delay_us):
        yield clock.timeout(delay_us * US)
        yield nic.transfer(100e6)
        ends[name] = clock.now

    clock.process(sender("a", 0))
    clock.process(sender("b", 1000))
    clock.drain()
    assert ends == {"a": 3000 * US, "b": 4000 * US}


def test_a_communication_kernel_written_by_hand():
    # 16 of 132 SMs for 25 us of waiting and a 1 MB transfer at 50 GB/s (20 us); the second wants 120 SMs.
    clock, network, (link,) = bench(50)
    gpu = Gpu(clock, network, num_sms=132, hbm_bytes_per_s=3e12)
    log = []

    def kernel(name, sms, wait_us):
        with gpu.sms.hold(sms) as held:
            yield held
            log.append((name, "placed", clock.now // US))
            yield clock.timeout(wait_us * US)
            yield link.transfer(1e6)
        log.append((name, "done", clock.now // US))

    clock.process(kernel("first", 16, 25))
    clock.process(kernel("second", 120, 0))
    clock.drain()
    assert log == [
        ("first", "placed", 0),
        ("second", "placed", 45),
        ("first", "done", 45),
        ("second", "done", 65),
    ]
    assert gpu.sms.held == 0


def test_a_hold_given_up_before_it_is_granted():
    clock, network, _ = bench(50)
    gpu = Gpu(clock, network, num_sms=4, hbm_bytes_per_s=3e12)

    def holder():
        with gpu.sms.hold(4) as held:
            yield held
            yield clock.timeout(10 * US)

    def impatient():
        with gpu.sms.hold(2) as held:
            yield held | clock.timeout(3 * US)
            assert not held.triggered

    clock.process(holder())
    clock.process(impatient())
    clock.drain()
    assert gpu.sms.held == 0
    assert not gpu.sms.put_queue


def test_a_coroutine_that_is_thrown_away_gives_nothing_back():
    """As stock resources of SimPy: its simulation is thrown away, too, and rates nothing again."""
    clock, network, _ = bench(50)
    gpu = Gpu(clock, network, num_sms=4, hbm_bytes_per_s=3e12)

    def holder():
        with gpu.sms.hold(3) as held:
            yield held
            yield clock.timeout(10 * US)

    abandoned = holder()
    clock.process(abandoned)
    clock.run(until=5 * US)
    abandoned.close()
    assert gpu.sms.held == 3


def test_stock_simpy_resources_share_the_clock():
    clock, _, (link,) = bench(10)
    storage = simpy.Container(clock, capacity=100, init=0)
    got = []

    def producer():
        for _ in range(3):
            yield link.transfer(1e6, latency_ps=5 * US)  # 100 us + 5 us
            yield storage.put(30)

    def consumer():
        yield storage.get(60)
        got.append(clock.now // US)

    clock.process(producer())
    clock.process(consumer())
    clock.drain()
    assert got == [210]
    assert storage.level == 30


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_transfers_of_no_size(size):
    _, _, (link,) = bench(10)
    with pytest.raises(InputError, match="a transfer needs a size"):
        link.transfer(size)


def test_more_sms_than_there_are():
    clock, network, _ = bench(10)
    gpu = Gpu(clock, network, num_sms=4, hbm_bytes_per_s=3e12)
    with pytest.raises(InputError, match="cannot hold 5 of 4 SMs"):
        gpu.sms.hold(5)


class Looker:
    """Asks links of a running simulation what is on them, at given times."""

    def __init__(self, clock, times_us, *links):
        self.seen = []
        clock.process(self._look(clock, times_us, links))

    def _look(self, clock, times_us, links):
        for at in times_us:
            yield clock.timeout(at * US - clock.now)
            self.seen.append([(len(link.flows), link.rate / 1e9, link.level) for link in links])


def test_what_holds_links_can_be_asked_at_any_time():
    # 200 MB on both links at 0, 40 MB on the spine at 1 ms.  The first moves the NIC's 50 GB/s alone; from
    # 1 ms on both want the spine's 60 GB/s, 30 each.  40 MB take 4/3 ms; then 50 GB/s again.
    clock, network, (nic, spine) = bench(50, 60)
    assert isinstance(nic, BaseResource)
    assert (nic.capacity, nic.level) == (50e9, 0.0)
    both = (LinkUse(nic.index, 1.0), LinkUse(spine.index, 1.0))
    plan = replace(spine.transfer(0).plan, links=both, volume_bytes=200e6)

    def late():
        yield clock.timeout(1000 * US)
        yield spine.transfer(40e6)

    network.start(Flow(clock, plan, ()))
    clock.process(late())
    looker = Looker(clock, (500, 1500, 2500, 6000), nic, spine)
    clock.drain()
    expected = [
        [(1, 50.0, 1.0), (1, 50.0, 5 / 6)],
        [(1, 30.0, 0.6), (2, 60.0, 1.0)],
        [(1, 50.0, 1.0), (1, 50.0, 5 / 6)],
        [(0, 0.0, 0.0), (0, 0.0, 0.0)],
    ]
    np.testing.assert_allclose(looker.seen, expected, rtol=1e-12)


def test_the_links_of_a_collective_that_a_job_runs():
    """What the engine itself runs: a ring on the NVLinks of a node, asked while it moves."""
    where = cluster()
    clock = Clock()
    network = fluid_network(clock, where)
    ranks = tuple(range(8))
    plan = NcclPlanner(where).plan("all_reduce", 1 << 30, ranks)
    gpus = [Gpu(clock, network, num_sms=132, hbm_bytes_per_s=3.35e12) for _ in ranks]
    network.start(Flow(clock, plan, gpus))
    used = [network.link(use.link) for use in plan.links]
    looker = Looker(clock, (plan.alone_ps // US // 2, plan.alone_ps // US + 1), *used)
    clock.drain()
    moving, after = looker.seen
    assert {flows for flows, _, _ in moving} == {1}
    weight = {use.link: use.weight for use in plan.links}
    rates = {rate / weight[link.index] for link, (_, rate, _) in zip(used, moving, strict=True)}
    assert max(rates) == pytest.approx(min(rates))  # one flow: every link carries its connections at one rate
    assert all(0.0 < level <= 1.0 + 1e-12 for _, _, level in moving)
    assert after == [(0, 0.0, 0.0)] * len(used)


def test_an_sm_pool_is_asked_as_any_resource_of_simpy():
    clock, network, _ = bench(50)
    gpu = Gpu(clock, network, num_sms=8, hbm_bytes_per_s=3e12)
    assert gpu.sms.capacity == 8

    def holder(sms):
        with gpu.sms.hold(sms) as held:
            assert held.resource is gpu.sms
            assert held.proc is clock.active_process
            yield held
            yield clock.timeout(10 * US)

    clock.process(holder(6))
    clock.process(holder(4))
    clock.run(until=5 * US)
    assert (gpu.sms.held, gpu.sms.waiting) == (6, 4)
    assert [hold.num_sms for hold in gpu.sms.put_queue] == [4]
    clock.run(until=15 * US)
    assert (gpu.sms.held, gpu.sms.waiting) == (4, 0)
    clock.run()
    assert gpu.sms.held == 0
