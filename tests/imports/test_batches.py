"""Events decoded thousands at a time: what they become is what single ones become, and so are errors."""

import random
from decimal import ROUND_FLOOR, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import InputError
from tests.imports.traces import write
from workloads.imports import json_events
from workloads.imports.files import trace_files
from workloads.imports.kineto import beside
from workloads.imports.kineto import read as reading
from workloads.imports.kineto.events import events_of


def mostly(right, *others):
    """Right values, and now and then another version's spelling, null, or nonsense."""
    return st.integers(0, 12).flatmap(lambda dice: st.sampled_from(others) if dice == 7 else right)


_NUMBER = mostly(st.integers(0, 9), None, "7", "", 2.5, "stream 3", "x", True, -1, 1 << 70, [1], {})
_TIME = mostly(
    st.integers(0, 99) | st.sampled_from([0.25, 1.125, "3", "4.5"]),
    "1e2", -2.5, None, "", [], 1 << 80, "9" * 40,
)  # fmt: skip
_SHAPES = mostly(st.sampled_from([[[4, 2], [2, 8]], [], [["é"]]]), None, "[[1]]", [float("nan")])
_ARGS = st.fixed_dictionaries(
    {},
    optional={
        "device": _NUMBER, "stream": _NUMBER, "correlation": _NUMBER, "bytes": _NUMBER,
        "grid": mostly(st.just([4, 1, 1]), [], None, [1, "x"]), "registers per thread": _NUMBER,
        "Input Dims": _SHAPES, "Input dims": _SHAPES, "Input type": _SHAPES, "Sequence number": _NUMBER,
        "Collective name": mostly(st.sampled_from(["allreduce", "send"]), None, 5), "Dst Rank": _NUMBER,
        "In msg nelems": _NUMBER, "cuda_sync_kind": st.sampled_from(["Stream Sync", None]), "other": _SHAPES,
    },
)  # fmt: skip
_NAME = mostly(
    st.sampled_from(
        ["aten::mm", "c10d::send", "backward", "Optimizer.step#A.step", "ProfilerStep#3", "nn.Module: L_0",
         "iteration 4", "é"]
    ),
    "a\nb", "\ud800", None, 3,
)  # fmt: skip
_CATEGORY = mostly(
    st.sampled_from(
        ["kernel", "Kernel", "gpu_memcpy", "cuda_runtime", "cuda_sync", "cpu_op", "user_annotation",
         "python_function"]
    ),
    "other", None, 5, [],
)  # fmt: skip
_EVENT = st.fixed_dictionaries(
    {"cat": _CATEGORY, "name": _NAME, "pid": _NUMBER, "tid": _NUMBER, "ts": _TIME, "dur": _TIME},
    optional={"args": mostly(_ARGS, None, [], "x")},
).map(lambda event: {"ph": "X", **event})
_KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2}


def told(path, read=reading.read_kineto):
    """What a trace says, whatever its names and threads are numbered; or the message that refuses it."""
    try:
        trace = read(trace_files(path)[0])
    except InputError as error:
        return str(error)
    names = (*trace.names, "none")
    gpu, calls, ops = trace.gpu, trace.calls, trace.framework
    columns = [
        [c.tolist() for c in (gpu.start_ps, gpu.end_ps, gpu.kind, gpu.device, gpu.stream, gpu.correlation)],
        [c.tolist() for c in (gpu.num_bytes, gpu.meta, gpu.event, gpu.blocks, gpu.blocks_per_sm)],
        [c.tolist() for c in (calls.start_ps, calls.end_ps, calls.correlation, ops.start_ps, ops.end_ps)],
        [[names[i] for i in c] for c in (gpu.name, calls.name, ops.name, ops.shapes, ops.types)],
    ]
    communication = trace.notes.communication._found  # start, end and thread of each call
    threads = [*calls.thread.tolist(), *communication[2::3]]
    number = {thread: at for at, thread in enumerate(dict.fromkeys(threads))}
    notes = [trace.notes.phases._found, communication[0::3], communication[1::3], trace.notes.p2p._times]
    notes += [trace.notes.modules._backward, [len(trace.notes.modules._calls)], map(number.get, threads)]
    told_by = (
        trace.origin_us,
        trace.resolution_ps,
        trace.steps,
        trace.steps_told_by,
        trace.meta,
        trace.syncs,
    )
    return columns, [list(note) for note in notes], told_by


@given(before=st.lists(_EVENT, max_size=2), after=st.lists(_EVENT, max_size=2))
def test_many_at_once_are_what_single_ones_are(tmp_path_factory, before, after):
    path = write(tmp_path_factory.mktemp("trace") / "t.json", [*before, _KERNEL, *after])
    together = told(path)

    def alone(_):
        raise ValueError("one by one")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_BATCH", 1)
        patch.setattr(reading, "decode", alone)
        assert told(path) == together


@settings(max_examples=25)
@given(events=st.lists(_EVENT, max_size=6), seed=st.integers(0, 1 << 30))
def test_forks_read_what_one_process_reads(tmp_path_factory, events, seed):
    """Windows of 256 characters, some read by a fork and some here: even the numbers of names are equal."""
    many = [*([_KERNEL] * 3), *events, *({**_KERNEL, "name": f"k{n % 5}", "ts": 6 + n} for n in range(40))]
    random.Random(seed).shuffle(many)
    path = write(tmp_path_factory.mktemp("trace") / "t.json", many)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_events, "_CHUNK_BYTES", 256)
        patch.setattr(beside, "_LARGE", 0)
        patch.setattr(beside.os, "sched_getaffinity", lambda _: {0, 1})
        one = told(path)
        assert told(path, beside.read_on_all_cores) == one
        if not isinstance(one, str):
            source = trace_files(path)[0]
            assert beside.read_on_all_cores(source).names == reading.read_kineto(source).names


@pytest.mark.parametrize(
    ("name", "in_file"), [(b'"k"', True), (b'"\xff"', True), ('"é"'.encode(), False)], ids=["k", "no", "two"]
)
def test_forks_do_read(tmp_path, monkeypatch, name, in_file):
    """Else everything above compares one process with itself.

    They find windows in the file where characters are bytes, those that are no UTF-8 included.
    """
    of_file = []
    piece_of = json_events._Window._piece

    def piece(window, end):
        found = piece_of(window, end)
        of_file.append(found.inside is not None)
        return found

    monkeypatch.setattr(json_events._Window, "_piece", piece)
    monkeypatch.setattr(json_events, "_CHUNK_BYTES", 256)
    monkeypatch.setattr(beside, "_LARGE", 0)
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(beside, "read_kineto", lambda _: pytest.fail("left to one process"))
    path = write(tmp_path / "t.json", [{**_KERNEL, "ts": 5 + n} for n in range(60)])
    path.write_bytes(path.read_bytes().replace(b'"k"', name))
    found = beside.read_on_all_cores(trace_files(path)[0])
    assert found.gpu.start_ps.tolist() == [n * 10**6 for n in range(60)]
    assert found.names == (name.strip(b'"').decode(errors="replace"),)
    assert set(of_file) == ({True} if in_file else {False})


@given(
    st.lists(
        st.decimals(min_value=-(10**16), max_value=10**16, places=6) | st.integers(-(10**16), 10**16),
        min_size=1,
    )
)
def test_times_are_exact(tmp_path_factory, shifts):
    """Of any number of digits up to ps: a time stamp less the first one's whole us, in ps."""
    first = Decimal(shifts[0])
    near = [first + Decimal(shift) % 10**6 for shift in shifts]
    events = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{time},"dur":{abs(time) % 100}}}'
        for time in near
    )
    path = tmp_path_factory.mktemp("trace") / "t.json"
    path.write_text(f'{{"traceEvents":[{events}]}}')
    gpu = reading.read_kineto(trace_files(path)[0]).gpu
    origin = near[0].to_integral_value(ROUND_FLOOR)
    assert gpu.start_ps.tolist() == [int((time - origin) * 10**6) for time in near]
    assert (gpu.end_ps - gpu.start_ps).tolist() == [int(abs(time) % 100 * 10**6) for time in near]


def test_numbers_of_thousands_of_digits_are_refused_wherever_they_stand(tmp_path):
    shaped = {**_KERNEL, "cat": "cpu_op", "args": {"Input Dims": [[7]]}}
    path = write(tmp_path / "t.json", [_KERNEL, shaped, *[_KERNEL] * 3])
    path.write_text(path.read_text().replace("[[7]]", f"[[{'9' * 5000}]]"))
    assert "t.json: event 1 holds '[[999" in told(path)


def test_plain_events_are_decoded_together():
    """Else everything above compares single events with single events."""
    assert [event.name for event in events_of('[{"name":"a","ts":1.5},{"name":"b","args":{"x":[1]}}]')] == [
        "a",
        "b",
    ]
