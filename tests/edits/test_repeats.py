"""Layers and microbatches told by repetition, and recordings edited by them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.apps.replay.edits import edit_recording
from simcore.apps.replay.play import play
from simcore.errors import InputError
from tests.imports.traces import launched, step, write
from workloads.edits.recorded.repeats import RepeatedGroups, levels
from workloads.imports import import_traces


def codes(text):
    return np.array([ord(letter) for letter in text]), np.ones(len(text), dtype=np.int64)


def test_layers_inside_microbatches():
    # Forward of 4 layers and a loss, backward of 4 layers; 3 microbatches; an optimizer.
    found = levels(*codes(("e" + "abcd" * 4 + "L" + "wxyzv" * 4) * 3 + "oo"))
    assert [level.count for level in found] == [3, 4]
    assert found[0].runs == (RepeatedGroups(0, 38, 3),)
    inner = found[1].runs
    assert [(run.period, run.count) for run in inner] == [(4, 4), (5, 4)] * 3
    assert found[1].share == pytest.approx(3 * 36 / 116)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 9), st.integers(2, 7), st.integers(0, 5), st.integers(0, 5))
def test_a_run_is_found_wherever_it_is(period, count, before, after):
    layer = "".join(chr(97 + i) for i in range(period))
    text = "ABCDE"[:before] + layer * count + "VWXYZ"[:after]
    found = levels(*codes(text))
    if period * count * 2 < len(text):
        return
    assert found[-1].runs == (RepeatedGroups(before, period, count),)


def test_nothing_repeats():
    assert levels(*codes("abcdefghijklmnop")) == []


def layered(tmp_path, layers, *, steps=1):
    """Layers of three kernels (10, 5 and 2 us) 1 us apart, a head and an optimizer, all launched early."""
    events, at, corr = [], 20.0, 1
    for number in range(steps):
        since = at - 20
        names = ["head", *["gemm", "norm", "act"] * layers, "multi_tensor_adam"]
        for place, name in enumerate(names):
            length = {"head": 3, "gemm": 10, "norm": 5, "act": 2, "multi_tensor_adam": 40}[name]
            events += launched(name, since + 1 + 0.001 * place, at, length, corr=corr)
            at += length + 1
            corr += 1
        events.append(step(number, since, at - since + 10))
        at += 40
    return import_traces([write(tmp_path / "t.json", events)])


@pytest.mark.parametrize("edit", ["layers=10", "layers=3", "layers=6:12"])
def test_layers_more_or_less(tmp_path, edit):
    # 6 layers of 17 + 3 us of gaps; head 3 + 1; the optimizer 40 for 6 layers, in proportion for others.
    job = layered(tmp_path, 6, steps=2)
    _, (done,) = edit_recording(job, [edit], None)
    layers = int(edit.rpartition("=")[2].rpartition(":")[2])
    assert 1e6 * done.before_s == pytest.approx(4 + 6 * 20 + 40, abs=0.01)
    assert 1e6 * done.after_s == pytest.approx(4 + layers * 20 + 40 * layers / 6, abs=0.5)
    assert done.applied.ops_changed == 2 * 3 * abs(layers - 6)


def test_an_edited_recording_is_what_would_have_been_recorded(tmp_path):
    (tmp_path / "more").mkdir()
    edited, _ = edit_recording(layered(tmp_path, 6), ["layers=9"], None)
    recorded = layered(tmp_path / "more", 9)
    mine, theirs = play(edited), play(recorded)
    count = 1 + 9 * 3  # all but the optimizer, which is longer
    for index, (one, other) in enumerate(
        zip(*(np.sort(p.start_ps[0])[:count] for p in (mine, theirs)), strict=True)
    ):
        assert one == pytest.approx(other, abs=50_000), index


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("layers=7:9", "no group of kernels repeats 7 times; groups repeat 6 ("),
        ("layers=6.5", "as it was and shall be: 24:48"),
        ("num_microbatches=2", "one level of repetition"),
    ],
)
def test_what_is_not_seen_is_refused(tmp_path, edit, reason):
    with pytest.raises(InputError) as error:
        edit_recording(layered(tmp_path, 6), [edit], None)
    assert reason in str(error.value)


def test_layers_of_microbatches_that_differ_are_no_microbatches(tmp_path):
    # Four microbatches, each with a head of its own: all that repeats are three layers, four times.
    names = [name for head in range(4) for name in (f"head_{head}", *["gemm", "norm", "act"] * 3)]
    events = [step(1, 0, 900)]
    for place, name in enumerate(names):
        events += launched(name, 1 + 0.001 * place, 20 * (place + 1), 15, corr=place + 1)
    job = import_traces([write(tmp_path / "t.json", events)])
    for edit, reason in (
        ("num_microbatches=4:8", "no group of kernels repeats 4 times; groups repeat 3 ("),
        ("num_microbatches=8", "one level of repetition"),
    ):
        with pytest.raises(InputError) as error:
            edit_recording(job, [edit], None)
        assert reason in str(error.value)


def test_kernels_that_do_not_repeat_are_refused(tmp_path):
    events = [step(1, 0, 900)]
    for i in range(20):
        events += launched(f"kernel_{i}", 1 + i, 20 * (i + 1), 15, corr=i + 1)
    with pytest.raises(InputError, match="does not show where layers begin"):
        edit_recording(import_traces([write(tmp_path / "t.json", events)]), ["layers=4"], None)
