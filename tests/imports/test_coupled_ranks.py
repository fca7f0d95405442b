"""Jobs of several ranks, played by hand into traces: the replay gives them back and follows changes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.apps.replay.play import play
from tests.imports.traces import call, kernel, launched, sync_record, write
from workloads.imports import import_traces

LATENCY = 8
NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def record(folder, computes, transfers, pauses, *, records=True, late=None):
    """Traces of ranks that each play (compute, all_reduce, compute that waits for it) per layer.

    ``computes[rank][layer]``, ``transfers[layer]`` and ``pauses[layer]`` in us; ``late[layer][rank]`` is how
    much later a rank's all_reduce ends.  The host synchronises with the device at the end of every second
    layer.
    """
    ranks = range(len(computes))
    host, free = [0] * len(computes), [0] * len(computes)
    events = [[] for _ in ranks]
    corr = 0
    for layer, (transfer, pause) in enumerate(zip(transfers, pauses, strict=True)):
        arrive = []
        for rank in ranks:
            host[rank] += pause
            start = max(host[rank] + LATENCY, free[rank])
            length = computes[rank][layer]
            events[rank] += launched(f"gemm{layer}", host[rank], start, length, corr=corr + 1)
            events[rank].append(call("cudaEventRecord", host[rank] + 3, 1, corr=corr + 2))
            events[rank].append(call("cudaStreamWaitEvent", host[rank] + 4, 1, corr=corr + 3))
            events[rank].append(call("cudaLaunchKernelExC", host[rank] + 6, 2, corr=corr + 4))
            if records:
                waits = {"stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": corr + 2}
                events[rank].append(sync_record("Stream Wait Event", corr + 3, **waits))
            arrive.append(max(start + length, host[rank] + 6 + LATENCY))
        over = max(arrive) + transfer
        for rank in ranks:
            end = over + (late[layer][rank] if late else 0)
            events[rank].append(kernel(NAME, arrive[rank], end - arrive[rank], stream=20, corr=corr + 4))
            events[rank].append(call("cudaEventRecord", host[rank] + 9, 1, corr=corr + 5))
            events[rank].append(call("cudaStreamWaitEvent", host[rank] + 10, 1, corr=corr + 6))
            if records:
                waits = {"stream": 7, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": corr + 5}
                events[rank].append(sync_record("Stream Wait Event", corr + 6, **waits))
            host[rank] += 12
            start = max(host[rank] + LATENCY, end)
            events[rank] += launched(f"norm{layer}", host[rank], start, 4, corr=corr + 7)
            free[rank] = start + 4
            host[rank] += 3
            if layer % 2:
                until = max(free[rank], host[rank]) + 2
                events[rank].append(
                    call("cudaDeviceSynchronize", host[rank], until - host[rank], corr=corr + 8)
                )
                host[rank] = until
        corr += 10
    return [
        write(
            folder / f"r{rank}.json",
            events[rank],
            distributedInfo={"rank": rank, "world_size": len(computes)},
        )
        for rank in ranks
    ]


JOBS = st.integers(1, 6).flatmap(
    lambda layers: st.tuples(
        st.lists(
            st.lists(st.integers(1, 200), min_size=layers, max_size=layers), min_size=2, max_size=4
        ),
        st.lists(st.integers(1, 100), min_size=layers, max_size=layers),
        st.lists(st.integers(1, 60), min_size=layers, max_size=layers),
    )
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(JOBS, st.booleans())
def test_any_job_comes_back_to_the_picosecond(tmp_path_factory, job, records):
    paths = record(tmp_path_factory.mktemp("traces"), *job, records=records)
    for row in play(import_traces(paths)).steps():
        assert round(row.replayed.span * 1e12) == round(row.recorded.span * 1e12)
        assert row.replayed == row.recorded


def test_members_that_end_apart_end_as_they_did(tmp_path):
    """Also where one call follows another: the next starts by its own rank's end."""
    computes, late = [[50, 1, 70], [40, 1, 30]], [(0, 4), (6, 0), (3, 0)]
    job = import_traces(record(tmp_path, computes, [30, 40, 30], [5, 5, 5], late=late))
    replay = play(job)
    for row in replay.steps():
        assert row.replayed == row.recorded
    for rank, end_ps in zip(job.ranks, replay.end_ps, strict=True):
        since = end_ps - rank.recorded.end_ps
        assert (since == since[0]).all()


@settings(max_examples=30, deadline=None)
@given(JOBS, st.data())
def test_a_slower_kernel_changes_the_replay_as_it_would_have_changed_the_job(tmp_path_factory, job, data):
    computes, transfers, pauses = job
    rank = data.draw(st.integers(0, len(computes) - 1))
    layer = data.draw(st.integers(0, len(transfers) - 1))
    more = data.draw(st.integers(1, 500))
    folder = tmp_path_factory.mktemp("traces")
    imported = import_traces(record(folder, computes, transfers, pauses))
    ops = imported.graph.ops
    place = [i for i, name in enumerate(ops.name.tolist()) if name == f"gemm{layer}"][rank]
    ops.recorded_ps[place] += more * 1_000_000
    slower = [list(row) for row in computes]
    slower[rank][layer] += more
    truth = import_traces(record(folder, slower, transfers, pauses))
    for ours, theirs in zip(play(imported).steps(), play(truth).steps(), strict=True):
        assert round(ours.replayed.span * 1e12) == round(theirs.recorded.span * 1e12)


def test_collectives_launched_before_the_window_start_with_it(tmp_path):
    """Kernels without launches, on the compute stream and on NCCL's, at the begin of what was recorded."""
    told = {
        "Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float",
        "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    files = []
    for rank in range(2):
        events = [
            kernel("gemm", 5 + rank, 3000),
            kernel(NAME, 100 + rank, 34_000 - rank, stream=20, **told),
            *launched("gemm", 1000, 35_000, 2000, corr=1),
            *launched(NAME, 1100, 37_100, 500, corr=2, stream=20, **told),
        ]
        place = {"rank": rank, "world_size": 2}
        files.append(write(tmp_path / f"rank{rank}.json", events, distributedInfo=place))
    job = import_traces(files)
    assert job.report.coupled_collectives == 2
    replay = play(job)
    for rank, imported in enumerate(job.ranks):
        shift = imported.recorded.start_ps - replay.start_ps[rank]
        assert (shift == shift[0]).all()
