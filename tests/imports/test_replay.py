"""Hand-written traces replayed; times in us, arithmetic in comments."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.replay.play import play, simulate_job
from simcore.graph import OpKind, graph_hash, load_graph, save_graph, verify
from tests.imports.traces import call, framework_call, kernel, launched, step, sync_record, write
from workloads.imports import import_traces


def replayed(*paths, **options):
    return play(import_traces(list(paths), **options)).steps()


def test_launch_bound_and_queued_kernels_keep_their_times(tmp_path):
    # a: called at 10, starts at 18; b behind it: 18 + 20 + a gap of 1 = 39; c: called at 100, idle stream.
    events = [
        *launched("a", 10, 18, 20, corr=1),
        *launched("b", 13, 39, 5, corr=2),
        *launched("c", 100, 108, 7, corr=3),
    ]
    (row,) = replayed(write(tmp_path / "t.json", events))
    # From 18 to 115; computing for 20 + 5 + 7.
    assert row.replayed.span == pytest.approx(97e-6, abs=1e-12)
    assert row.replayed.parts() == pytest.approx(
        {"exposed_compute": 32e-6, "overlapped": 0, "exposed_communication": 0, "other": 65e-6}, abs=1e-12
    )
    assert row.recorded == row.replayed


def test_what_was_launched_before_the_window_waits_for_no_host_of_it(tmp_path):
    # The host waits from 4 to 40 for a (3 to 38). The collective on stream 20, launched before the recording,
    # runs from 6 to 16; b is launched behind it later.
    events = [
        *launched("a", 1, 3, 35, corr=1),
        call("cudaStreamSynchronize", 4, 36, corr=2),
        sync_record("Stream Sync", 2, stream=7),
        kernel("ncclDevKernel_AllReduce", 6, 10, stream=20),
        *launched("b", 45, 50, 5, corr=3, stream=20),
    ]
    (row,) = replayed(write(tmp_path / "t.json", events))
    assert row.replayed == row.recorded
    # a from 3 to 38, the collective beside it, b from 50 to 55.
    assert row.replayed.overlapped == pytest.approx(10e-6, abs=1e-12)


def test_a_longer_kernel_moves_what_waits_for_it_and_nothing_else(tmp_path):
    # Stream 7: a 10..30. Recorded: b on stream 8 waits for a by an event. The host synchronises with b (ends
    # at 50) until 52 and launches c 10 later (call at 62, start at 70).
    events = [
        *launched("a", 2, 10, 20, corr=1),
        call("cudaEventRecord", 5, 1, corr=2),
        call("cudaStreamWaitEvent", 7, 1, corr=3),
        sync_record("Stream Wait Event", 3, stream=8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
        *launched("b", 9, 33, 17, corr=4, stream=8),
        call("cudaStreamSynchronize", 12, 40, corr=5),
        sync_record("Stream Sync", 5, stream=8),
        *launched("c", 62, 70, 5, corr=6),
        *launched("d", 63, 72, 1, corr=7, stream=9),
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    report = job.report.ranks[0]
    assert (report.recorded_waits, report.guessed_waits, report.blocking_calls) == (1, 0, 1)
    assert play(job).steps()[0].replayed.span == pytest.approx(65e-6, abs=1e-12)  # 10 to 75
    ops = job.graph.ops
    ops.recorded_ps[ops.name.tolist().index("a")] += 100_000_000  # a lasts 100 longer
    # b, the host's wait, c and d all follow: 10 to 175.
    assert play(job).steps()[0].replayed.span == pytest.approx(165e-6, abs=1e-12)


def test_a_wait_that_the_recording_contradicts_is_dropped(tmp_path):
    # By the record b waits for a, but it began while a ran.
    events = [
        *launched("a", 2, 10, 50, corr=1),
        call("cudaEventRecord", 5, 1, corr=2),
        call("cudaStreamWaitEvent", 7, 1, corr=3),
        sync_record("Stream Wait Event", 3, stream=8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
        *launched("b", 9, 17, 5, corr=4, stream=8),
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    assert job.report.ranks[0].contradicted_waits == 1
    assert len(job.graph.edges) == 0


def test_a_kernel_waits_for_its_own_all_gather_not_for_the_prefetched_one(tmp_path):
    # As FSDP does: the host waits for the first all_gather (20..60), prefetches the second (60..160) and
    # launches the kernel (61..91), by then ready for 13: too little to say that it waited for something.
    gather = "ncclDevKernel_AllGather_RING_LL"
    events = [
        *(framework_call("c10d::_allgather_base_", at, 7) for at in (5, 20)),
        *launched("before", 0, 8, 12, corr=1),
        call("cudaStreamWaitEvent", 6, 1, corr=2), *launched(gather, 8, 20, 40, corr=3, stream=20),
        call("cudaStreamWaitEvent", 15, 1, corr=4),
        *launched(gather, 22, 60, 100, corr=5, stream=20),
        *launched("layer", 40, 61, 30, corr=6), *launched("next", 43, 91, 100, corr=7),
    ]  # fmt: skip
    job = import_traces([write(tmp_path / "t.json", events)])
    ops = job.graph.ops
    first, second = (i for i, name in enumerate(ops.name.tolist()) if name == gather)
    ops.recorded_ps[second] += 15_000_000  # ends at 175; the last kernel still at 191
    assert play(job).steps()[0].replayed.span == pytest.approx(183e-6, abs=1e-12)  # 8 to 191
    ops.recorded_ps[first] += 100_000_000  # all behind it 100 later
    assert play(job).steps()[0].replayed.span == pytest.approx(283e-6, abs=1e-12)


def test_waits_without_records_are_inferred_from_who_ended_just_before(tmp_path):
    # nccl was launched at 12 on an idle stream and began at 103, 3 after a ended on another: it waited for a.
    events = [
        *launched("a", 2, 10, 90, corr=1),
        *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 12, 103, 40, corr=2, stream=20),
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    assert job.report.ranks[0].inferred_edges == 1
    ops = job.graph.ops
    ops.recorded_ps[ops.name.tolist().index("a")] -= 50_000_000
    # a 10..50, 3 of gap, 40 of all_reduce: 10 to 93.
    assert play(job).steps()[0].replayed.span == pytest.approx(83e-6, abs=1e-12)


def test_a_graph_launch_starts_many_kernels(tmp_path):
    events = [
        call("cudaGraphLaunch", 0, 5, corr=1),
        kernel("a", 10, 10, corr=1),
        kernel("b", 20, 10, corr=1),
        kernel("branch", 12, 10, corr=1),  # beside a and b, on the same stream
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    assert job.report.ranks[0].graph_launched_ops == 3
    assert job.report.ranks[0].streams == 2  # two lanes of one stream
    assert play(job).steps()[0].replayed.span == pytest.approx(20e-6, abs=1e-12)


def test_kernels_of_a_hip_stream_may_overlap(tmp_path):
    # AMD's queues start a kernel while the one before drains, and its kernels have no grid.
    def launch(name, called, ts, dur, corr):
        return [call("hipExtModuleLaunchKernel", called, 2, corr=corr), kernel(name, ts, dur, corr=corr)]

    events = [*launch("a", 0, 8, 50, 1), *launch("b", 3, 40, 30, 2), *launch("c", 6, 70, 0, 3)]
    (row,) = replayed(write(tmp_path / "t.json", events))
    assert row.replayed.span == pytest.approx(62e-6, abs=1e-12)
    assert row.replayed.exposed_compute == pytest.approx(62e-6, abs=1e-12)


def test_a_wait_beside_launches_of_another_thread_is_host_time(tmp_path):
    # Thread 1 waits for a (10..110) from 5 to 112; thread 2 launches b at 50, which cannot wait for that.
    events = [
        *launched("a", 2, 10, 100, corr=1),
        call("cudaStreamSynchronize", 5, 107, corr=2),
        sync_record("Stream Sync", 2, stream=7),
        *launched("b", 50, 58, 10, corr=3, stream=8, tid=2),
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    assert (job.report.ranks[0].blocking_calls, job.report.ranks[0].concurrent_blocks) == (0, 1)
    (row,) = play(job).steps()
    assert row.replayed == row.recorded


def test_a_copy_to_pageable_memory_blocks_the_host(tmp_path):
    # a 10..30, copy 31..40; its call returns at 45, b is called 10 later and starts at 63.
    events = [
        *launched("a", 2, 10, 20, corr=1),
        call("cudaMemcpyAsync", 5, 40, corr=2),
        kernel("Memcpy DtoH (Device -> Pageable)", 31, 9, corr=2, cat="gpu_memcpy", bytes=64),
        *launched("b", 55, 63, 5, corr=3, stream=8),
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    ops = job.graph.ops
    assert play(job).steps()[0].replayed.span == pytest.approx(58e-6, abs=1e-12)  # 10 to 68
    ops.recorded_ps[ops.name.tolist().index("a")] += 100_000_000
    assert play(job).steps()[0].replayed.span == pytest.approx(158e-6, abs=1e-12)


def test_a_full_launch_queue_blocks_the_host(tmp_path):
    # 300 kernels of 10 launched 1 apart, from 8 on; the next call waits from 300 until kernel 119 has ended
    # at 8 + 1200, and returns at 1210. Then a kernel on an idle stream: called at 1215, started at 1223.
    events = [e for i in range(300) for e in launched(f"k{i}", i, 8 + 10 * i, 10, corr=i + 1)]
    events += [call("cudaLaunchKernel", 300, 910, corr=900), kernel("k300", 3008, 10, corr=900)]
    events += launched("late", 1215, 1223, 5, corr=901, stream=9)
    job = import_traces([write(tmp_path / "t.json", events)])
    assert job.report.ranks[0].queue_full_blocks == 1

    def late_starts():
        rank = job.ranks[0]
        (at,) = np.flatnonzero(rank.recorded.name.equals("late"))
        result = simulate_job(job)
        times = result.times_of(0)
        return (times.start_ps[rank.flat[at]] - times.start_ps[rank.flat[0]]) / 1e6

    assert late_starts() == 1215  # after the first kernel, which starts at 8
    ops = job.graph.ops
    ops.recorded_ps[ops.name.tolist().index("k0")] += 500_000_000
    assert late_starts() == 1715


def two_ranks(tmp_path, *, late: float = 0.0, skew: float = 0.0):
    """Rank 1 arrives 30 later than rank 0 at an all_reduce that takes 20; both then compute for 10."""
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    meta = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
        "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "BFloat16", "Group size": 2,
    }  # fmt: skip
    paths = []
    for rank, arrives in ((0, 50.0), (1, 80.0)):
        at = skew * rank
        events = [
            *launched("a", 2 + at, 10 + at, arrives - 10, corr=1),
            *launched(name, 3 + at, arrives + at, 100 - arrives, corr=2, **meta),
            *launched("c", 4 + at, 100 + at, 10, corr=3),
        ]
        dist = {"rank": rank, "world_size": 2}
        paths.append(write(tmp_path / f"r{rank}.json.gz", events, distributedInfo=dist))
    return paths


@pytest.mark.parametrize("skew", [0.0, 1234.0])
def test_collectives_start_with_the_last_arrival_and_take_the_shortest_time(tmp_path, skew):
    job = import_traces(two_ranks(tmp_path, skew=skew))
    assert job.report.coupled_collectives == 1
    assert job.report.clock_shift_us == (0.0, -skew)  # aligned by the collective's end
    ops = job.graph.ops
    (bytes_of_all_reduce,) = {int(b) for b in ops.num_bytes[ops.kind == OpKind.COLLECTIVE]}
    assert bytes_of_all_reduce == 2048
    first, second = play(job).steps()
    assert first.recorded.span == first.replayed.span == pytest.approx(100e-6, abs=1e-12)
    assert second.recorded.span == second.replayed.span
    # Rank 1 computes 30 less: it arrives at 50 too, the transfer takes 20, all end at 80.
    rank1 = [i for i, n in enumerate(ops.name.tolist()) if n == "a"][1]
    ops.recorded_ps[rank1] -= 30_000_000
    assert [row.replayed.span for row in play(job).steps()] == pytest.approx([70e-6, 70e-6], abs=1e-12)
    assert verify(job.graph) == []
    save_graph(job.graph, tmp_path / "graph")
    assert graph_hash(load_graph(tmp_path / "graph")) == graph_hash(job.graph)


def test_without_the_other_rank_a_collective_lasts_as_recorded(tmp_path):
    job = import_traces(two_ranks(tmp_path)[:1])
    assert job.report.lone_collectives == 1
    assert any("1 of 2 ranks are missing" in doubt for doubt in job.report.doubts())
    (row,) = play(job).steps()
    assert row.replayed.exposed_communication == pytest.approx(50e-6, abs=1e-12)


def test_steps_hold_the_ops_launched_in_them(tmp_path):
    # x is launched in step 3 and runs in step 4: it belongs to step 3, which lasts from 10 to 125.
    events = [
        step(3, 0, 100),
        step(4, 100, 100),
        *launched("a", 2, 10, 5, corr=1),
        *launched("x", 90, 110, 15, corr=2),
        *launched("b", 120, 128, 30, corr=3),
    ]
    path = write(tmp_path / "t.json", events)
    assert [(r.step, round(r.recorded.span * 1e6)) for r in replayed(path)] == [(3, 115), (4, 30)]
    found = CliRunner().invoke(app, ["replay", str(path), "--step", "4", "--json"])
    assert found.exit_code == 0
    told = json.loads(found.stdout)
    assert set(told) == {"steps", "import_report", "edits"}
    (row,) = told["steps"]
    assert {"rank", "step", "recorded_s", "predicted_s", "breakdown_s", "recorded_breakdown_s"} <= set(row)
    assert (row["rank"], row["step"], row["predicted_s"]) == (0, 4, pytest.approx(30e-6))
    missing = CliRunner().invoke(app, ["replay", str(path), "--step", "9"])
    assert missing.exit_code == 2


def test_typical_gaps_show_what_the_structure_explains(tmp_path):
    # Launch latencies 8, 8, 12 on an idle stream: the median is 8, so the last kernel starts 4 earlier.
    events = [
        *launched("a", 0, 8, 5, corr=1),
        *launched("b", 100, 108, 5, corr=2),
        *launched("c", 200, 212, 5, corr=3),
    ]
    path = write(tmp_path / "t.json", events)
    assert replayed(path)[0].replayed.span == pytest.approx(209e-6, abs=1e-12)
    assert replayed(path, gaps="typical")[0].replayed.span == pytest.approx(205e-6, abs=1e-12)


def test_a_gap_that_comes_again_is_typical(tmp_path):
    # b comes 500 after a in every step, as nothing recorded explains (not so with c): 500, 490 and 530.
    events, at = [], 100
    for number, gap in enumerate((500, 490, 530)):
        events += [
            *launched("a", number, at, 200, corr=3 * number + 1),
            *launched("b", number + 0.2, at + 200 + gap, 300, corr=3 * number + 2),
            *launched("c", number + 0.4, at + 500 + gap, 300, corr=3 * number + 3),
        ]
        at += 800 + gap
    path = write(tmp_path / "t.json", events)
    (row,) = replayed(path, gaps="typical")
    assert row.recorded.span == pytest.approx(3920e-6)
    assert row.replayed.span == pytest.approx(3 * 1300e-6)


def test_what_precedes_the_recording_is_kept(tmp_path):
    # The first op was launched 900 before it starts: what it waited for was not recorded, not even typically.
    events = [*launched("a", 0, 908, 50, corr=1), *launched("b", 1000, 1008, 50, corr=2)]
    path = write(tmp_path / "t.json", events)
    (row,) = replayed(path, gaps="typical")
    assert row.replayed.span == row.recorded.span == pytest.approx(150e-6)


def test_typical_gaps_of_a_recording_that_has_none_are_refused(tmp_path):
    # 400 of 510 pass between two ops, once.
    path = write(tmp_path / "t.json", [*launched("a", 0, 8, 50, corr=1), *launched("b", 2, 458, 60, corr=2)])
    found = CliRunner().invoke(app, ["replay", str(path), "--gaps", "typical"])
    assert (found.exit_code, "78% more or less than recorded" in " ".join(found.output.split())) == (2, True)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 300), st.integers(0, 2), st.integers(0, 40)),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
def test_replay_reproduces_any_recording_of_streams(tmp_path_factory, kernels, sync):
    """Whatever ran on three streams, with synchronisation or without: every start and end comes back."""
    events, host, free = [], 0, [0, 0, 0]
    for number, (pause, length, stream, late) in enumerate(kernels, start=1):
        host += pause
        start = max(host + 8 + late, free[stream])
        events += launched(f"k{number}", host, start, length, corr=number, stream=stream)
        free[stream] = start + length
        if sync and number % 5 == 0:
            until = max(free[stream], host + 3) + 2
            events.append(call("cudaStreamSynchronize", host + 3, until - host - 3, corr=1000 + number))
            events.append(sync_record("Stream Sync", 1000 + number, stream=stream))
            host = until
    path = write(tmp_path_factory.mktemp("traces") / "t.json", events)
    (row,) = replayed(path)
    assert row.replayed.span == pytest.approx(row.recorded.span, abs=1e-12)
    assert row.replayed.exposed_compute == pytest.approx(row.recorded.exposed_compute, abs=1e-12)
