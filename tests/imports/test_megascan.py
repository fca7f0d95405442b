"""MegaScan's logs of workers, and what is merged of them; times in ms."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.replay.play import play
from workloads.imports import import_traces

STAGES, CHUNKS = 2, 2
#: Interleaved 1F1B of 2 microbatches on 2 stages with 2 chunks each: (name, microbatch, chunk, begin, end).
ACTIONS = {
    0: [
        ("forward", 0, 0, 0, 10), ("forward", 1, 0, 10, 20), ("forward", 0, 1, 22, 32),
        ("forward", 1, 1, 33, 43), ("backward", 0, 1, 75, 95), ("backward", 1, 1, 97, 117),
        ("backward", 0, 0, 141, 161), ("backward", 1, 0, 163, 183),
    ],
    1: [
        ("forward", 0, 0, 11, 21), ("forward", 1, 0, 21, 31), ("forward", 0, 1, 33, 43),
        ("backward", 0, 1, 43, 63), ("forward", 1, 1, 64, 74), ("backward", 1, 1, 74, 94),
        ("backward", 0, 0, 97, 117), ("backward", 1, 0, 119, 139),
    ],
}  # fmt: skip
LASTS = {0: 190, 1: 190}


def worker(stage, actions=ACTIONS):
    """The file of a worker: two iterations."""
    events = []
    for _ in range(2):
        events.append({"name": "iteration", "ph": "B", "pad_before": 7})
        for name, microbatch, chunk, begin, end in actions[stage]:
            told = {"microbatch": microbatch, "model_chunk": chunk, "pp_rank": stage}
            events.append({"name": name, "ph": "B", "rel_ts": round(begin * 1e6)})
            events.append({"name": "layer", "ph": "B", "rel_ts": round(begin * 1e6)})
            events.append({"name": "layer", "ph": "E", "rel_ts": round(end * 1e6)})
            events.append({**told, "name": name, "ph": "E", "rel_ts": round(end * 1e6)})
        events.append({"name": "iteration", "ph": "E", "rel_ts": round(LASTS[stage] * 1e6)})
    return events


def merged(actions=ACTIONS):
    """Both workers on one clock, the second iteration 200 after the first."""
    events = []
    for iteration in range(2):
        at = 200 * iteration

        def tick(stage, name, phase, time, at=at, iteration=iteration, **told):
            return {
                "name": name, "ph": phase, "ts": round(1e3 * (at + time)), "pid": stage, "tid": 0,
                "args": {"iteration": iteration, **told},
            }  # fmt: skip

        for stage, found in actions.items():
            events.append(tick(stage, "iteration begin", "i", 0))
            for name, microbatch, chunk, begin, end in found:
                told = {"microbatch": microbatch, "model_chunk": chunk, "pp_rank": stage}
                events += [tick(stage, name, "B", begin), tick(stage, name, "E", end, **told)]
            events.append(tick(stage, "iteration end", "i", LASTS[stage]))
    return sorted(events, key=lambda event: event["ts"])


def write(folder, contents):
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def workers(actions=ACTIONS):
    return {f"benchmark-data-0-pipeline-{stage}-tensor-0.json": worker(stage, actions) for stage in actions}


@pytest.mark.parametrize("contents", [workers(), {"aggregated.json": merged()}], ids=["workers", "merged"])
def test_recorded_times_come_back(tmp_path, contents):
    job = import_traces([write(tmp_path / "log", contents)])
    assert job.report.found == ("2 stages, 2 microbatches, 2 chunks per stage one after the other",)
    rows = play(job).steps()
    assert [(row.rank, row.step) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for row in rows:
        assert row.recorded.span == pytest.approx(0.190)
        assert row.replayed.span == pytest.approx(row.recorded.span, abs=1e-9)
    # 4 forwards and 4 backwards on each stage.
    assert rows[0].replayed.exposed_compute == pytest.approx(4 * 0.010 + 4 * 0.020)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=16, max_size=16))
def test_whatever_a_stage_waited_for_the_recording_comes_back(tmp_path_factory, pauses):
    # Actions in the same order, each as early as order and sources allow and then some: also where several
    # sends to one stage are under way at a time.
    order = [(stage, *action) for stage, found in ACTIONS.items() for action in found]
    done, free, actions, pending = {}, [0, 0], {0: [], 1: []}, list(zip(order, pauses, strict=True))
    while pending:
        for entry in pending:
            (stage, name, microbatch, chunk, begin, end), pause = entry
            place = chunk * STAGES + stage
            source = place - 1 if name == "forward" else place + 1
            first = all(other[0][0] != stage for other in pending[: pending.index(entry)])
            if first and (not 0 <= source < STAGES * CHUNKS or (name, microbatch, source) in done):
                start = max(free[stage], done.get((name, microbatch, source), 0) + 1) + pause
                free[stage] = done[name, microbatch, place] = start + end - begin
                actions[stage].append((name, microbatch, chunk, start, free[stage]))
                pending.remove(entry)
                break
        else:  # pragma: no cover
            raise AssertionError("an order that no pipeline has")
    last = max(free)
    folder = write(tmp_path_factory.mktemp("log"), workers(actions))
    for row in play(import_traces([folder])).steps():
        assert row.replayed.span == pytest.approx(row.recorded.span, abs=1e-9)
        assert row.recorded.span >= 0.001 * min(last, 190)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (worker(0)[:3] + worker(0)[5:], "a forward begins in another"),
        ([worker(0)[0], worker(0)[4]], "a forward ends that did not begin"),
        ([*worker(0)[:2], {**worker(0)[4], "microbatch": None}], "microbatch is None, no number"),
        ([worker(0)[0], {**worker(0)[1], "rel_ts": -1}], "rel_ts is -1, no time"),
        ([worker(0)[0], {"name": "iteration", "ph": "E", "rel_ts": 1}], "no forward says its microbatch"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, events, reason):
    path = tmp_path / "benchmark-data-0-pipeline-0-tensor-0.json"
    path.write_text(json.dumps(events))
    found = CliRunner().invoke(app, ["replay", str(path)])
    assert (found.exit_code, reason in " ".join(found.output.split())) == (2, True), found.output
