"""Host threads that launch beside each other; times in us, arithmetic in comments."""

import numpy as np
import pytest

from simcore.apps.replay.edits import edit_recording
from simcore.apps.replay.play import play
from tests.imports.traces import call, launched, write
from workloads.imports import import_traces


def two_threads():
    """Both launch every 100 us a kernel and wait for it, thread 2 on stream 8, shifted by 20 us.

    Thread 1: launch at 100 i, kernel 8..68, synchronisation 4..70.  Thread 2: launch at 20, kernel 28..58,
    synchronisation 24..60: each waits while the other launches.
    """
    events = []
    for i in range(8):
        at = 100 * i
        events += launched("a", at, at + 8, 60, corr=4 * i + 1, stream=7, tid=1)
        events.append(call("cudaStreamSynchronize", at + 4, 66, corr=4 * i + 2, tid=1))
        events += launched("b", at + 20, at + 28, 30, corr=4 * i + 3, stream=8, tid=2)
        events.append(call("cudaStreamSynchronize", at + 24, 36, corr=4 * i + 4, tid=2))
    return events


def starts_us(replay, name):
    recorded = replay.job.ranks[0].recorded
    mine = np.array([text == name for text in recorded.name.tolist()])
    return replay.start_ps[0][mine] / 1e6


def test_threads_are_told_apart_and_come_back(tmp_path):
    job = import_traces([write(tmp_path / "t.json", two_threads())])
    (rank,) = job.report.ranks
    assert (rank.host_threads, rank.concurrent_blocks, rank.blocking_calls) == (2, 0, 16)
    replay = play(job)
    recorded = job.ranks[0].recorded
    assert (replay.start_ps[0] - replay.start_ps[0][0] == recorded.start_ps - recorded.start_ps[0]).all()
    assert "beside each other" in " ".join(job.report.doubts())


@pytest.mark.parametrize(
    ("edit", "a_step", "b_step"),
    [
        # Thread 1 goes on 30 us after the end of its kernel: 8 + 120 + 32 a round; thread 2 as before.
        ("kernel.^a$.speed=0.5", 160, 100),
        # Thread 2 goes on 62 us after the end of its kernel: 8 + 15 + 62 a round.
        ("kernel.^b$.speed=2", 100, 85),
    ],
)
def test_a_thread_does_not_hold_up_another(tmp_path, edit, a_step, b_step):
    job, _ = edit_recording(import_traces([write(tmp_path / "t.json", two_threads())]), [edit], None)
    replay = play(job)
    assert np.diff(starts_us(replay, "a")) == pytest.approx(a_step)
    assert np.diff(starts_us(replay, "b")) == pytest.approx(b_step)


def test_threads_that_hand_over_are_one(tmp_path):
    # Forward by thread 1, backward by thread 2, in turns; no call of one lies in a call of the other.
    events = [
        event
        for i in range(20)
        for event in launched("k", 50 * i, 50 * i + 8, 30, corr=i + 1, tid=1 + (i // 5) % 2)
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    assert job.report.ranks[0].host_threads == 1


def test_host_speed_concerns_all_threads(tmp_path):
    job, _ = edit_recording(
        import_traces([write(tmp_path / "t.json", two_threads())]), ["host.speed=inf"], None
    )
    # Only kernels and the way from the host to the GPU are left: each thread waits for its own kernel alone.
    replay = play(job)
    assert np.diff(starts_us(replay, "a")).max() < 75 and np.diff(starts_us(replay, "b")).max() < 45
