"""Recordings that somebody wrote to break us: refused with file and place, within time and memory."""

import gzip
import io
import json
import os
import sqlite3
import tarfile
from contextlib import closing

import pytest

from simcore.errors import InputError
from simcore.outside import VARIABLE
from tests.imports import nsys_files
from tests.imports.traces import call, kernel, launched, step, sync_record, write
from workloads.imports import import_traces

META = {"Collective name": "allreduce", "Process Group Name": "tp", "dtype": "Float", "In msg nelems": 8}


def changed(event, **fields):
    """``event`` with fields of its own, or of its arguments, replaced; None: not there."""
    event = {**event, "args": dict(event.get("args", {}))}
    for key, value in fields.items():
        part = event if key in ("args", "cat", "dur", "name", "pid", "tid", "ts") else event["args"]
        part[key] = value
        if value is None:
            del part[key]
    return event


KERNEL = kernel("k", 10, 5, corr=1, **META)
CALL = call("cudaLaunchKernel", 1, 2, corr=1)
OP = {**call("aten::mm", 0, 9), "cat": "cpu_op"}


@pytest.mark.parametrize(
    ("event", "fields", "message"),
    [
        (KERNEL, {"args": [7]}, r"event 1 has args \[7\], no object"),
        (KERNEL, {"name": None}, "event 1 has no name"),
        (KERNEL, {"name": 7}, "event 1 has name 7, no text"),
        (KERNEL, {"name": "\ud800"}, "event 1 has name .* half of a surrogate pair"),
        (KERNEL, {"cat": ["kernel"]}, "event 1 has cat"),
        (KERNEL, {"stream": "fast"}, "event 1 has stream 'fast', no number"),
        (KERNEL, {"stream": [7]}, r"event 1 has stream \[7\], no number"),
        (KERNEL, {"stream": None, "tid": "Compute"}, "event 1 has tid 'Compute', no number"),
        (KERNEL, {"stream": None, "tid": None}, "event 1 has no tid"),
        (KERNEL, {"device": {}}, "event 1 has device {}, no number"),
        (KERNEL, {"correlation": "x"}, "event 1 has correlation 'x', no whole number"),
        (KERNEL, {"correlation": 10**30}, "event 1 has correlation 10+, no whole number"),
        (KERNEL, {"bytes": 1e300}, "event 1 has bytes '1e\\+300', no whole number"),
        (KERNEL, {"grid": [1, "x"]}, r"event 1 has grid \[1, 'x'\], no grid"),
        (KERNEL, {"registers per thread": 1 << 40}, "event 1 has a block of more threads or memory"),
        (KERNEL, {"In msg nelems": 1 << 55}, "event 1 moves 36028797018963968 elements"),
        (KERNEL, {"dtype": 5}, "event 1 has dtype 5, no text"),
        (KERNEL, {"ts": "9" * 5000}, "event 1 has ts '9{59}.*, not a time in us"),
        (KERNEL, {"ts": [1]}, r"event 1 has ts \[1\], not a time in us"),
        (KERNEL, {"dur": float("inf")}, "event 1 has dur 'Infinity', not a time in us"),
        (CALL, {"tid": [1]}, r"event 1 has pid and tid \[9, \[1\]\], no thread"),
        (CALL, {"pid": {}}, "event 1 has pid and tid"),
        (CALL, {"correlation": [1]}, r"event 1 has correlation \[1\]"),
        (OP, {"name": {}}, "event 1 has name {}, no text"),
        (OP, {"Input Dims": "[[1]]"}, r"event 1 has Input Dims '\[\[1\]\]', no list"),
        (OP, {"Sequence number": []}, r"event 1 has Sequence number \[\]"),
        (sync_record("Stream Wait Event", 1), {"stream": "7th"}, "event 1 has stream '7th'"),
    ],
)
def test_fields_of_wrong_types_name_file_and_event(tmp_path, event, fields, message):
    path = write(tmp_path / "bad.json", [call("a", 0, 1), changed(event, **fields)])
    with pytest.raises(InputError, match=rf"bad\.json: {message}"):
        import_traces([path])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"distributedInfo": {"rank": "first"}}, "the header has rank 'first', no whole number"),
        (
            {"distributedInfo": {"rank": 0, "world_size": 10**12}},
            "the header has world_size 10+, no number up",
        ),
        ({"distributedInfo": [1]}, r"the header has distributedInfo \[1\], no object"),
        ({"deviceProperties": [3]}, r"the header has deviceProperties \[3\], no list of GPUs"),
        ({"deviceProperties": [{"numSms": -4}]}, "the header has numSms -4, no size of a GPU"),
    ],
)
def test_headers_of_wrong_types_are_refused(tmp_path, header, message):
    path = write(tmp_path / "bad.json", launched("a", 0, 8, 5, corr=1), **header)
    with pytest.raises(InputError, match=rf"bad\.json: {message}"):
        import_traces([path])


def test_lanes_tell_device_and_stream_where_arguments_do_not(tmp_path):
    event = changed(kernel("k", 10, 5), args=None, tid="stream 9")
    job = import_traces([write(tmp_path / "t.json", [step(1, 0, 20), event])])
    assert job.ranks[0].recorded.stream.tolist() == ["9"]
    assert any("1 of 1 ops have no launch call" in doubt for doubt in job.report.doubts())


def test_absurd_shapes_are_refused(tmp_path):
    op = changed(OP, **{"Input Dims": [[10**30, 3], [3, 4]], "Input type": ["float", "float"]})
    path = write(tmp_path / "t.json", [op, *launched("gemm", 1, 8, 5, corr=1)])
    with pytest.raises(InputError, match=r"rank 0: aten::mm of inputs .* is more work than 64 bits count"):
        import_traces([path])


# Files and archives.


def test_devices_pipes_and_folders_in_circles_are_no_traces(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match=r"pipe\.json: is a device or pipe, no file"):
        import_traces([tmp_path])
    with pytest.raises(InputError, match="/dev/zero: is a device or pipe, no file"):
        import_traces([tmp_path.__class__("/dev/zero")])
    (tmp_path / "pipe.json").unlink()
    for name in ("a.json", "b.json"):  # 2 to the power of 40 paths
        (tmp_path / name).symlink_to(tmp_path)
    with pytest.raises(InputError, match="holds no trace"):
        import_traces([tmp_path])


def test_a_recording_copied_over_anothers_is_refused(tmp_path):
    paths = [write(tmp_path / f"rank{i}.json", launched("a", 0, 8, 5, corr=1)) for i in range(2)]
    with pytest.raises(InputError, match=r"rank0\.json and .*rank1\.json hold the same recording"):
        import_traces(paths)


def test_limits_of_events_and_of_unpacked_bytes(tmp_path, monkeypatch):
    path = write(tmp_path / "t.json.gz", [kernel("k", 10 * i, 5, corr=i) for i in range(100)])
    monkeypatch.setenv(VARIABLE, "events=99")
    with pytest.raises(
        InputError, match=rf"t\.json\.gz: more than 99 events; .*{VARIABLE}=events=... raises"
    ):
        import_traces([path])
    monkeypatch.setenv(VARIABLE, "events=100,unpacked=4KiB")
    with pytest.raises(InputError, match=r"t\.json\.gz: more than 4 KiB unpacked; .*=unpacked=\.\.\. raises"):
        import_traces([path])
    monkeypatch.setenv(VARIABLE, "events=100")
    assert len(import_traces([path]).ranks[0].recorded) == 100


def test_what_would_not_fit_into_memory_is_told_before(tmp_path, monkeypatch):
    path = write(tmp_path / "t.json", [kernel(f"k{i}", 10 * i, 5, corr=i) for i in range(2000)])
    held = iter((300 << 20, 400 << 20))  # 100 MiB for a share of the file
    monkeypatch.setattr("workloads.imports.files._MEMORY_EVERY_BYTES", 1)
    monkeypatch.setattr("workloads.imports.files.head_of", lambda _: path.read_bytes()[:100])
    monkeypatch.setattr("workloads.imports.formats.head_of", lambda _: path.read_bytes()[:100])
    monkeypatch.setattr("workloads.imports.files.held_memory", lambda: next(held))
    monkeypatch.setenv(VARIABLE, "memory=1GiB")
    import_traces([path])  # 300 MiB and 5 times 100 MiB: all of it is read at once
    held = iter((300 << 20, 500 << 20))
    with pytest.raises(
        InputError, match=r"t\.json: importing it needs about 1.27 GiB of memory; 1 GiB may be"
    ):
        import_traces([path])


def packed(path, **members):
    """A tar of JSON texts."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name.replace("__", "/") + ".json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return path


def test_names_in_archives_lead_nowhere(tmp_path):
    text = json.dumps({"traceEvents": launched("a", 0, 8, 5, corr=1)}).encode()
    folder = tmp_path / "inner"
    folder.mkdir()
    job = import_traces([packed(folder / "t.tar.gz", **{"..__..__evil": text})])
    assert job.report.ranks[0].file == f"{folder / 't.tar.gz'}:../../evil.json"
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "t.tar.gz"]


def test_an_archive_of_many_small_traces_is_read_once(tmp_path, monkeypatch):
    # Opening a member by its name reads the archive as far as its end: 300 members, 45,000 headers.
    text = json.dumps({"traceEvents": launched("a", 0, 8, 5, corr=1)}).encode()
    path = packed(
        tmp_path / "t.tar.gz", **{f"rank{i}": text.replace(b"8", str(8 + i).encode()) for i in range(300)}
    )
    headers = []
    read = tarfile.TarInfo.fromtarfile.__func__
    monkeypatch.setattr(
        tarfile.TarInfo, "fromtarfile", classmethod(lambda *given: headers.append(1) or read(*given))
    )
    assert len(import_traces([path]).ranks) == 300
    assert len(headers) < 2000


# Databases.

KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
NAMES = nsys_files.strings("gemm", "cudaLaunchKernel")


def database(path, **tables):
    good = {
        "StringIds": NAMES,
        KERNELS: [nsys_files.kernel(10_000, 60_000, 1, name=0), nsys_files.kernel(70_000, 90_000, 2, name=0)],
        RUNTIME: [nsys_files.call(1_000, 3_000, 1, name=1)],
    }
    return nsys_files.write(path, **(good | tables))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {KERNELS: [nsys_files.kernel("early", 9, 1, name=0)]},
            "KERNEL, row 1: start is 'early', no whole number",
        ),
        ({KERNELS: [nsys_files.kernel(1.5, 9, 1, name=0)]}, "KERNEL, row 1: start is 1.5, no whole number"),
        ({KERNELS: [nsys_files.kernel(b"\xff", 9, 1, name=0)]}, "KERNEL, row 1: start is b'.xff', no whole"),
        (
            {KERNELS: [nsys_files.kernel(-(1 << 63), 9, 1, name=0)]},
            "KERNEL, row 1: from -9223372036854775808",
        ),
        ({RUNTIME: [nsys_files.call(1, 3, "x", name=1)]}, "RUNTIME, row 1: correlationId is 'x', no whole"),
        ({"StringIds": [{"id": "x", "value": "a"}]}, "StringIds: id 'x', value 'a': no number and text"),
        ({"StringIds": [{"id": 1, "value": 7}]}, "StringIds: id 1, value 7: no number and text"),
    ],
)
def test_columns_of_wrong_types_name_table_and_row(tmp_path, tables, message):
    with pytest.raises(InputError, match=rf"t\.sqlite: .*{message}"):
        import_traces([database(tmp_path / "t.sqlite", **tables)])


@pytest.mark.parametrize(
    "made",
    [
        f"CREATE VIEW {KERNELS} AS SELECT * FROM hidden",
        f"CREATE VIEW {KERNELS} AS SELECT zeroblob(1000000000) AS start, 1 AS end FROM hidden",
        f"CREATE VIEW {KERNELS} AS WITH RECURSIVE c(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM c)"
        " SELECT start, start AS end FROM c",
        f"CREATE VIRTUAL TABLE {KERNELS} USING fts5(start, end)",
    ],
)
def test_views_and_tables_of_extensions_are_not_run(tmp_path, made):
    path = database(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"ALTER TABLE {KERNELS} RENAME TO hidden; {made}")
    with pytest.raises(InputError, match=rf"t\.sqlite: '{KERNELS}' is a view; only tables"):
        import_traces([path])


def test_a_packed_database_is_unpacked_in_memory_only(tmp_path, monkeypatch):
    path = database(tmp_path / "t.sqlite")
    data = bytearray(path.read_bytes())
    data[18:20] = b"\2\2"  # as if it had a write-ahead log beside it
    path.unlink()
    (tmp_path / "t.sqlite.gz").write_bytes(gzip.compress(bytes(data)))
    monkeypatch.setattr("tempfile.mkdtemp", None)
    assert len(import_traces([tmp_path / "t.sqlite.gz"]).ranks[0].recorded) == 2
    assert [found.name for found in tmp_path.iterdir()] == ["t.sqlite.gz"]


def test_pages_that_lead_to_each_other_end(tmp_path):
    # The pages below an interior page are all made the same one.
    path = database(tmp_path / "t.sqlite", **{
        KERNELS: [nsys_files.kernel(10 * i, 10 * i + 5, i, name=0) for i in range(30_000)]
    })  # fmt: skip
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    pages = [data[at : at + size] for at in range(0, len(data), size)]
    interior = next(i for i, page in enumerate(pages) if i and page[0] == 5 and page[3:5] > b"\0\x10")
    page = pages[interior]
    cells = int.from_bytes(page[3:5], "big")
    places = [int.from_bytes(page[12 + 2 * i : 14 + 2 * i], "big") for i in range(cells)]
    for at in places[1:]:
        page[at : at + 4] = page[places[0] : places[0] + 4]
    path.write_bytes(b"".join(pages))
    with pytest.raises(InputError, match=r"t\.sqlite: "):
        import_traces([path])


def test_a_database_that_takes_more_steps_than_its_size_allows_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("workloads.imports.nsys.database._STEPS", 5)
    monkeypatch.setattr("workloads.imports.nsys.database._STEPS_BYTE", 0)
    with pytest.raises(InputError, match=r"t\.sqlite: reading it takes more steps than its size allows"):
        import_traces([database(tmp_path / "t.sqlite")])
