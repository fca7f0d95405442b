"""Nsight Systems databases as traces; the recorded spans are sums in the comments."""

import gzip

import numpy as np
import pytest

from simcore.apps.replay.play import play
from simcore.errors import InputError
from simcore.graph.ops import OpKind
from tests.imports.nsys_files import PID, call, kernel, strings, write
from workloads.imports import import_traces
from workloads.imports.files import TraceFile
from workloads.imports.nsys.read import read_nsys

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
NAMES = strings("gemm", "cudaLaunchKernel_v7000", "ncclDevKernel_AllReduce_Sum", "step 3", "step 4", "add")


def two_kernels(**more: object) -> dict[str, list[dict]]:
    return {
        "StringIds": NAMES,
        KERNEL: [kernel(10_000, 60_000, 1, name=0), kernel(70_000, 90_000, 2, name=5)],
        RUNTIME: [call(1_000, 3_000, 1, name=1), call(61_000, 63_000, 2, name=1)],
        **more,
    }


def test_a_database_replays_as_recorded(tmp_path):
    # From 10 to 90 us, the second kernel held up by its launch at 61 us.
    (row,) = play(import_traces([write(tmp_path / "t.sqlite", **two_kernels())])).steps()
    assert row.recorded.span == pytest.approx(80e-6)
    assert row.replayed.span == pytest.approx(80e-6)
    assert row.replayed.exposed_compute == pytest.approx(70e-6)


def test_a_packed_database_is_read_too(tmp_path):
    path = write(tmp_path / "t.sqlite", **two_kernels())
    packed = tmp_path / "t.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (row,) = play(import_traces([packed])).steps()
    assert row.recorded.span == pytest.approx(80e-6)


def test_a_database_of_kernels_alone_is_enough(tmp_path):
    rows = [{"start": 10_000, "end": 60_000, "streamId": 7}, {"start": 70_000, "end": 90_000, "streamId": 7}]
    job = import_traces([write(tmp_path / "t.sqlite", **{KERNEL: rows})])
    (row,) = play(job).steps()
    assert row.replayed.span == pytest.approx(80e-6)
    assert any("no API calls" in doubt for doubt in job.report.doubts())
    assert any("have no launch call" in doubt for doubt in job.report.doubts())


def test_steps_are_nvtx_ranges(tmp_path):
    ranges = [
        {"start": 0, "end": 50_000, "eventType": 59, "text": None, "textId": 3, "globalTid": PID + 1},
        {"start": 60_000, "end": 99_000, "eventType": 59, "text": "step 4", "globalTid": PID + 1},
        {"start": 0, "end": 99_000, "eventType": 59, "text": "forward", "globalTid": PID + 1},
    ]
    rows = play(import_traces([write(tmp_path / "t.sqlite", **two_kernels(NVTX_EVENTS=ranges))])).steps()
    assert [(row.step, round(1e6 * row.recorded.span)) for row in rows] == [(3, 50), (4, 20)]


def test_ranges_without_numbers_are_counted(tmp_path):
    ranges = [
        {"start": start, "end": start + 30_000, "eventType": 59, "text": "train_step", "globalTid": PID + 1}
        for start in (0, 60_000)
    ]
    rows = play(import_traces([write(tmp_path / "t.sqlite", **two_kernels(NVTX_EVENTS=ranges))])).steps()
    assert [row.step for row in rows] == [0, 1]


def test_devices_of_one_file_are_ranks_that_meet(tmp_path):
    # Each computes, then reduces: device 1 comes 20 us later, so the transfer is its 30 us.
    other = PID + (1 << 24)
    kernels, calls = [], []
    for pid, device, ready in ((PID, 0, 60_000), (other, 1, 80_000)):
        kernels += [
            kernel(10_000, ready, 1, name=0, device=device, pid=pid),
            kernel(ready, 110_000, 2, name=2, device=device, pid=pid, stream=20),
        ]
        calls += [call(1_000, 3_000, 1, name=1, pid=pid), call(4_000, 6_000, 2, name=1, pid=pid)]
    job = import_traces([write(tmp_path / "t.sqlite", StringIds=NAMES, **{KERNEL: kernels, RUNTIME: calls})])
    assert [rank.number for rank in job.ranks] == [0, 1]
    assert job.report.coupled_collectives == 1
    collective = job.graph.ops.kind == int(OpKind.COLLECTIVE)
    assert job.graph.ops.recorded_ps[collective].tolist() == [30_000_000, 30_000_000]
    for row in play(job).steps():
        assert row.replayed.span == pytest.approx(100e-6)


def nccl(start: int, end: int, name: str, payload: str, pid: int) -> dict:
    return {"start": start, "end": end, "text": name, "eventType": 59, "globalTid": pid + 1,
            "jsonText": payload}  # fmt: skip


def test_nccl_ranges_name_communicators_and_sizes(tmp_path):
    # Two devices gather 1,000 bytes each on communicator 7; device 0 then sends 500 to device 1 in a group.
    names = strings("cudaLaunchKernelExC", "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_SendRecv")
    comm = '"NCCL communicator ID": 7'
    kernels, calls, ranges = [], [], []
    for device, pid in enumerate((PID, PID + (1 << 24))):
        kernels += [
            kernel(10_000 + 5_000 * device, 40_000, 1, name=1, device=device, pid=pid, stream=20),
            kernel(50_000, 60_000, 2, name=2, device=device, pid=pid, stream=20),
        ]
        calls += [call(2_000, 3_000, 1, name=0, pid=pid), call(6_000, 6_500, 2, name=0, pid=pid)]
        what = "ncclRecv" if device else "ncclSend"
        ranges += [
            nccl(0, 500, "ncclCommInitRank", f'{{{comm}, "No. of ranks": 2, "Rank": {device}}}', pid),
            nccl(1_000, 3_500, "ncclAllGather", f'{{{comm}, "Message size [bytes]": 1000}}', pid),
            nccl(4_000, 4_100, "ncclGroupStart", "", pid),
            nccl(4_200, 4_300, what, f'{{{comm}, "Message size [bytes]": 500, "Peer rank": 0}}', pid),
            nccl(5_000, 7_000, "ncclGroupEnd", "", pid),
        ]
    tables = {KERNEL: kernels, RUNTIME: calls, "NVTX_EVENTS": ranges}
    job = import_traces([write(tmp_path / "t.sqlite", StringIds=names, **tables)])
    assert job.report.coupled_collectives == 2
    assert job.report.missing == ()
    assert [rank.recorded.collectives.num_bytes.tolist() for rank in job.ranks] == [[2000, 500]] * 2
    ops = job.graph.ops
    collective = ops.kind == int(OpKind.COLLECTIVE)
    assert ops.num_bytes[collective].tolist() == [2000, 500, 2000, 500]
    assert ops.recorded_ps[collective].tolist() == [25_000_000, 10_000_000] * 2
    assert all("communicator 7" in name for name in ops.group.take(np.flatnonzero(collective)).tolist())


@pytest.mark.parametrize("numbered", [True, False])
def test_event_records_give_waits(tmp_path, numbered):
    # Stream 9 waits for the event recorded after "gemm" on stream 7: its kernel starts when gemm ends.
    names = strings("gemm", "cudaLaunchKernel_v7000", "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020")
    sync = 17 if numbered else None
    tables = {
        "StringIds": names,
        KERNEL: [kernel(10_000, 60_000, 1, name=0), kernel(60_500, 90_000, 4, name=0, stream=9)],
        RUNTIME: [
            call(1_000, 2_000, 1, name=1),
            call(3_000, 4_000, 2, name=2),
            call(5_000, 6_000, 3, name=3),
            call(7_000, 8_000, 4, name=1),
        ],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [
            {"globalPid": PID, "eventId": 5, "eventSyncId": sync, "correlationId": 2, "streamId": 7}
        ],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            {"globalPid": PID, "syncType": 2, "streamId": 9, "correlationId": 3, "eventId": 5,
             "eventSyncId": sync}
        ],
    }  # fmt: skip
    job = import_traces([write(tmp_path / "t.sqlite", **tables)])
    (report,) = job.report.ranks
    assert (report.recorded_waits, report.guessed_waits) == (1, 0)
    assert len(job.graph.edges.src) == 1


def test_a_graph_launch_starts_many_kernels(tmp_path):
    names = strings("gemm", "cudaGraphLaunch_v10000")
    kernels = [kernel(10_000 + 10_000 * k, 19_000 + 10_000 * k, 1, name=0, graphNodeId=k) for k in range(3)]
    path = write(
        tmp_path / "t.sqlite", StringIds=names, **{KERNEL: kernels, RUNTIME: [call(1_000, 3_000, 1, name=1)]}
    )
    (report,) = import_traces([path]).report.ranks
    assert report.graph_launched_ops == 3


def test_a_graph_recorded_as_a_whole_is_one_op(tmp_path):
    graph = {
        "start": 100_000, "end": 150_000, "deviceId": 0, "streamId": 7, "correlationId": 3, "globalPid": PID,
        "graphExecId": 2,
    }  # fmt: skip
    job = import_traces(
        [write(tmp_path / "t.sqlite", **two_kernels(CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[graph]))]
    )
    assert "CUDA graph 2" in set(job.ranks[0].recorded.name)
    assert any("recorded as a whole" in doubt for doubt in job.report.doubts())


def test_copies_say_what_moves(tmp_path):
    copy = {
        "start": 95_000, "end": 99_000, "deviceId": 0, "streamId": 7, "correlationId": 3, "globalPid": PID,
        "bytes": 4096, "copyKind": 1, "srcKind": 0, "dstKind": 2,
    }  # fmt: skip
    job = import_traces([write(tmp_path / "t.sqlite", **two_kernels(CUPTI_ACTIVITY_KIND_MEMCPY=[copy]))])
    assert "Memcpy HtoD (Pageable -> Device)" in set(job.ranks[0].recorded.name)
    is_copy = job.graph.ops.kind == int(OpKind.MEMCPY)
    assert job.graph.ops.bytes_read[is_copy].tolist() == [4096]


def test_launches_say_how_many_blocks_fit(tmp_path):
    launch = {
        "gridX": 10, "gridY": 4, "gridZ": 1, "blockX": 128, "blockY": 2, "blockZ": 1,
        "registersPerThread": 64, "staticSharedMemory": 1024, "dynamicSharedMemory": 49152 - 2048,
    }  # fmt: skip
    gpu = {
        "id": 0, "name": "A GPU", "smCount": 108, "maxWarpsPerSm": 64, "threadsPerWarp": 32,
        "maxRegistersPerSm": 65536, "maxShmemPerSm": 164 * 1024, "computeMajor": 8,
    }  # fmt: skip
    tables = {"StringIds": NAMES, KERNEL: [kernel(10_000, 60_000, 1, name=0, **launch)]}
    (rank,) = import_traces([write(tmp_path / "t.sqlite", TARGET_INFO_GPU=[gpu], **tables)]).ranks
    assert (rank.gpu, rank.num_sms) == ("A GPU", 108)
    assert rank.recorded.blocks.tolist() == [40]
    # 256 threads: 8 by threads, 65536 / (64 * 256) = 4 by registers, 164 / 48 = 3 by shared memory.
    assert rank.recorded.blocks_per_sm.tolist() == [3.0]


def test_what_is_no_database_of_a_gpu_is_refused(tmp_path):
    empty = write(tmp_path / "empty.sqlite", StringIds=NAMES)
    with pytest.raises(InputError, match=r"empty\.sqlite: no GPU activities"):
        import_traces([empty])
    whole = write(tmp_path / "t.sqlite", **two_kernels()).read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(InputError, match=r"cut\.sqlite: .*truncated"):
        import_traces([cut])
    job = import_traces([tmp_path], skip_bad=True)
    assert len(job.ranks) == 1
    assert sum("left out" in doubt for doubt in job.report.doubts()) == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (kernel(200_000, 100_000, 3, name=0), r"row 3: from 200000 to 100000 ns: it ends before it starts"),
        (kernel(10**18, 10**18 + 5, 3, name=0), r"row 3: .* more than a week away"),
        (kernel(10_000, 60_000, 3, name=0), r"overlap by 50 us on stream 7"),
    ],
)
def test_impossible_rows_are_named(tmp_path, row, reason):
    tables = two_kernels()
    tables[KERNEL] = [*tables[KERNEL], row]
    tables[RUNTIME] = [*tables[RUNTIME], call(64_000, 65_000, 3, name=1)]
    with pytest.raises(InputError, match=reason):
        import_traces([write(tmp_path / "t.sqlite", **tables)])


def test_forty_thousand_kernels_with_their_calls(tmp_path):
    count = 40_000
    start = np.arange(count) * 10_000
    tables = {
        "StringIds": NAMES,
        KERNEL: [kernel(int(s) + 8_000, int(s) + 12_000, i + 1, name=0) for i, s in enumerate(start)],
        RUNTIME: [call(int(s), int(s) + 2_000, i + 1, name=1) for i, s in enumerate(start)],
    }
    path = write(tmp_path / "t.sqlite", **tables)
    ((trace,), _) = read_nsys(TraceFile(path))
    assert len(trace.gpu) == count
