"""Kernels that go on from the last change of their GPU take what they take with an event for each of them."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simcore.clock import Clock
from simcore.engine.execution import Execution
from simcore.engine.gpu import DRAWN, ENDED, GIVEN_BACK, RERATED, TAKEN
from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts.apart import (
    LONG_AGO,
    Apart,
    Disturbance,
    DisturbedError,
    GpuKind,
    gpu_of,
    make,
    outside,
)
from simcore.engine.shortcuts.runs import Run
from simcore.engine.shortcuts.under_way import Bench, UnderWay

US = 1_000_000
BEGIN_PS = 7 * US
KIND = GpuKind(132, 3.35e12, 2 * US)

#: SMs' time, blocks (0: fluid), blocks on an SM, HBM's MB, fixed us, SMs lost for each that is held, waiting.
demand = st.builds(
    lambda us, blocks, occupancy, mb, fixed_us, lost, waiting: (
        us * US, blocks, occupancy, mb * 1e6, fixed_us * US, True, lost, waiting,
    ),
    st.integers(1, 90), st.sampled_from([0, 1, 131, 132, 133, 700, 5000]), st.integers(1, 3),
    st.sampled_from([0.0, 0.1, 20.0, 150.0]), st.integers(0, 3), st.integers(0, 2),
    st.sampled_from([0.0, 1.5]),
)  # fmt: skip

#: When a message takes its SMs, how much later it moves, how long, SMs, GB/s; and whether it held them first.
message = st.tuples(
    st.integers(0, 300), st.integers(0, 20), st.integers(1, 200), st.integers(0, 20),
    st.sampled_from([25, 50, 450]), st.booleans(),
)  # fmt: skip


def told(messages):
    """SMs held at the begin, and what messages do to a GPU after it, by instants."""
    held, events = 0, []
    for number, (at, until, lasts, sms, gbytes_per_s, before) in enumerate(messages):
        if before:
            held += sms
        else:
            events.append((at * US + 1, (TAKEN, sms, 0.0, number)))
        begin, draw = (at + until) * US + 2, gbytes_per_s * 1e-3
        # What ends has kernels re-rated at once, by SMs that are given back or by itself.
        last = (GIVEN_BACK, sms, 0.0, number) if number % 2 else (RERATED, 0, 0.0, number)
        events += [(begin, (DRAWN, 0, draw, number)), (begin + lasts * US, (ENDED, 0, 0.0, number))]
        events.append((begin + lasts * US, last))
    events.sort(key=lambda one: (one[0], one[1][3]))
    flows, changes = {}, []
    for since, (kind, sms, draw, number) in events:
        if kind in (DRAWN, ENDED):
            sms = flows.setdefault(number, len(flows))
        changes.append((since, Disturbance(kind, sms, draw, draw)))
    return held, changes


def by_events(sequence, launch_ps, held, changes):
    """Starts and ends of kernels, an event each, on a GPU that others change."""
    clock = Clock()
    gpu = gpu_of(KIND, clock, Apart(clock, np.zeros(0)), Execution)
    flows, execution = outside(gpu, (held, ())), None
    for since, change in [*changes, (1 << 59, Disturbance(RERATED))]:
        if execution is None and since > BEGIN_PS:
            clock.play_until(BEGIN_PS)
            execution = gpu.execute(sequence, launch_ps)
        clock.play_until(since)
        if since < 1 << 59:
            make(change, gpu, flows)
    return execution.starts, execution.ends


# The third message leaves a kernel that loses two SMs for each no SM.
@example(
    kernels=[((US, 0, 1, 0.0, 0, True, 2, 0.0), 0)], is_late=False,
    messages=[(0, 0, 1, 17, 25, False), (0, 0, 7, 17, 25, False), (0, 0, 1, 17, 25, False),
              (0, 0, 7, 15, 25, False)],
)  # fmt: skip
@settings(max_examples=250, deadline=None)
@given(
    kernels=st.lists(st.tuples(demand, st.integers(0, 30)), min_size=1, max_size=5), is_late=st.booleans(),
    messages=st.lists(message, min_size=1, max_size=4),
)  # fmt: skip
def test_going_on_is_an_event_for_each_kernel(kernels, is_late, messages):
    demands, gaps = zip(*kernels, strict=True)
    launch = (np.cumsum(gaps) - gaps[0]).tolist()
    bench = Bench(KIND)
    sequence = KernelSequence.of(list(demands), [0] * len(demands), [us * US for us in launch])
    alone = Run(bench, sequence, 0).durations(bench.alone)
    sequence = KernelSequence.of(list(demands), alone, [us * US for us in launch])
    launch_ps = 3 * US if is_late else LONG_AGO
    held, changes = told(messages)
    under_way = UnderWay(bench, 0, sequence, launch_ps, BEGIN_PS, (held, ()), ())
    for at in dict.fromkeys(since for since, _ in changes):
        before, under_way = under_way, under_way.copy()
        try:
            under_way.make([one for one in changes if one[0] == at])
            if at <= BEGIN_PS:
                continue
            end_ps = under_way.end_ps()
        except DisturbedError:
            return
        starts, ends = by_events(sequence, launch_ps, held, [one for one in changes if one[0] <= at])
        assert end_ps == ends[-1]
        played = under_way.copy().play()
        if played.origin_ps is None:
            assert (played.starts, played.ends) == (starts, ends)
        else:
            assert starts == [played.origin_ps + since for since in sequence.alone.before]
        if ends[-1] <= at:
            return
        before.copy().make([one for one in changes if one[0] == at])  # another course, from the same state
