"""JSON of rocprofv3; times in ns."""

import json
import sqlite3

import pytest

from simcore.apps.replay.play import play
from simcore.errors import InputError
from workloads.imports import import_traces

KINDS = [
    {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync"]},
    {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_DEVICE_TO_HOST"]},
]
HOST, GPUS = 9, (11, 12)


def record(start, length, correlation, **more):
    return {
        "thread_id": 5, "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start, "end_timestamp": start + length, **more,
    }  # fmt: skip


def handle(number):
    return {"handle": number}


def process(streams=True, **changes):
    """On each GPU a product of 40 us from 20, a copy of 10 from 70.25, launched in one of two steps."""
    kernels, copies, calls = [], [], []
    for at, gpu in enumerate(GPUS):
        known = {"stream_id": handle(3)} if streams else {}
        dispatch = {"agent_id": handle(gpu), "queue_id": handle(7), "kernel_id": 1}
        kernels.append(record(20_000, 40_000, 10 + at, dispatch_info=dispatch, **known))
        ends = {"src_agent_id": handle(gpu), "dst_agent_id": handle(HOST), "bytes": 64}
        copies.append(record(70_250, 10_000, 20 + at, kind=1, operation=1, **ends, **known))
        calls.append(record(10_000 + 3000 * at, 2000, 10 + at, kind=0, operation=0))
        calls.append(record(61_000 + 3000 * at, 2000, 20 + at, kind=0, operation=1))
    ranges = [record(0, 60_000, 1), record(60_000, 30_000, 2), record(60_000, 1000, 3)]
    return {
        "agents": [{"id": handle(HOST), "type": 1}]
        + [{"id": handle(gpu), "type": 2, "product_name": "AMD Instinct X", "cu_count": 304} for gpu in GPUS],
        "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "Cijk_gemm"}],
        "strings": {
            "buffer_records": KINDS,
            "marker_api": [{"key": 1, "value": "step 7"}, {"key": 2, "value": "step 8"}],
        },
        "buffer_records": {
            "kernel_dispatch": kernels, "memory_copy": copies, "hip_api": calls, "marker_api": ranges,
        },
    } | changes  # fmt: skip


def write(path, content):
    path.write_text(json.dumps({"rocprofiler-sdk-tool": content}))
    return path


@pytest.mark.parametrize("in_list", [True, False])  # later versions, and early ones
def test_kernels_copies_launches_and_steps(tmp_path, in_list):
    job = import_traces([write(tmp_path / "t.json", [process()] if in_list else process())])
    assert job.report.format == "rocprof"
    assert [rank.num_sms for rank in job.ranks] == [304, 304]
    assert [rank.gpu for rank in job.report.ranks] == ["AMD Instinct X"] * 2
    rows = play(job).steps()
    assert [(row.rank, row.step) for row in rows] == [(0, 7), (0, 8), (1, 7), (1, 8)]
    for row in rows:
        assert row.recorded.span == pytest.approx(40e-6 if row.step == 7 else 10e-6, abs=1e-12)
        assert row.replayed == row.recorded
    ops = job.graph.ops
    assert {"Cijk_gemm", "Memcpy DtoH"} <= set(ops.name.tolist())
    assert job.report.ranks[0].ops_without_launch == 0


def test_without_streams_copies_have_their_own(tmp_path):
    job = import_traces([write(tmp_path / "t.json", process(streams=False))])
    assert job.report.ranks[0].streams == 2
    assert import_traces([write(tmp_path / "t.json", process())]).report.ranks[0].streams == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([7], "rocprofiler-sdk-tool is no object"),
        (process(buffer_records={}), "no kernels and no copies: nothing to replay"),
        (process(buffer_records={"kernel_dispatch": [7]}), "buffer_records has kernel_dispatch .*, no list"),
        (
            process(buffer_records={"kernel_dispatch": [record(0, 5, 1, dispatch_info=[])]}),
            r"kernel_dispatch 0 has dispatch_info \[\], no object",
        ),
        (process(kernel_symbols=[{"kernel_id": 1}]), "has no formatted_kernel_name"),
        (
            process(buffer_records={"kernel_dispatch": [record(9000, -5000, 1, dispatch_info={})]}),
            "event 0 lasts -5 us",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_record(tmp_path, content, reason):
    with pytest.raises(InputError, match=reason):
        import_traces([write(tmp_path / "t.json", content)])


def test_a_database_of_rocprofv3_is_called_what_it_is(tmp_path):
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        database.execute("CREATE TABLE rocpd_kernel_dispatch (start INTEGER)")
    with pytest.raises(InputError, match="is a rocpd database: record JSON"):
        import_traces([tmp_path / "t.sqlite"])
