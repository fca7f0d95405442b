"""Reading traces of many versions; refusing what is none, with file, position and reason."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from tests.imports.traces import call, kernel, launched, write
from workloads.imports import import_traces
from workloads.imports.files import trace_files
from workloads.imports.json_events import read_events
from workloads.imports.kineto.read import read_kineto


def read(path):
    (source,) = trace_files(path)
    return read_kineto(source)


def test_fractions_of_large_time_stamps_are_kept(tmp_path):
    # A double would round 1712195495519689.123 us to a quarter of a microsecond.
    path = tmp_path / "t.json"
    head = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"args":{"stream":7,"correlation":1}'
    path.write_text(
        '{"traceEvents":[' + head + ',"ts":1712195495519689.123,"dur":0.877},'
        + head + ',"ts":1712195495519690,"dur":1.5}]}'
    )  # fmt: skip
    trace = read(path)
    assert trace.gpu.start_ps.tolist() == [123_000, 1_000_000]
    assert trace.gpu.end_ps.tolist() == [1_000_000, 2_500_000]
    assert trace.resolution_ps == 1000


def test_old_names_of_categories_and_streams(tmp_path):
    old = kernel("k", 10, 5, corr=3, cat="Kernel")
    del old["args"]["stream"]
    old["tid"] = "stream 9"
    runtime = {**call("cudaLaunchKernel", 1, 2, corr=3), "cat": "Runtime"}
    trace = read(write(tmp_path / "t.json", [runtime, old, kernel("c", 20, 1, corr=4, cat="Memcpy")]))
    assert trace.gpu.stream.tolist() == [9, 7]
    assert trace.gpu.kind.tolist() == [0, 1]
    assert len(trace.calls) == 1


def test_plain_gzip_tar_and_folder_are_the_same(tmp_path):
    events = launched("a", 0, 8, 5, corr=1)
    header = {"distributedInfo": {"rank": 4, "world_size": 8}}
    plain = write(tmp_path / "t.json", events, **header)
    packed = write(tmp_path / "t.json.gz", events, **header)
    folder = tmp_path / "folder"
    folder.mkdir()
    archive = folder / "t.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(plain, "inner/t.json")
    found = [read(path) for path in (plain, packed, archive, folder)]
    assert {trace.rank for trace in found} == {4}
    for trace in found:
        np.testing.assert_array_equal(trace.gpu.end_ps, [found[0].gpu.end_ps[0]])


def test_events_across_window_borders_arrive_whole(tmp_path):
    # 2.5 MB of text in windows of 1 MiB; every event carries its number.
    events = [kernel(f"k{i}" + "x" * 100, 10 * i, 5, corr=i) for i in range(8000)]
    trace = read(write(tmp_path / "t.json", events, after={"a": [1, 2.5, None]}))
    assert trace.gpu.correlation.tolist() == list(range(8000))
    assert len(trace.names) == 8000


def test_raw_bytes_in_names_do_not_matter(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(
        b'{"traceEvents": [' + GOOD.replace('"k"', '"k\n\t?"').encode().replace(b"?", b"\xff") + b"]}"
    )
    assert read(path).names[0].startswith("k")


def text(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_text(content)
    return path


GOOD = json.dumps(kernel("k", 1, 2))
FAR = GOOD.replace('"ts": 1', '"ts": 1' + "0" * 12)
NEVER = GOOD.replace('"ts": 1', '"ts": 1e30')


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        ("hello", "not JSON"),
        ("{}", "no traceEvents"),
        ('{"traceEvents": [' + GOOD, "ends too early"),
        ('{"traceEvents": [' + GOOD[:-20], "truncated"),
        ('{"traceEvents": [' + GOOD + ', 3]}', "event 1 is no object"),
        ('{"traceEvents": []}', "with ProfilerActivity.CUDA"),
        ('{"traceEvents": [' + GOOD.replace('"ts": 1', '"ts": "soon"') + "]}", "event 0 has ts 'soon'"),
        ('{"traceEvents": [' + GOOD.replace('"ts": 1', '"ts": NaN') + "]}", "event 0 has ts 'NaN'"),
        ('{"traceEvents": [' + GOOD.replace('"dur": 2', '"dur": -2') + "]}", "event 0 lasts -2 us"),
        ('{"traceEvents": [' + GOOD.replace('"dur": 2', '"dur": 1e30') + "]}", "event 0 lasts"),
        ('{"traceEvents": [' + GOOD + "," + FAR + "]}", "11.6 days from the first event (event 0 at 1 us)"),
        ('{"traceEvents": [' + NEVER + "," + GOOD + "]}", "event 0 begins at 1e+30 us: no clock"),
        ('{"traceEvents": [' + GOOD + "," + NEVER.replace("e30", "0e39") + "]}", "event 1 begins at 1e+40"),
        ('{"traceEvents": [' + "1" * 5000 + "]}", "digits"),
        ('{"traceEvents": [' + "[" * 100_000 + "]}", "nested too deeply"),
        ('{"distributedInfo": {"rank": 9, "world_size": 8}, "traceEvents": [' + GOOD + "]}", "rank 9"),
    ],
)  # fmt: skip
def test_bad_text_is_refused_with_file_and_reason(tmp_path, content, reason):
    path = text(tmp_path, content)
    with pytest.raises(InputError, match=r"bad\.json") as caught:
        read(path)
    assert reason in str(caught.value)


def test_truncated_and_false_gzip_are_refused(tmp_path):
    packed = gzip.compress(('{"traceEvents": [' + ", ".join([GOOD] * 5000)).encode())
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"cut.json.gz.*truncated"):
        read(cut)
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(packed[:20] + b"\x00" * 40)
    with pytest.raises(InputError, match=r"broken.json.gz.*decompressed bytes"):
        read(broken)


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    bomb = tmp_path / "bomb.json.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as out:
        out.write(b'{"traceEvents": [')
        for _ in range(100):
            out.write(b" " * (1 << 20))
    with pytest.raises(InputError, match=r"bomb.json.gz.*no trace compresses so well"):
        read(bomb)
    archive = tmp_path / "bomb.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("t.json")
        member.size = 100 << 20
        tar.addfile(member, io.BytesIO(b" " * member.size))
    with pytest.raises(InputError, match=r"bomb.tar.gz.*no trace compresses so well"):
        trace_files(archive)


def test_kernels_that_overlap_on_a_stream_are_refused(tmp_path):
    events = [*launched("a", 0, 8, 50, corr=1), *launched("b", 10, 30, 50, corr=2)]
    path = write(tmp_path / "t.json", events)
    with pytest.raises(InputError, match=r"events 1 and 3 overlap by 28 us on stream 7"):
        import_traces([path])


def test_a_group_without_the_rank_is_refused(tmp_path):
    meta = {"Collective name": "allreduce", "Process Group Name": "tp", "Process Group Ranks": "[0, 1]"}
    events = launched("ncclDevKernel_AllReduce", 0, 8, 5, corr=1, **meta)
    path = write(tmp_path / "t.json", events, distributedInfo={"rank": 5, "world_size": 8})
    with pytest.raises(InputError, match=r"rank 5 issues 'allreduce' in process group 'tp'"):
        import_traces([path])


def test_one_bad_file_of_a_folder_is_named_and_can_be_left_out(tmp_path):
    write(tmp_path / "a.json", launched("a", 0, 8, 5, corr=1))
    text(tmp_path, "{}")
    with pytest.raises(InputError, match=r"bad\.json"):
        import_traces([tmp_path])
    job = import_traces([tmp_path], skip_bad=True)
    assert len(job.ranks) == 1
    assert "bad.json" in job.report.doubts()[0]


def test_two_traces_of_one_rank_are_refused(tmp_path):
    paths = [
        write(tmp_path / name, launched("a", 0, 8, 5, corr=1), distributedInfo={"rank": 0})
        for name in ("a.json", "b.json")
    ]
    with pytest.raises(InputError, match="both of rank 0"):
        import_traces(paths)


def test_an_end_read_a_little_early_is_no_time(tmp_path):
    path = text(tmp_path, '{"traceEvents": [' + GOOD.replace('"dur": 2', '"dur": -0.5') + "]}")
    (rank,) = import_traces([path]).ranks
    assert (rank.recorded.end_ps == rank.recorded.start_ps).all()


_NAMES = st.text(alphabet='ab{}[],:"\\\n ', max_size=6)
_NESTED = st.recursive(
    st.none() | st.integers(-9, 9) | _NAMES, lambda inner: st.lists(inner, max_size=3), max_leaves=6
)


@given(
    events=st.lists(
        st.dictionaries(_NAMES, _NESTED | st.dictionaries(_NAMES, _NESTED, max_size=2), max_size=3)
    ),
    more=st.lists(st.dictionaries(_NAMES, _NESTED, max_size=2), max_size=3),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]),
    window=st.integers(1, 40),
)
def test_events_are_those_of_a_reader_that_holds_the_file(tmp_path_factory, events, more, separators, window):
    """Wherever windows end, whatever names hold, and with other arrays of objects behind the events."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": events, "devices": more}, separators=separators), encoding="utf-8"
    )
    header = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workloads.imports.json_events._CHUNK_BYTES", window)
        (source,) = trace_files(path)
        found = list(read_events(source, header))
    assert found == list(enumerate(events)) and header == {"devices": more}
