"""Traces of XLA's profiler (JAX) as recordings of GPUs; times in us."""

import pytest

from simcore.apps.replay.play import play
from simcore.errors import InputError
from tests.imports.traces import write
from workloads.imports import import_traces

GATHER = "ncclDevKernel_AllGather_RING_LL"


def named(pid, process, threads=()):
    events = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}]
    return events + [
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in threads
    ]


def span(pid, tid, name, ts, dur, **args):
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


def two_gpus(folder):
    # GPU 0 computes 10..50, GPU 1 10..70; both gather until 90, then GPU 0 copies for 5.
    streams = ((13, "Stream #13(Compute)"), (14, "Stream #14(Collective)"), (99, "XLA Ops"))
    details = "regs:32 static_shared:0 dynamic_shared:1024 grid:108,1,1 block:256,1,1 occ_pct:50"
    events = [
        *named(1, "/device:GPU:0", streams),
        *named(2, "/device:GPU:1", streams),
        *named(7, "/host:CPU"),
    ]
    events += [span(7, 1, "train", 0, 40, step_num="3")]
    for pid, until in ((1, 50), (2, 70)):
        base = 10 * pid
        events += [
            span(7, 1, "cuLaunchKernel", 2 * pid, 1, correlation_id=str(base)),
            span(7, 1, "cuLaunchKernelEx", 2 * pid + 1, 1, correlation_id=str(base + 1)),
            span(pid, 13, "loop_fusion", 10, until - 10, correlation_id=base, kernel_details=details),
            span(pid, 14, GATHER, until, 90 - until, correlation_id=base + 1),
            span(pid, 99, "fusion.1", 10, until - 10),
        ]
    events += [
        span(7, 1, "cuMemcpyDtoHAsync", 30, 1, correlation_id="30"),
        span(1, 13, "MemcpyD2H", 90, 5, correlation_id="30"),
    ]
    return write(folder / "host.trace.json.gz", events, displayTimeUnit="ns")


def test_each_gpu_is_a_rank_and_they_meet(tmp_path):
    job = import_traces([two_gpus(tmp_path)])
    assert job.report.format == "trace_viewer"
    assert job.report.coupled_collectives == 1
    rows = play(job).steps()
    assert [(row.rank, row.step, round(row.replayed.span * 1e6, 6)) for row in rows] == [
        (0, 3, 85),
        (1, 3, 80),
    ]
    assert rows[0].replayed == rows[0].recorded
    assert rows[0].recorded.exposed_communication == pytest.approx(40e-6)
    assert job.ranks[0].recorded.blocks.tolist()[0] == 108
    assert job.graph.ops.recorded_ps[job.graph.ops.name.equals(GATHER)].tolist() == [20_000_000] * 2


def test_a_trace_without_kernels_on_a_gpu_is_refused(tmp_path):
    path = write(tmp_path / "t.json", [*named(1, "/device:TPU:0", ((3, "XLA Ops"),)), span(1, 3, "a", 0, 5)])
    with pytest.raises(InputError, match="no kernels on streams of a GPU"):
        import_traces([path])
