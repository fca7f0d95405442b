"""Logs of pipeline stages: replay from stage times, and other schedules predicted from them."""

import json
import os
from pathlib import Path

import pytest

from simcore.apps.replay.edits import edit_recording
from simcore.apps.replay.play import play
from simcore.errors import InputError
from simcore.graph.schedules import end_times, gpipe, interleaved_one_f_one_b, one_f_one_b
from workloads.imports import import_traces

FOLDER = Path(os.environ.get("REAL_TRACES", "no-such-folder")) / "primus-pp8-mi300"


def lists(fwd, bwd, shift=0.0, **more):
    """One iteration of a stage from (start, end) pairs in ms; its clock starts ``shift`` later."""
    entry = {}
    for word, pairs in (("fwd", fwd), ("bwd", bwd)):
        entry[f"{word}_start"] = [start - shift for start, _ in pairs]
        entry[f"{word}_end"] = [end - shift for _, end in pairs]
    return {"total": max(end for _, end in (*fwd, *bwd)) - shift, "memory": 1.0, **entry, **more}


# 1F1B of two stages and two microbatches.  Forwards 10 ms, backwards 20 ms, a send 1 ms: a stage that has
# sent goes on 1 ms later, a stage that receives starts 1 ms after it is free and the sender is done.  The
# second stage's clock starts 3 ms after the first's.
TWO_STAGES = (
    lists([(0, 10), (11, 21)], [(42, 62), (73, 93)]),
    lists([(11, 21), (42, 52)], [(21, 41), (52, 72)], shift=3.0),
)


def write(folder, stages, **config):
    sizes = {"world_size": len(stages), "pp_size": len(stages), "vp_size": 1, "num_mbs": 2, **config}
    (folder / "config.json").write_text(json.dumps(sizes))
    for stage, entry in enumerate(stages):
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps({"5": entry, "6": entry}))
    return [folder]


@pytest.mark.parametrize("gaps", ["recorded", "typical"])
def test_a_log_comes_back(tmp_path, gaps):
    job = import_traces(write(tmp_path, TWO_STAGES), gaps=gaps)
    assert job.report.format == "pipeline_log"
    # Forwards: 8 - 10 >= transfer - shift; backwards: 42 - 38 >= transfer + shift.
    assert job.report.clock_shift_us == (0.0, 3000.0)
    assert "1.000 ms" in job.report.inferred[0]
    rows = play(job).steps()
    assert [(row.rank, row.step) for row in rows] == [(0, 5), (0, 6), (1, 5), (1, 6)]
    assert [1e3 * row.replayed.span for row in rows] == pytest.approx([93, 93, 69, 69])
    assert max(abs(row.error) for row in rows) < 1e-9
    assert 1e3 * rows[0].replayed.exposed_compute == pytest.approx(60)
    # It waits from 21 to 42 ms and from 62 to 73 ms; 1 ms after its first send counts as neither.
    assert 1e3 * rows[0].replayed.exposed_communication == pytest.approx(32)


@pytest.mark.parametrize(
    ("edits", "total_ms"),
    [
        # All forwards first: stage 1 has its forwards at 11 and 22 ms, its backwards at 32 and, as it has
        # sent, 53 ms; stage 0 has them at 53 and 74 ms.
        (["schedule=gpipe"], 94),
        # Stage 1 alternates, 31 ms a microbatch from 11 ms on: its last backward ends at 11 + 4 * 31 - 1 ms;
        # stage 0 has it 1 ms later.
        (["num_microbatches=4"], 155),
        # Halves: forwards 5, backwards 10 ms.  Stage 0 F0.0 at 0, F1.0 5, F0.1 12, F1.1 17, B0.1 34, B1.1 49,
        # B0.0 59, B1.0 71; stage 1 F0.0 at 6, F1.0 11, F0.1 18, B0.1 23, F1.1 33, B1.1 38, B0.0 48, B1.0 60.
        (["schedule=interleaved,virtual_stages=2"], 81),
        (["virtual_stages=2"], 81),
        # Backwards of 10 and 10 ms.  Stage 1 B0 at 21, F1 32, B1 42 ms, then weights; stage 0 B0 at 32, W0 42
        # (it ends before B1 can start), B1 53, W1 63 ms.
        (["schedule=zero_bubble"], 73),
        # Backwards of 10 ms instead: stage 1 forwards at 11 and 22 ms, backwards at 32 and 43 ms; stage 0 has
        # them at 43 and 54 ms.  The other way round is the same.
        (["kernel.^backward.speed=2", "schedule=gpipe"], 64),
        (["schedule=gpipe", "kernel.^backward.speed=2"], 64),
        # Forth and back is 1F1B again.
        (["num_microbatches=4", "schedule=gpipe", "num_microbatches=2", "schedule=1f1b"], 93),
    ],
)
def test_other_schedules(tmp_path, edits, total_ms):
    job = import_traces(write(tmp_path, TWO_STAGES))
    after, steps = edit_recording(job, edits, None)
    assert 1e3 * steps[0].before_s == pytest.approx(93)
    assert 1e3 * steps[-1].after_s == pytest.approx(total_ms)
    assert all(step.applied.assumed and step.applied.ops_changed for step in steps)
    recorded = [row.recorded for row in play(after).steps()]
    assert [1e3 * one.span for one in recorded] == pytest.approx([93, 93, 69, 69])
    assert recorded == [row.recorded for row in play(job).steps()]  # what it consisted of, too


# Four stages of one microbatch each: forwards 10 ms, backwards 20 ms, 5 and 7 ms more for the head; a send
# 1 ms.
FOUR_STAGES = (
    lists([(0, 10)], [(119, 139)]),
    lists([(11, 21)], [(98, 118)]),
    lists([(22, 32)], [(77, 97)]),
    lists([(33, 48)], [(49, 76)]),
)


@pytest.mark.parametrize(
    ("edits", "stages", "total_ms"),
    [
        # Forwards of 20 and 25 ms, backwards of 47 and 40 ms: 20 + 1 + 25 + 47 + 1 + 40, and 1 before the
        # last stage's backward, as logged.
        (["pp=4:2"], 2, 135),
        # As many computes and seven sends in a row each way, 14 ms, and the same 1 ms.
        (["pp=8"], 8, 4 * 10 + 5 + 4 * 20 + 7 + 14 + 1),
        (["pp=2", "schedule=gpipe"], 2, 135),
    ],
)
def test_stages_put_together_and_parted(tmp_path, edits, stages, total_ms):
    job = import_traces(write(tmp_path, FOUR_STAGES, num_mbs=1))
    after, steps = edit_recording(job, edits, None)
    assert 1e3 * steps[0].before_s == pytest.approx(139)
    assert 1e3 * steps[-1].after_s == pytest.approx(total_ms)
    assert after.graph.world_size == len(after.ranks) == stages
    assert "layers lie evenly on the 4 logged stages" in steps[0].applied.assumed[0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("pp=3:2", "has 4 stages, not 3: pp=4:2"),
        ("pp=6", "cannot be put together or parted to 6; nearest: pp=4"),
        ("pp=1", "nearest: pp=2"),
    ],
)
def test_stages_that_do_not_fall_evenly(tmp_path, edit, message):
    job = import_traces(write(tmp_path, FOUR_STAGES, num_mbs=1))
    with pytest.raises(InputError, match=message):
        edit_recording(job, [edit], None)


def test_model_chunks(tmp_path):
    """The interleaved schedule of :func:`test_other_schedules` as a log: Megatron's order is known."""
    stages = (
        lists([(0, 5), (5, 10), (12, 17), (17, 22)], [(34, 44), (49, 59), (59, 69), (71, 81)]),
        lists([(6, 11), (11, 16), (18, 23), (33, 38)], [(23, 33), (38, 48), (48, 58), (60, 70)]),
    )
    job = import_traces(write(tmp_path, stages, vp_size=2))
    assert "2 chunks per stage one after the other" in job.report.found[0]
    rows = play(job).steps()
    assert [1e3 * row.replayed.span for row in rows] == pytest.approx([81, 81, 70, 70])
    _, steps = edit_recording(job, ["virtual_stages=1"], None)
    # Stages that run whole again; sends still run beside computes, as in the log: forwards of stage 1 at 11
    # and 41 ms, backwards at 21 and 51 ms; stage 0 has the last at 72 ms.
    assert 1e3 * steps[0].after_s == pytest.approx(94, abs=2.01)


def test_chunks_in_a_v(tmp_path):
    """Chunk 1 runs back from the last stage: the last stage hands it to itself."""
    places = {"fwd_minibatch": [0, 0], "fwd_chunk": [0, 1], "bwd_minibatch": [0, 0], "bwd_chunk": [1, 0]}
    stages = (
        lists([(0, 5), (17, 22)], [(22, 32), (54, 64)], **places),
        lists([(6, 11), (11, 16)], [(33, 43), (43, 53)], **places),
    )
    job = import_traces(write(tmp_path, stages, vp_size=2, num_mbs=1))
    assert "in a V" in job.report.found[0]
    assert [1e3 * row.replayed.span for row in play(job).steps()] == pytest.approx([64, 64, 53, 53])


def test_weight_gradients_apart(tmp_path):
    """A log with them: B hands the input gradients on before W; here W delays nothing."""
    weights = {"wgrad_start": [40, 60], "wgrad_end": [45, 65]}
    stages = (lists([(0, 10), (11, 21)], [(32, 40), (50, 60)], **weights),)
    job = import_traces(write(tmp_path, stages))
    assert [1e3 * row.replayed.span for row in play(job).steps()] == pytest.approx([60, 60], abs=5.01)
    assert job.origin.schedule == "zero_bubble"


def broken(stage, **changes):
    stages = [dict(entry) for entry in TWO_STAGES]
    stages[stage] |= changes
    return stages


@pytest.mark.parametrize(
    ("stages", "config", "message"),
    [
        (
            broken(1, fwd_end=[18, 20]),
            {},
            r"rank_1.json: iteration 5: fwd_end\[1\] 20 ms is before its start",
        ),
        (broken(0, fwd_end=[10]), {}, "pp_rank_0.json: iteration 5: 2 fwd_start but 1 fwd_end"),
        (broken(0, bwd_start=[42, "x"]), {}, r"bwd_start\[1\] is 'x', no time in ms"),
        (broken(0, bwd_start=[20, 73]), {}, "F of microbatch 1 and B of microbatch 0 overlap at 20.000 ms"),
        (broken(0, bwd_start=None), {}, "has no list 'bwd_start'"),
        (broken(0, total=-1), {}, "total is -1"),
        (broken(0, total=9e7), {}, "total is 90000000.0"),
        (broken(0, fwd_chunk=[0, 0], fwd_minibatch=[0, 0]), {}, "stands twice"),
        (broken(0, fwd_chunk=[0, 1]), {}, "fwd_chunk 1 of 1 chunk"),
        (TWO_STAGES, {"num_mbs": 3}, "2 fwd_start for 3 microbatches on 1 chunk"),
        (TWO_STAGES, {"pp_size": 3}, "log of stage 2 of 3 is missing"),
        (TWO_STAGES, {"pp_size": 0}, "config.json: pp_size is 0, no size"),
        (TWO_STAGES, {"pp_size": 1}, "stage 1, but .*config.json has pp_size 1"),
    ],
)
def test_bad_logs(tmp_path, stages, config, message):
    with pytest.raises(InputError, match=message):
        import_traces(write(tmp_path, stages, **config))


def test_a_truncated_log(tmp_path):
    (paths,) = write(tmp_path, TWO_STAGES)
    path = paths / "pp_rank_1.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InputError, match=r"pp_rank_1.json: line 1, column \d+: .*truncated"):
        import_traces([paths])


def test_iterations_of_weeks_in_all_are_refused(tmp_path):
    (folder,) = write(tmp_path, TWO_STAGES, pp_size=1)
    (folder / "pp_rank_1.json").unlink()
    path = folder / "pp_rank_0.json"
    entry = json.loads(path.read_text())["5"] | {"total": 8e7}
    path.write_text(json.dumps({str(number): entry for number in range(8)}))
    with pytest.raises(InputError, match=r"config.json: the iterations take 7.41 days"):
        import_traces([folder])


# Three stages, one microbatch: forwards 10 ms, backwards 20 ms, a send 1 ms.  The last stage's clock starts
# 3 ms after the first's.
THREE_STAGES = (
    lists([(0, 10)], [(74, 94)]),
    lists([(11, 21)], [(53, 73)]),
    lists([(22, 32)], [(32, 52)], shift=3.0),
)


@pytest.mark.parametrize("gaps", ["recorded", "typical"])
@pytest.mark.parametrize("name", ["pp_rank_1.json", "a.json", "z.json"])
def test_a_stage_whose_log_is_bad_is_stood_in_for(tmp_path, name, gaps):
    (folder,) = write(tmp_path, THREE_STAGES, num_mbs=1)
    path = folder / "pp_rank_1.json"
    path.write_text(path.read_text()[:-20])
    path.rename(folder / name)
    with pytest.raises(InputError, match=rf"{name}: line 1, column \d+: .*truncated"):
        import_traces([folder], gaps=gaps)
    job = import_traces([folder], skip_bad=True, gaps=gaps)
    assert name in job.report.skipped[0]
    assert "no log of stage 1: it is stood in for, computing as long as stage 0 and stage 2" in str(
        job.report.missing
    )
    # Between forwards of the first and the last stage lie two sends and the 10 ms that both compute.
    assert job.report.clock_shift_us[2] == 3000.0
    rows = play(job).steps()
    assert [(row.rank, row.step) for row in rows] == [(0, 5), (0, 6), (2, 5), (2, 6)]
    # The last stage waits from its begin, at 3 ms.
    assert [1e3 * row.replayed.span for row in rows] == pytest.approx([94, 94, 49, 49])
    after, steps = edit_recording(job, ["kernel.^backward.speed=2", "schedule=gpipe"], None)
    assert 1e3 * steps[-1].after_s == pytest.approx(94 - 3 * 10)
    assert {row.rank for row in play(after).steps()} == {0, 2}


def logged(schedule, num_chunks, longer=lambda stage, action: 1):
    """Stages that play ``schedule``: forwards 10 ms, backwards 20 ms, cut into the chunks; a send 1 ms.

    ``longer``: so many times, by stage and action.
    """

    def lasts(stage, action):
        return {"F": 10 // num_chunks, "B": 20 // num_chunks}[action.kind] * longer(stage, action)

    ends = end_times(schedule, duration=lasts, p2p=1)
    stages = []
    for stage, (actions, own) in enumerate(zip(schedule, ends, strict=True)):
        spans = [(a.kind, (end - lasts(stage, a), end)) for a, end in zip(actions, own, strict=True)]
        stages.append(lists(*([span for kind, span in spans if kind == which] for which in "FB")))
    return stages


@pytest.mark.parametrize("missing", [(1,), (2,), (1, 2), (3,), (0,)])
@pytest.mark.parametrize(
    ("schedule", "num_chunks"),
    [(one_f_one_b(4, 8), 1), (gpipe(4, 8), 1), (interleaved_one_f_one_b(4, 8, 2), 2)],
)
def test_stand_ins_leave_the_other_stages_as_they_were(tmp_path, schedule, num_chunks, missing):
    (folder,) = write(tmp_path, logged(schedule, num_chunks), num_mbs=8, vp_size=num_chunks)
    whole = [(row.rank, round(1e3 * row.replayed.span, 6)) for row in play(import_traces([folder])).steps()]
    for stage in missing:
        (folder / f"pp_rank_{stage}.json").write_text('{"5": {"fwd_start": [0.0], "bwd_start": [')
    job = import_traces([folder], skip_bad=True)
    left = [(row.rank, round(1e3 * row.replayed.span, 6)) for row in play(job).steps()]
    assert left == [pair for pair in whole if pair[0] not in missing]


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_with_bad_times_or_none_is_stood_in_for(tmp_path, stage):
    stages = [dict(entry) for entry in THREE_STAGES]
    stages[stage]["bwd_end"] = [-1.0]
    (folder,) = write(tmp_path, stages, num_mbs=1)
    job = import_traces([folder], skip_bad=True)
    assert f"pp_rank_{stage}.json: iteration 5: bwd_end[0]" in job.report.skipped[0]
    assert job.graph.world_size == 3
    spans = [(row.rank, row.replayed.span) for row in play(job).steps()]
    assert stage not in {rank for rank, _ in spans}
    (folder / f"pp_rank_{stage}.json").unlink()
    again = import_traces([folder], skip_bad=True)
    assert [(row.rank, row.replayed.span) for row in play(again).steps()] == spans
    with pytest.raises(InputError, match=f"log of stage {stage} of 3 is missing"):
        import_traces([folder])


def test_a_stage_of_an_unknown_schedule_is_not_stood_in_for(tmp_path):
    late = lists([(0, 10), (10, 20), (20, 30)], [(60, 80), (80, 100), (100, 120)])
    (folder,) = write(tmp_path, tuple(late | {"memory": float(stage)} for stage in range(3)), num_mbs=3)
    (folder / "pp_rank_0.json").unlink()
    assert import_traces([folder], skip_bad=True).ranks  # GPipe
    early = lists([(0, 10), (30, 40), (60, 70)], [(10, 30), (40, 60), (70, 90)])
    (folder / "pp_rank_1.json").write_text(json.dumps({"5": early, "6": early}))
    with pytest.raises(InputError, match="follow neither 1F1B nor GPipe"):
        import_traces([folder], skip_bad=True)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("schedule=interleave", "cannot be 'interleave'; did you mean 'interleaved'"),
        ("schedule=interleaved,virtual_stages=1", "interleaved cannot have 1 virtual stages"),
        ("schedule=zero_bubble,weight_grad_share=2", "weight_grad_share=2"),
        ("schedule=gpipe,chunk=2", "no option 'chunk'"),
        ("num_microbatches=0", "must be a positive"),
    ],
)
def test_bad_edits(tmp_path, edit, message):
    job = import_traces(write(tmp_path, TWO_STAGES))
    with pytest.raises(InputError, match=message):
        edit_recording(job, [edit], None)


def test_an_interleaved_pipeline_needs_whole_groups(tmp_path):
    job = import_traces(write(tmp_path, TWO_STAGES))
    with pytest.raises(InputError, match="3 microbatches are no multiple of 2 stages"):
        edit_recording(job, ["num_microbatches=3", "virtual_stages=2"], None)


def test_the_schedule_comes_before_the_sends(tmp_path):
    job = import_traces(write(tmp_path, TWO_STAGES))
    with pytest.raises(InputError, match="put edits of the schedule first"):
        edit_recording(job, ["kernel.send.*.speed=2", "schedule=gpipe"], None)


@pytest.mark.parametrize(("gaps", "bound"), [("recorded", 0.001), ("typical", 0.005)])
def test_a_recorded_pipeline(gaps, bound):
    """Typical gaps cannot know the first iteration, in which connections are made."""
    if not FOLDER.is_dir():
        pytest.skip("the recorded pipeline is not at hand")
    job = import_traces([FOLDER], gaps=gaps)
    rows = [row for row in play(job).steps() if row.step > 1 or gaps == "recorded"]
    assert len(rows) == 8 * (20 if gaps == "recorded" else 19)
    for row in rows:
        assert abs(row.error) <= bound
        total_ms = json.loads((FOLDER / f"pp_rank_{row.rank}.json").read_text())[str(row.step)]["total"]
        assert 1e3 * row.recorded.span == pytest.approx(total_ms, rel=1e-6)


@pytest.mark.parametrize("num_microbatches", [8, 16])
@pytest.mark.parametrize("num_chunks", [2, 4])
def test_chunks_are_told_without_a_configuration(tmp_path, num_chunks, num_microbatches):
    stages = logged(interleaved_one_f_one_b(4, num_microbatches, num_chunks), num_chunks)
    (folder,) = write(tmp_path, stages, num_mbs=num_microbatches, vp_size=num_chunks)
    told = import_traces([folder])
    (folder / "config.json").unlink()
    counted = import_traces([folder])
    assert counted.report.found == told.report.found
    wanted = (
        f"{num_chunks} model chunks a stage and {num_microbatches} microbatches, interleaved, are told by"
    )
    assert wanted in " ".join(counted.report.doubts()) and wanted not in " ".join(told.report.doubts())


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 8), one_f_one_b(4, 3), gpipe(4, 8)])
def test_one_chunk_is_no_more_without_a_configuration(tmp_path, schedule):
    (folder,) = write(tmp_path, logged(schedule, 1), num_mbs=len(schedule[0]) // 2)
    told = import_traces([folder])
    (folder / "config.json").unlink()
    counted = import_traces([folder])
    assert counted.report.found == told.report.found
    assert "config.json" in " ".join(counted.report.doubts())


def test_a_posted_receive_counts_while_its_stage_waits_for_it(tmp_path):
    """Interleaved stages post receives early; communication is what a stage does nothing else beside."""
    stages = logged(interleaved_one_f_one_b(4, 8, 2), 2)
    (folder,) = write(tmp_path, stages, num_mbs=8, vp_size=2)
    for row in play(import_traces([folder])).steps():
        assert row.replayed.overlapped == pytest.approx(0, abs=1e-9)
        assert row.replayed.parts() == pytest.approx(row.recorded.parts(), abs=1e-6)
