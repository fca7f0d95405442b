"""Waits between the steps of a collective: others may use the links meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.network.flow import Flow
from simcore.network.fluid import FluidNetwork

MS = 10**9


def plan(*, between_ms=0.0, lead_ms=0.0):
    """100 MB over one link of 50 GB/s: 2 ms of data."""
    latency = round((between_ms + lead_ms) * MS)
    return CollectivePlan(
        collective="all_reduce", num_bytes=10**8, ranks=(0, 1), algorithm="ring", protocol="Simple",
        channels=1,
        chunk_bytes=10**6, num_chunks=100, num_steps=100, latency_ps=latency, volume_bytes=1e8,
        rate_cap_bytes_per_s=50e9, hbm_bytes_per_byte=0.0, links=(LinkUse(0, 1.0),),
        alone_ps=latency + 2 * MS,
        between_ps=round(between_ms * MS),
    )  # fmt: skip


def ends_ms(*plans):
    clock = Clock()
    network = FluidNetwork(clock, np.array([50e9]))
    ends = []
    for each in plans:
        flow = Flow(clock, each, ())
        flow.callbacks.append(lambda _: ends.append(clock.now / MS))
        network.start(flow)
    clock.drain()
    return ends


def test_alone_it_takes_its_time_to_the_picosecond():
    assert ends_ms(plan(between_ms=2.0, lead_ms=0.5)) == [4.5]


def test_two_fit_into_each_others_waits():
    # 2 ms of waits and 2 ms of data: each needs half of the link.
    assert ends_ms(plan(between_ms=2.0), plan(between_ms=2.0)) == [4.0, 4.0]


def test_waits_vanish_where_data_is_slower():
    # Three want 3 x 25 of 50 GB/s: 100 MB at 16.67 GB/s.
    assert ends_ms(*[plan(between_ms=2.0)] * 3) == [pytest.approx(6.0)] * 3


def test_latency_before_data_does_not_vanish():
    # Both wait 1 ms, then share: 1 + 4 ms.
    assert ends_ms(plan(lead_ms=1.0), plan(lead_ms=1.0)) == [5.0, 5.0]
