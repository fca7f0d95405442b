"""Messages that wait for one another at ports: exact arithmetic."""

from __future__ import annotations

import pytest

from simcore.apps.studies.arrivals import PortLane, PortMessage, arrivals_s

NO = -1


def free(num_bytes, key):
    return PortMessage(num_bytes, NO, 0, key)


def test_one_message_takes_its_bytes_and_the_latency():
    # 100 B at 50 B/s, then 3 s on the wire.
    assert arrivals_s([50.0], [PortLane((0,), 3.0, 1, [free(100, 0)])])[1] == pytest.approx(5.0)


def test_lanes_of_a_port_share_it_equally():
    # 60 and 20 B at 10 B/s: the small one has half until 4 s; 40 B are left and take 4 s more.
    lanes = [PortLane((0,), 0.0, 1, [free(60, 0)]), PortLane((0,), 0.0, 1, [free(20, 1)])]
    assert arrivals_s([10.0], lanes)[1] == pytest.approx(8.0)


def test_a_message_waits_for_what_it_passes_on():
    # 10 B at 10 B/s and 1 s of wire, twice in a row: 2 s, then 2 s.
    lanes = [PortLane((0,), 1.0, 1, [free(10, 0)]), PortLane((1,), 1.0, 1, [PortMessage(10, 0, 1, 1)])]
    assert arrivals_s([10.0, 10.0], lanes)[1] == pytest.approx(4.0)


def test_chunks_follow_each_other_through_a_chain():
    # 4 chunks of 1 s over 3 hops of 0.5 s wire: first at 3 * 1.5 s, the others a second apart.
    hops, chunks = 3, 4
    lanes = [
        PortLane(
            (h,),
            0.5,
            8,
            [PortMessage(10, (h - 1) * chunks + c, int(h > 0), h * chunks + c) for c in range(chunks)],
        )
        for h in range(hops)
    ]
    early, end = arrivals_s([10.0] * hops, lanes, early=1)
    assert (early, end) == (pytest.approx(4.5), pytest.approx(7.5))


def test_a_window_of_one_waits_for_arrival():
    # Two messages of 1 s with 2 s of wire: the second leaves when the first is there, at 3 s.
    messages = [free(10, 0), free(10, 1)]
    assert arrivals_s([10.0], [PortLane((0,), 2.0, 1, messages)])[1] == pytest.approx(6.0)
    assert arrivals_s([10.0], [PortLane((0,), 2.0, 2, messages)])[1] == pytest.approx(4.0)


def test_a_message_needs_all_its_ports():
    # The second port gives half to another lane: 20 B at 5 B/s.
    lanes = [PortLane((0, 1), 0.0, 1, [free(20, 0)]), PortLane((1,), 0.0, 1, [free(20, 1)])]
    assert arrivals_s([100.0, 10.0], lanes)[1] == pytest.approx(4.0)
