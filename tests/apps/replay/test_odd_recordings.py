"""Recordings of odd shape come back as they are; times in us, arithmetic in comments."""

import pytest

from simcore.apps.replay.insight import step_insights
from simcore.apps.replay.play import play
from tests.imports.traces import call, kernel, launched, step, write
from workloads.imports import import_traces


def on_device(device, events, pid=9):
    moved = []
    for event in events:
        if event["cat"] == "kernel":
            moved.append({**event, "pid": device, "args": {**event["args"], "device": device}})
        else:
            moved.append({**event, "pid": pid})
    return moved


def two_threads():
    pairs = ((f"f{i}", 10 * i, 9, i + 1, 7, 1) for i in range(10))
    others = ((f"g{i}", 10 * i + 5, 7, i + 100, 8, 2) for i in range(10))
    return [
        event
        for name, at, length, corr, stream, thread in (*pairs, *others)
        for event in launched(name, at, at + 8, length, corr=corr, stream=stream, tid=thread)
    ]


def without_args(event):
    return {key: value for key, value in event.items() if key != "args"}


CASES = {
    # 8 to 72: the second device's last kernel runs 62..72.
    "two devices of one process": (
        [
            *on_device(0, [*launched("a", 0, 8, 50, corr=1), *launched("c", 8, 58, 10, corr=3)]),
            *on_device(1, [*launched("b", 4, 12, 50, corr=2), *launched("d", 12, 62, 10, corr=4)]),
        ],
        [(-1, 64)],
    ),
    "two processes that number alike": (
        [
            event
            for device in (0, 1)
            for event in on_device(
                device, [*launched("a", 0, 8, 50, corr=1), *launched("c", 8, 58, 10, corr=2)], 100 + device
            )
        ],
        [(-1, 60)],
    ),
    # b is launched where both steps are: it belongs to both, as its span does.  1: 20..170, 2: 120..175.
    "steps that overlap": (
        [
            step(1, 0, 120), step(2, 100, 100), *launched("a", 10, 20, 50, corr=1),
            *launched("b", 110, 120, 50, corr=2), *launched("c", 150, 170, 5, corr=3),
        ],
        [(1, 150), (2, 55)],
    ),
    "a step that threads repeat": (
        [step(1, 0, 120), step(1, 5, 50), *launched("a", 60, 70, 50, corr=1)],
        [(1, 50)],
    ),
    "events without args": ([without_args(kernel("a", 10, 5)), kernel("b", 20, 5)], [(-1, 15)]),
    "kernels that take no time": (
        [*launched("a", 0, 8, 0, corr=1), *launched("b", 2, 8, 0, corr=2)],
        [(-1, 0)],
    ),
    "a kernel before its launch": (
        [*launched("a", 10, 8, 5, corr=1), *launched("b", 12, 20, 5, corr=2)],
        [(-1, 17)],
    ),
    "launches without correlation": (
        [
            call("cudaLaunchKernel", 0, 2), kernel("a", 10, 5), call("cudaLaunchKernel", 20, 2, corr=5),
            kernel("b", 30, 5),
        ],
        [(-1, 25)],
    ),
    "threads that launch independently": (two_threads(), [(-1, 102)]),
    "old categories in capitals": (
        [
            {**kernel("a", 10, 5, corr=1), "cat": "Kernel"},
            {**call("cudaLaunchKernel", 1, 2, corr=1), "cat": "Runtime"},
        ],
        [(-1, 5)],
    ),
    "categories of other devices": (
        [
            {**kernel("a", 10, 5, corr=1), "cat": "mtia_ccp_events"},
            {**call("runtime_launch", 1, 2, corr=1), "cat": "privateuse1_runtime"},
            *launched("b", 12, 20, 5, corr=2),
        ],
        [(-1, 15)],
    ),
    "numbers as text": (
        [{**kernel("a", 10, 5), "args": {"device": "0", "stream": "stream 7", "correlation": "1"}}],
        [(-1, 5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_odd_recordings(tmp_path, case):
    events, expected = CASES[case]
    replay = play(import_traces([write(tmp_path / "t.json", events)]))
    steps = replay.steps()
    assert [(row.step, pytest.approx(row.recorded.span * 1e6)) for row in steps] == expected
    for row, insight in zip(steps, step_insights(replay, steps), strict=True):
        assert row.replayed == row.recorded
        assert insight.contributions == []
        assert sum(insight.path.values()) == pytest.approx(row.recorded.span)


def test_without_launches_typical_gaps_keep_the_idle_time(tmp_path):
    # Nothing says why b began 1000 after a: 10 to 1020 in both modes.
    path = write(tmp_path / "t.json", [kernel("a", 10, 5), kernel("b", 1015, 5), kernel("c", 1020, 0)])
    for gaps in ("recorded", "typical"):
        (row,) = play(import_traces([path], gaps=gaps)).steps()
        assert row.replayed.span == pytest.approx(1010e-6, abs=1e-12)
