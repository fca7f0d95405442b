"""GPUs and links are SimPy resources: processes read as SimPy code, stock resources work beside them."""

import numpy as np
import pytest
import simpy

from simcore.clock import Clock
from simcore.engine import Gpu
from simcore.errors import InputError
from simcore.network import FluidNetwork
from tests.engine.lab import US


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
