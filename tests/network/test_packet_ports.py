"""Segments at ports, by hand: wires of 1 byte per ns (1e9 bytes/s) and latencies in ns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.network.packet import Connection, PacketSettings
from tests.network.packet_lab import NS, Lab


def test_one_link_takes_bytes_over_rate_plus_latency():
    lab = Lab()
    lab.send("a", 1000, lab.port(latency_ns=7))
    assert lab.run() == {"a": 1007.0}  # 1000 B at 1 B/ns, then 7 ns


def test_store_and_forward_stores_one_segment_per_hop():
    lab = Lab()
    lab.send("a", 1000, *[lab.port(latency_ns=5, cut_through=False) for _ in range(4)])
    # All 1000 B on the first link; each of 3 further hops adds a segment of 100 B; 4 latencies.
    assert lab.run() == {"a": 1000.0 + 3 * 100 + 4 * 5}


def test_cut_through_adds_latency_only():
    lab = Lab()
    lab.send("a", 1000, *[lab.port(latency_ns=5) for _ in range(4)])
    assert lab.run() == {"a": 1000.0 + 4 * 5}


def test_a_faster_link_is_not_cut_through():
    lab = Lab()
    lab.send("a", 1000, lab.port(1.0), lab.port(4.0), segment=100)
    # The last segment is stored at 1000 ns and then leaves at 4 B/ns: 25 ns.
    assert lab.run() == {"a": 1025.0}


def test_a_slower_link_sets_the_pace():
    lab = Lab()
    fast, slow = lab.port(4.0), lab.port(1.0)
    lab.send("a", 1000, fast, slow)
    assert lab.run() == {"a": 1000.0}
    assert (fast.busy_ps, slow.busy_ps) == (250 * NS, 1000 * NS)


def test_two_senders_into_one_port_share_it():
    lab = Lab()
    out = lab.port(cut_through=False)
    for name, size in (("a", 1000), ("b", 500)):
        lab.send(name, size, lab.port(cut_through=False), out)
    # Segments alternate from 100 ns on: b's fifth is the tenth, at 100 + 10 * 100; all 1500 B at 1600.
    assert lab.run() == {"a": 1600.0, "b": 1100.0}


def test_connections_take_turns_at_their_first_port():
    lab = Lab()
    port = lab.port()
    lab.send("long", 1000, port)
    lab.send("short", 200, port)
    # long is alone for a segment and has queued the next; then they alternate: l l s l s ends at 500 ns.
    assert lab.run() == {"short": 500.0, "long": 1200.0}


def test_messages_of_one_connection_stay_in_order():
    lab = Lab()
    connection = Connection((lab.port(),), 100)
    for name, size in (("first", 300), ("second", 50)):
        connection.send(size, lambda name=name: lab.note(name))
    assert lab.run() == {"first": 300.0, "second": 350.0}


def test_headers_take_wire_time():
    lab = Lab()
    lab.send("a", 1000, lab.port(), wire_overhead=1.05)
    assert lab.run() == {"a": 1050.0}


def test_the_overhead_of_one_message_delays_no_other():
    lab = Lab()
    port = lab.port()
    lab.send("slow", 100, port, overhead_ps=1000 * NS)
    lab.send("other", 500, port)
    assert lab.run() == {"other": 500.0, "slow": 1100.0}


def test_a_full_buffer_stops_the_port_behind_it():
    lab = Lab()
    first, jammed, free = lab.port(room=200), lab.port(0.1), lab.port()
    lab.send("jammed", 400, first, jammed)
    lab.send("victim", 100, first, free)
    # Two of the jammed segments fill the buffer by 200 ns.  The slow link sends one per 1000 ns, so there is
    # no room before 1000 ns, not even for the victim, whose own link is free: head-of-line blocking.
    assert lab.run() == {"victim": 1100.0, "jammed": 4000.0}
    # The victim is through at 1100 and the third jammed segment takes its room; the fourth waits from 1200
    # to 2000, when the second is gone.
    assert first.starved_ps == (800 + 800) * NS


def test_an_input_with_a_backlog_does_not_hold_up_another():
    lab = Lab()
    out = lab.port(cut_through=False)
    lab.send("backlog", 1000, lab.port(4.0, cut_through=False), out)
    lab.send("late", 110, lab.port(cut_through=False), out, segment=110)
    # A segment of the backlog comes every 25 ns and takes 100 ns to leave.  The late one comes at 110 ns,
    # when three wait and one is on the wire until 125: one more goes before it, and it leaves 225 to 335 ns.
    assert lab.run() == {"late": 335.0, "backlog": 25.0 + 1000 + 110}


def test_incast_shares_the_port_evenly_and_credits_hold_the_rest_back():
    lab = Lab()
    inputs = [lab.port(room=200, cut_through=False) for _ in range(3)]
    out = lab.port(cut_through=False)
    for name, port in zip("abc", inputs, strict=True):
        lab.send(name, 1000, port, out)
    # The port is busy from 100 ns on with 30 segments in turn: a, b, c, a, b, c...
    assert lab.run() == {"a": 2900.0, "b": 3000.0, "c": 3100.0}
    for port in inputs:
        assert port.most_bytes == 200  # never more than there is room for


def test_what_ends_here_passes_what_waits_for_room_further_on():
    lab = Lab()
    first, jammed = lab.port(room=100), lab.port(0.1)
    lab.send("jammed", 200, lab.port(), first, jammed)
    lab.send("own", 100, lab.port(latency_ns=150), first)
    # The second jammed segment waits for room until the first has left at 1000 ns, the other one for nothing.
    arrived = lab.run()
    assert arrived["own"] == 250.0
    assert arrived["jammed"] == 2000.0


def test_a_limited_connection_leaves_gaps():
    lab = Lab()
    port = lab.port()
    connection = Connection((port,), 100)
    connection.limit(0.25e-3)  # bytes per ps: a quarter of the port's
    connection.send(400, lambda: lab.note("slow"))
    lab.send("other", 300, port)
    # Slow segments begin at 0, 400, 800 and 1200 ns; the other's three fit between the first two.
    assert lab.run() == {"slow": 1300.0, "other": 400.0}


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 2)), min_size=1, max_size=8),
    st.integers(1, 700),
    st.integers(700, 3000),
    st.booleans(),
)
def test_nothing_is_lost_and_no_link_is_faster_than_its_rate(messages, segment, room, cut_through):
    lab = Lab()
    middle = lab.port(2.0, 3, room, cut_through)
    outs = [lab.port(rate, 3, room, cut_through) for rate in (0.5, 1.0, 2.0)]
    for number, (size, out) in enumerate(messages):
        lab.send(number, size, lab.port(1.0, 3, room, cut_through), middle, outs[out], segment=segment)
    arrived = lab.run()
    assert sorted(arrived) == list(range(len(messages)))
    assert middle.sent_bytes == sum(size for size, _ in messages)
    for out, port in enumerate(outs):
        assert port.sent_bytes == sum(size for size, way in messages if way == out)
    assert max(arrived.values()) >= middle.sent_bytes / 2.0 + 9
    for number, (size, out) in enumerate(messages):
        assert arrived[number] >= size / min(1.0, (0.5, 1.0, 2.0)[out]) + 9 - 0.001


@pytest.mark.parametrize("wrong", [{"segment_bytes": 0}, {"header_bytes": -1}, {"slices": 0}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        PacketSettings(**wrong)
