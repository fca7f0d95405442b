"""Pause frames and DCQCN by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.network.packet import Marker, PacketSettings, Pause, RateControl, RoceSettings
from simcore.units import PS_PER_US
from tests.network.packet_lab import NS, Lab

TIMER = 55 * PS_PER_US
LINE = 1e-3  # bytes per ps, 1 byte per ns


def control(**changes):
    return RateControl(RoceSettings(**changes), LINE)


def test_pause_frames_stop_and_resume_the_sender():
    lab = Lab()
    first = lab.port(latency_ns=10, cut_through=False, pause=Pause(300, 100))
    slow = lab.port(0.1, cut_through=False)
    lab.send("a", 500, first, slow)
    # The third segment has left at 300 ns, arrives at 310, and the pause acts at 320: the fourth is on the
    # wire until 400 then.  The slow port sends from 110 on, 1000 ns each; at 3110 only one is left, so that
    # the first port goes on at 3120.  The fifth waits for the fourth: 4110 to 5110.
    assert lab.run() == {"a": 5110.0}
    assert first.num_pauses == 1
    assert first.starved_ps == (3120 - 400) * NS
    assert first.most_bytes == 400


def test_a_pause_for_what_has_left_again_is_not_sent():
    lab = Lab()
    first = lab.port(latency_ns=1000, cut_through=False, pause=Pause(100, 99))
    lab.send("a", 100, first, lab.port(cut_through=False))
    lab.send("b", 100, first, lab.port(cut_through=False))
    # Cause for a pause from 100 ns on, which would act at 2100; all has left the switch at 1300, and the
    # order to go on acts at 2300.  Nobody has anything to send in between.
    assert lab.run() == {"a": 1200.0, "b": 1300.0}
    assert first.starved_ps == 0


def test_one_queue_for_all_inputs_serves_in_order():
    lab = Lab()
    out = lab.port(cut_through=False, pause=Pause(10**9, 0))
    lab.send("backlog", 1000, lab.port(4.0, cut_through=False), out)
    lab.send("late", 110, lab.port(cut_through=False), out, segment=110)
    # Four segments of the backlog have come by 110 ns, and leave from 25 on: the late one follows at 425.
    assert lab.run() == {"late": 535.0, "backlog": 1135.0}


@pytest.mark.parametrize(
    ("queue_us", "share"), [(0, 0.0), (32, 0.0), (80, 0.1), (127.999999, 0.2), (128, 1.0), (1000, 1.0)]
)
def test_marking_rises_with_the_queue(queue_us, share):
    # From 32 us of queue on; 0.2 just before 128 us, so 0.1 at 80 us.
    assert RoceSettings().mark_probability(queue_us * 1e-6) == pytest.approx(share, abs=1e-6)


def test_segments_of_many_packets_are_marked_more_often():
    marker = Marker(RoceSettings(), 1e9, 1000, random.Random(7))
    # 80 us of queue at 1 byte per ns: each packet with 0.1, one of four with 1 - 0.9^4 = 0.3439.
    for size, share in ((1000, 0.1), (4000, 0.3439)):
        marked = sum(marker.marks(80_000, size) for _ in range(20_000))
        assert marked / 20_000 == pytest.approx(share, abs=0.01)


def test_the_first_notification_halves_the_rate():
    rate = control()
    assert rate.limit(0) is None
    rate.cut(0)
    assert rate.limit(0) == LINE / 2
    rate.cut(10)  # alpha is still 1
    assert rate.limit(10) == LINE / 4


def test_fast_recovery_halves_what_is_missing():
    rate = control()
    rate.cut(0)
    assert [rate.limit(k * TIMER) / LINE for k in (1, 2, 3)] == [0.75, 0.875, 0.9375]
    assert rate.limit(9 * TIMER) is None  # 1 - 2^-10: the line's


def test_additive_increase_moves_the_target():
    rate = control()
    rate.cut(0)
    rate.cut(0)
    # Target 0.5; five halvings from 0.25 leave 0.25 / 32 to go; then the target is 0.501.
    fifth = 0.5 - 0.25 / 32
    assert rate.limit(5 * TIMER) / LINE == pytest.approx(fifth)
    assert rate.limit(6 * TIMER) / LINE == pytest.approx((fifth + 0.501) / 2)


def test_hyper_increase_needs_time_and_bytes():
    rate = control(increase_bytes=1000)
    rate.cut(0)
    rate.cut(0)
    rate.sent(5000)  # five by bytes: to the target of 0.5, but for 0.25 / 32
    assert rate.limit(0) / LINE == pytest.approx(0.5 - 0.25 / 32)
    now = rate.limit(5 * TIMER) / LINE  # five by time: 0.25 / 1024 to go
    assert now == pytest.approx(0.5 - 0.25 / 1024)
    rate.sent(1000)  # the sixth by bytes: additive, target 0.501
    now = (now + 0.501) / 2
    assert rate.limit(5 * TIMER) / LINE == pytest.approx(now)
    # The sixth by time, both beyond five: the target moves by 0.01.
    assert rate.limit(6 * TIMER) / LINE == pytest.approx((now + 0.511) / 2)


def test_alpha_falls_in_quiet_times():
    rate = control()
    rate.cut(0)
    quiet = 1000 * TIMER
    assert rate.limit(quiet) is None
    rate.cut(quiet)
    alpha = (1 - 1 / 256) ** 1000  # 0.02
    assert rate.limit(quiet) is not None
    assert rate.limit(quiet) / LINE == pytest.approx(1 - alpha / 2, rel=1e-4)


def test_a_receiver_notifies_once_in_an_interval():
    rate = control()
    times = [at for at in range(0, 120 * PS_PER_US, 10 * PS_PER_US) if rate.notifies(at)]
    assert times == [0, 50 * PS_PER_US, 100 * PS_PER_US]


def test_a_marked_flow_halves_its_rate_a_round_trip_later():
    lab = Lab()
    settings = RoceSettings(mark_from_s=0.0, mark_all_s=0.0)
    marker = Marker(settings, 1e9, 1000, random.Random(1))
    rate = RateControl(settings, LINE)
    ports = lab.port(latency_ns=5), lab.port(latency_ns=5, marker=marker)
    lab.send("a", 1000, *ports, control=rate)
    # The first segment is there at 110 ns, its notification back at 120, while the second leaves.  The third
    # begins at 200 and is the first to leave a gap: the others follow every 200 ns, the tenth at 1600.
    assert lab.run() == {"a": 1600.0 + 100 + 2 * 5}
    assert rate.num_cuts == 1


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 2)), min_size=1, max_size=8),
    st.integers(50, 700),
    st.integers(100, 2000),
    st.booleans(),
)
def test_nothing_is_lost_and_headroom_suffices(messages, segment, xoff, cut_through):
    lab = Lab()
    settings = RoceSettings(mark_from_s=0.0, mark_all_s=2e-6, cnp_interval_ps=1000)
    kw = {
        "cut_through": cut_through,
        "pause": Pause(xoff, xoff // 2),
        "marker": Marker(settings, 1e9, 1000, random.Random(3)),
    }
    middle = lab.port(2.0, 3, **kw)
    outs = [lab.port(rate, 3, **kw) for rate in (0.5, 1.0, 2.0)]
    inputs = []
    for number, (size, out) in enumerate(messages):
        inputs.append(lab.port(1.0, 3, **kw))
        route = (inputs[-1], middle, outs[out])
        lab.send(number, size, *route, segment=segment, control=RateControl(settings, LINE))
    arrived = lab.run()
    assert sorted(arrived) == list(range(len(messages)))
    for out, port in enumerate(outs):
        assert port.sent_bytes == sum(size for size, way in messages if way == out)
    for port in (middle, *inputs):
        # Beyond the threshold: what was being sent at either end of a round trip, and what that holds.
        rate = 2.0 if port is middle else 1.0
        assert port.most_bytes <= xoff + 2 * segment + 2 * 3 * rate


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (RoceSettings, {"pfc_xon_bytes": 5_000_000}),
        (RoceSettings, {"gain": 0.0}),
        (RoceSettings, {"mark_from_s": 1.0}),
        (RoceSettings, {"cnp_interval_ps": 0}),
        (PacketSettings, {"transport": "ethernet"}),
        (PacketSettings, {"routing": "ecpm"}),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        settings(**wrong)
