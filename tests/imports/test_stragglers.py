"""Logs of a job's workers: replay, and what stragglers cost."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from simcore.apps.replay.longest_path import LongestPaths
from simcore.apps.replay.play import play, simulate_job
from simcore.apps.replay.stragglers import analyse_stragglers
from simcore.errors import InputError
from tests.commands import simcore
from workloads.imports import import_traces

HEADER = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc"
FOLDER = Path(os.environ.get("REAL_TRACES", "no-such-folder")) / "bytedance-stragglers-ST"


def write(path, rows):
    """A log of ``(dp_rank, stage, rank, step, optype, start, end, seq_id, mc, mb_id, gmc)`` rows."""
    lines = [",".join(map(str, (*r[:5], r[5], round(r[6] - r[5], 9), *r[7:]))) for r in rows]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def two_by_two():
    """Two replicas of two stages, one microbatch; replica 1's last stage is slow forward: 2 s, not 1 s.

    Forward 1 s, backward 2 s, a transfer 0.1 s, the norm 0.5 s, the optimizer 0.5 s.
    """
    rows = []
    for dp, slow in ((0, 1.0), (1, 2.0)):
        first, last = (dp, 0, 2 * dp, 7), (dp, 1, 2 * dp + 1, 7)
        turn = 1.1 + slow  # the last stage's forward ends
        back = turn + 2.0 + 0.1
        rows += [
            (*first, "forward-compute", 0.0, 1.0, 0, 0, 0, 0),
            (*first, "forward-send", 1.0, 1.1, 0, -1, -1, -1),
            (*first, "backward-recv", 1.0, back, 0, -1, -1, -1),
            (*first, "backward-compute", back, back + 2.0, 0, 0, 0, 0),
            (*first, "optimizer-clip-main-grad", back + 2.0, 7.7, 0, -1, -1, -1),
            (*first, "optimizer", 7.7, 8.2, 0, -1, -1, -1),
            (*last, "forward-recv", 0.0, 1.1, 0, -1, -1, -1),
            (*last, "forward-compute", 1.1, turn, 0, 0, 0, 1),
            (*last, "backward-compute", turn, turn + 2.0, 0, 0, 0, 1),
            (*last, "backward-send", turn + 2.0, back, 0, -1, -1, -1),
            (*last, "optimizer-clip-main-grad", turn + 2.0, 7.7, 0, -1, -1, -1),
            (*last, "optimizer", 7.7, 8.2, 0, -1, -1, -1),
        ]
    return rows


def test_a_log_comes_back(tmp_path):
    job = import_traces([write(tmp_path / "log.csv", two_by_two())])
    assert job.report.format == "worker_log"
    steps = play(job).steps()
    assert [(row.rank, row.step) for row in steps] == [(0, 7), (1, 7), (2, 7), (3, 7)]
    for row in steps:
        assert row.replayed.span == pytest.approx(row.recorded.span, abs=1e-9)
        assert row.replayed.parts() == pytest.approx(row.recorded.parts(), abs=1e-9)
    # Rank 0: computes 1 + 2 + 0.5 s, and waits from 1.0 to 4.2 s and from 6.2 to 7.7 s.
    assert steps[0].replayed.exposed_compute == pytest.approx(3.5)
    assert steps[0].replayed.exposed_communication == pytest.approx(4.7)


def test_waits_come_from_the_run(tmp_path):
    """A forward of the first stage half a second longer moves everything after it by as much."""
    job = import_traces([write(tmp_path / "log.csv", two_by_two())])
    ops = job.graph.ops
    (row,) = (
        r
        for r in job.graph.template_rows(2)  # rank 2: replica 1's first stage
        if ops.name[r] == "forward-compute"
    )
    ops.recorded_ps[row] += 500_000_000_000
    assert [row.replayed.span for row in play(job).steps()] == pytest.approx([8.7] * 4)


def test_what_if(tmp_path):
    job = import_traces([write(tmp_path / "log.csv", two_by_two())])
    found = analyse_stragglers(job)
    assert found.t_actual_s == pytest.approx(8.2)
    assert found.t_simulated_s == pytest.approx(8.2)
    # Ideal forward (1 + 1 + 1 + 2) / 4 = 1.25 s: 1.25 + 0.1 + 1.25 + 2 + 0.1 + 2 + 0.5 + 0.5.
    assert found.t_ideal_s == pytest.approx(7.7)
    assert found.slowdown == pytest.approx(8.2 / 7.7)
    # Only stage 1 as it was: replica 1 has forwards of 1.25 and 2 s.  Only stage 0: 1 and 1.25 s.
    assert found.by_stage == pytest.approx({0: 7.45 / 7.7, 1: 8.45 / 7.7})
    # Only replica 0: it is faster than the ideal replica 1.  Only replica 1: 1 and 2 s.
    assert found.by_dp_rank == pytest.approx({0: 1.0, 1: 8.2 / 7.7})
    assert found.by_worker == pytest.approx({0: 7.45 / 7.7, 1: 1.0, 2: 7.45 / 7.7, 3: 8.2 / 7.7})
    assert found.by_optype["forward-compute"] == pytest.approx(8.2 / 7.7)
    assert found.by_optype["optimizer"] == pytest.approx(1.0)
    # Rank 3 mended: forwards of 1 and 1.25 s, 7.45 s; of 0.5 s lost 0.75 s come back.
    assert found.slowest_workers.workers == (3,)
    assert found.slowest_workers.t_fixed_s == pytest.approx(7.45)
    assert found.slowest_workers.explained == pytest.approx(1.5)
    # The last stage mended is the same: its other worker becomes slower, but is not the last.
    assert found.last_stage.workers == (1, 3)
    assert found.last_stage.t_fixed_s == pytest.approx(7.45)
    assert json.loads(json.dumps(found.as_object()))["by_stage"]["1"] == pytest.approx(8.45 / 7.7)


def test_delays_are_no_stragglers(tmp_path):
    """The optimizer starts 0.3 s late everywhere: a delay, without which the job is simulated."""
    rows = [
        (*row[:5], row[5] + 0.3, row[6] + 0.3, *row[7:]) if row[4] == "optimizer" else row
        for row in two_by_two()
    ]
    found = analyse_stragglers(import_traces([write(tmp_path / "log.csv", rows)]))
    assert found.t_actual_s == pytest.approx(8.5)
    assert found.t_simulated_s == pytest.approx(8.2)
    assert found.delay_slowdown == pytest.approx(8.5 / 8.2)


def interleaved(overlapped=False):
    """Two stages with two chunks each, one microbatch; calls that move nothing are logged too.

    Forwards 1 s, backwards 2 s, transfers 0.1 s: chunks of the model 0..3 lie on stages 0, 1, 0, 1.
    """
    forward = [(0.0, 1.0), (1.1, 2.1), (2.2, 3.2), (3.3, 4.3)]
    backward = [(10.6, 12.6), (8.5, 10.5), (6.4, 8.4), (4.3, 6.3)]
    rows = []
    for stage in (0, 1):
        place = (0, stage, stage, 0)
        for k, model_chunk in enumerate((stage, stage + 2)):
            start, end = forward[model_chunk]
            rows.append((*place, "forward-compute", start, end, k, k, 0, model_chunk))
            came = 0.0 if model_chunk == 0 else start
            posted = 0.0 if k == 0 else forward[model_chunk - 2][1]
            rows.append((*place, "forward-recv", posted, max(came, posted), k, -1, -1, -1))
            rows.append((*place, "forward-send", end, end + (0.1 if model_chunk < 3 else 0), k, -1, -1, -1))
        for k, model_chunk in enumerate((stage + 2, stage)):
            start, end = backward[model_chunk]
            rows.append((*place, "backward-compute", start, end, k, 1 - k, 0, model_chunk))
            posted = forward[stage + 2][1] if k == 0 else backward[stage + 2][1]
            rows.append((*place, "backward-recv", posted, start, k, -1, -1, -1))
            rows.append((*place, "backward-send", end, end + (0.1 if model_chunk else 0), k, -1, -1, -1))
        rows.append((*place, "optimizer", 12.6, 13.0, 0, -1, -1, -1))
    return rows


def test_model_chunks(tmp_path):
    """Chunk 1's forward a second longer moves all that follows, over both stages and back."""
    job = import_traces([write(tmp_path / "log.csv", interleaved())])
    assert job.report.refused_groups == ()
    assert job.report.coupled_collectives == 12  # six boundaries crossed, two ends each
    assert [row.replayed.span for row in play(job).steps()] == pytest.approx([13.0, 13.0])
    ops = job.graph.ops
    row = next(r for r in job.graph.template_rows(1) if ops.name[r] == "forward-compute")
    ops.recorded_ps[row] += 1_000_000_000_000
    # Rank 1's optimizer began 6.2 s after its last backward; that delay stays.
    assert [row.replayed.span for row in play(job).steps()] == pytest.approx([14.0, 14.0])


def overlapped():
    """One stage, two replicas, two chunks: gradients are reduced beside the backward that follows.

    Replica 1's backward of chunk 1 takes 3 s, not 2 s.  A reduce_scatter takes 0.5 s.
    """
    rows = []
    for dp, end in ((0, 4.0), (1, 5.0)):
        place = (dp, 0, dp, 3)
        rows += [
            (*place, "params-all-gather", 0.0, 0.2, 0, 0, -1, -1),
            (*place, "params-all-gather", 0.2, 0.4, 1, 1, -1, -1),
            (*place, "forward-compute", 0.2, 1.0, 0, 0, 0, 0),
            (*place, "forward-compute", 1.0, 2.0, 1, 1, 0, 1),
            (*place, "backward-compute", 2.0, end, 0, 1, 0, 1),
            (*place, "grads-reduce-scatter", end, 5.5, 0, 1, -1, -1),
            (*place, "backward-compute", end, end + 2, 1, 0, 0, 0),
            (*place, "grads-reduce-scatter", end + 2, 7.5, 1, 0, -1, -1),
            (*place, "gc", end + 2, end + 2, 0, -1, -1, -1),
            (*place, "layernorm-grads-all-reduce", 7.5, 7.6, 0, -1, -1, -1),
            (*place, "separate-grads-all-reduce", 7.6, 8.0, 0, -1, -1, -1),
            (*place, "optimizer-clip-main-grad", 8.0, 8.1, 0, -1, -1, -1),
            (*place, "optimizer", 8.1, 8.5, 0, -1, -1, -1),
        ]
    return rows


@pytest.mark.parametrize(
    ("name", "number", "more_s", "span_s"),
    [
        ("backward-compute", 0, 0.0, 8.5),
        ("backward-compute", 0, 1.0, 9.5),  # on the way
        ("grads-reduce-scatter", 0, 1.0, 8.5),  # chunk 1's ends at 6.5 s, chunk 0's starts at 7 s
        ("grads-reduce-scatter", 0, 2.0, 9.0),  # it ends at 7.5 s, half a second after chunk 0's could start
        ("params-all-gather", 1, 0.5, 8.5),  # chunk 1's ends at 0.9 s, its first forward starts at 1 s
        ("params-all-gather", 1, 1.0, 8.9),  # it ends at 1.4 s
    ],
)
def test_reductions_beside_backwards(tmp_path, name, number, more_s, span_s):
    """Replica 1's op of that name takes longer; a collective takes longer for both replicas."""
    job = import_traces([write(tmp_path / "log.csv", overlapped())])
    ops = job.graph.ops
    collective = name in ("grads-reduce-scatter", "params-all-gather")
    for rank in (0, 1) if collective else (1,):
        rows = [row for row in job.graph.template_rows(rank) if ops.name[row] == name]
        ops.recorded_ps[rows[number]] += round(more_s * 1e12)
    assert [row.replayed.span for row in play(job).steps()] == pytest.approx([span_s, span_s])


@pytest.mark.parametrize("seed", range(4))
def test_longest_paths_are_what_the_engine_plays(tmp_path, seed):
    """Any durations: the ends of all ops agree with the engine's to the picosecond."""
    rows = two_by_two() if seed % 2 else interleaved()
    job = import_traces([write(tmp_path / "log.csv", rows)])
    ops = job.graph.ops
    rng = np.random.default_rng(seed)
    by_recorded = {value: int(rng.integers(0, 10**12)) for value in sorted(set(ops.recorded_ps.tolist()))}
    ops.recorded_ps[:] = [by_recorded[value] for value in ops.recorded_ps.tolist()]
    result = simulate_job(job)
    played = np.concatenate([result.times_of(rank).end_ps for rank in range(len(job.ranks))])
    assert LongestPaths(job.graph).end_times(ops.recorded_ps[None, :])[0].tolist() == played.tolist()


def changed(index, **values):
    names = HEADER.split(",")

    def change(lines):
        cells = lines[index].split(",")
        for name, value in values.items():
            cells[names.index(name)] = value
        lines[index] = ",".join(cells)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines.__setitem__(0, lines[0].replace("seq_id", "seq")), "no column 'seq_id'.*'seq'"),
        (changed(3, duration="-1"), "row 3: duration -1.0 s is negative"),
        (changed(3, duration="1e9"), "row 3: ends 1.16e.04 days after the first start of step 7"),
        (changed(3, start_ts="1e8"), "row 3: ends 1.16e.03 days after"),
        (changed(2, start_ts="soon"), "line 3: start_ts is 'soon', no number"),
        (changed(2, stage="0.5"), "row 2: stage is 0.5, not a whole number"),
        (changed(2, optype="forward-compute"), "stands twice in step 7"),
        (lambda lines: lines.append(lines[4]), "row 25: backward-compute 0 of rank 0 stands twice in step 7"),
        (
            lambda lines: lines.append(lines[4].replace(",2.0,0,", ",2.0,1,")),  # renumbered
            "row 25: backward-compute 1 of rank 0 is another's copy .* in step 7",
        ),
        (lambda lines: lines.__delitem__(slice(19, None)), "no worker at dp_rank 1, stage 1"),
        (changed(4, rank="9"), "several ranks stand at one dp_rank and stage"),
        (changed(4, stage="1"), "rank 0 stands at several"),
        (lambda lines: lines.__delitem__(slice(1, None)), "has no rows"),
        (changed(4, step="8"), "rank 1 has no rows in step 8"),
    ],
)
def test_bad_logs(tmp_path, change, message):
    path = write(tmp_path / "log.csv", two_by_two())
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=message) as caught:
        import_traces([path])
    assert "log.csv" in str(caught.value)


def test_a_log_is_a_whole_job(tmp_path):
    paths = [write(tmp_path / name, two_by_two()) for name in ("a.csv", "b.csv")]
    with pytest.raises(InputError, match="each a log of a whole job"):
        import_traces(paths)


@pytest.mark.parametrize("name", ["trace-ST.parquet", "derived_trace-ST.csv.gz"])
def test_the_published_job(name):
    """Against the figures that the authors publish beside their trace."""
    if not (FOLDER / name).is_file():
        pytest.skip("the published trace is not at hand")
    job = import_traces([FOLDER / name])
    assert max(abs(row.error) for row in play(job).steps()) <= 0.015
    found = analyse_stragglers(job)
    theirs = json.loads((FOLDER / "result-ST.json").read_text())
    assert found.t_actual_s == pytest.approx(np.mean(list(theirs["step_t_base"].values())), rel=0.001)
    assert found.t_ideal_s == pytest.approx(np.mean(list(theirs["step_t_noblk"].values())), rel=0.03)
    assert found.slowdown == pytest.approx(theirs["blocking_slowdown"], rel=0.03)
    for ours, key in (("by_stage", "stage"), ("by_dp_rank", "dp_rank"), ("by_optype", "optype")):
        for part, value in getattr(found, ours).items():
            assert value == pytest.approx(theirs[f"blocking_decompose_by_{key}"][str(part)], rel=0.03)
    mended = json.loads((FOLDER / "ms-ST.json").read_text())
    assert found.last_stage.t_fixed_s == pytest.approx(mended["trem"], rel=0.03)
    assert found.last_stage.explained == pytest.approx(mended["Ms"], rel=0.03)
    mended = json.loads((FOLDER / "mw-ST.json").read_text())
    assert found.slowest_workers.t_fixed_s == pytest.approx(mended["trem"], rel=0.03)
    assert found.slowest_workers.explained == pytest.approx(mended["Mw"], rel=0.03)


def test_the_command_shows_them(tmp_path, capsys):
    path = write(tmp_path / "log.csv", two_by_two())
    assert simcore("replay", path, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["stragglers"]["slowdown"] == pytest.approx(8.2 / 7.7)
    assert simcore("replay", path) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1.0649" in text  # 8.2 / 7.7
    assert "150.0% of what stragglers cost" in text


def unlogged_meetings(early=()):
    """Three replicas of one stage, three steps: forward 1 s, on rank 2 5 s, backward 2 s, then the optimizer.

    All begin it 0.1 s after the last is ready, at 7.1 s: somebody meets there.  In steps of ``early`` rank 0
    begins it at 4 s, and meets nobody.
    """
    rows = []
    for step in range(3):
        for dp, forward in enumerate((1.0, 1.0, 5.0)):
            who = (dp, 0, dp, step)
            begins = 4.0 if step in early and not dp else 7.1
            rows += [
                (*who, "forward-compute", 0.0, forward, 0, 0, 0, 0),
                (*who, "backward-compute", forward, forward + 2, 0, 0, 0, 0),
                (*who, "optimizer", begins, begins + 0.5, 0, -1, -1, -1),
            ]
    return rows


def without_straggler(path, capsys):
    assert simcore("replay", path, "--json", "--edit", "straggler.2=remove") == 0
    result = json.loads(capsys.readouterr().out)
    (edit,) = result["edits"]
    return result, edit["step_time_before_s"], edit["step_time_after_s"]


def test_who_waits_for_a_straggler_unlogged_goes_on_without_it(tmp_path, capsys):
    result, before_s, after_s = without_straggler(write(tmp_path / "log.csv", unlogged_meetings()), capsys)
    # All are ready at 1 + 2, and 0.1 s of the gap stays.
    assert (before_s, after_s) == pytest.approx((7.6, 3.6))
    assert any(
        "3 times a group of workers meets unlogged" in text for text in result["import_report"]["inferred"]
    )
    # Without delays nobody gains by the meeting: forward and backward of rank 2, and the optimizer.
    assert result["stragglers"]["t_simulated_s"] == pytest.approx(7.5)


def test_a_gap_that_does_not_end_with_the_last_stays(tmp_path, capsys):
    path = write(tmp_path / "log.csv", unlogged_meetings(early=(1,)))
    result, before_s, after_s = without_straggler(path, capsys)
    # One step in three contradicts a meeting; ranks 0 and 1 then begin the optimizer 4.1 s after they could.
    assert (before_s, after_s) == pytest.approx((7.6, 7.6))
    assert not any("unlogged" in text for text in result["import_report"]["inferred"])
