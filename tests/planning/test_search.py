"""Best first: the winner is the true one, the certificate holds, what is done is not done again."""

from __future__ import annotations

import json
import sys
import time

import pyarrow.parquet as pq
import pytest
import typer
import yaml

from simcore.apps.bench.exact import SPACES, exact
from simcore.apps.plan import answer, planning
from simcore.apps.plan.asking import asked, checked_limits
from simcore.apps.plan.command import plan
from simcore.apps.plan.files import job_content
from simcore.apps.plan.tornado import neighbours
from simcore.errors import InfeasibleError, InputError
from simcore.planning.appraisal import Appraised, Simulated
from simcore.planning.search import Search
from workloads.jobs import complete

JOB = ["model.layers=4", "training.seq=2048", "training.global_batch=32"]


def made(steps, rough, close, **kwargs):
    """A search over candidates with these bounds; ``simulate`` runs it to its end."""
    settings = [{"n": str(number)} for number in range(len(steps))]
    listed = [Appraised(one, "", 1, int(low * 1e12)) for one, low in zip(settings, rough, strict=True)]
    search = Search(listed, lambda one: int(close[int(one["n"])] * 1e12), **kwargs)
    order = []
    for one in search.jobs():
        order.append(int(one["n"]))
        search.learn(Simulated(one, steps[int(one["n"])]))
    return search, order


def test_only_what_could_be_faster_is_simulated():
    # By close bounds: 2 (0.95 s) takes 1.2 s; 0 could take 1.0 s and takes 1.1 s; 1 (1.9 s) cannot be faster.
    search, order = made([1.1, 2.0, 1.2], [0.9, 0.8, 0.9], [1.0, 1.9, 0.95], gap=0.0)
    assert order == [2, 0]
    assert search.best.settings == {"n": "0"}
    found = search.certificate()
    assert (found.lower_bound_s, found.gap, found.exhaustive) == (1.1, 0.0, True)


def test_a_gap_spares_simulations_and_is_stated():
    # 0 takes 1.0 s; 1 could take 0.99 s, which is within 2%.
    search, order = made([1.0, 1.5], [0.97, 0.5], [0.98, 0.99], gap=0.02)
    assert order == [0]
    assert search.certificate().gap == pytest.approx(0.01)
    assert search.certificate().exhaustive
    assert search.num_below() == 0


def test_what_cannot_be_simulated_leaves_the_question_to_the_others():
    listed = [Appraised({"n": str(k)}, "", 1, 10**12) for k in range(2)]
    search = Search(listed, lambda _: 10**12, gap=0.0)
    jobs = search.jobs()
    search.learn(Simulated(next(jobs), 0.0, "a hang"))
    search.learn(Simulated(next(jobs), 2.0))
    assert next(jobs, None) is None
    assert [trial.reason for trial in search.trials].count("a hang") == 1
    assert search.certificate().gap == 0.0


def test_a_spent_budget_states_the_gap_that_remains():
    listed = [Appraised({"n": str(k)}, "", 1, (k + 1) * 10**11) for k in range(3)]
    search = Search(listed, lambda one: (int(one["n"]) + 1) * 10**11, gap=0.0, until=time.monotonic() + 60)
    search.learn(Simulated(next(search.jobs()), 1.0))
    found = search.certificate()
    # The others take at least 0.2 s where the best takes 1 s.
    assert (found.lower_bound_s, found.exhaustive) == (0.2, False)
    assert found.gap == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["dense", "fsdp", "experts", "fine"])
def test_the_winner_of_a_space_simulated_whole_is_the_winner(name):
    # Of ten spaces (bench.py plan --exact) those that simulate the fastest.
    found = exact(SPACES[name])
    assert found.found_s == found.best_s
    assert found.num_with_gap <= found.num_simulated < found.num_candidates
    assert found.lower_bound_s <= found.best_s <= found.with_gap_s <= found.best_s / (1 - found.gap)
    assert found.bounds_hold
    assert found.holds


def test_a_plan_is_told_written_and_gone_on_with(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = {"cluster": "h100-16", "search": "tp=1:2,pp=1:2", "settings": JOB, "as_json": True}
    plan("llama3-8b", **ask)
    found = json.loads(capsys.readouterr().out)
    assert found["num_candidates"] == 4
    assert found["best"]["step_time_s"] == min(one["step_time_s"] for one in found["candidates"])
    assert found["certificate"]["lower_bound_s"] <= found["best"]["step_time_s"]
    assert found["certificate"]["gap"] <= 0.02
    assert found["certificate"]["exhaustive"]
    folder = tmp_path / "plans" / "llama3-8b-h100-16"
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert len(rows) == 4
    assert sum(row["step_time_s"] is not None for row in rows) == found["num_simulated"]
    assert all(row["bound_s"] <= (row["step_time_s"] or row["bound_s"]) for row in rows)
    lines = (folder / "simulations.jsonl").read_text().splitlines()
    # Half a line of one that was killed is no line; nothing is simulated twice.
    (folder / "simulations.jsonl").write_text("\n".join(lines) + '\n{"key": "12')
    plan("llama3-8b", **ask)
    again = json.loads(capsys.readouterr().out)
    assert again["best"] == found["best"]
    assert len((folder / "simulations.jsonl").read_text().splitlines()) == len(lines) + 1
    best = found["best"]
    assert best["band"]["low_s"] < best["step_time_s"] < best["band"]["high_s"]
    assert sum(best["breakdown_s"].values()) == pytest.approx(best["step_time_s"])
    assert best["headroom_bytes"] > 0
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # not installed: no picture, all else
    # People read the same in 80 columns, with strategies in full.
    plan("llama3-8b", **{**ask, "as_json": False, "prices": "aws"})
    out, err = capsys.readouterr()
    assert "no plan.png: plots need matplotlib" in err
    assert "plan.png" not in out
    told = out.splitlines()
    assert f" 1 {best['strategy']}" in told
    assert all(len(line) <= 80 for line in told[:-1])
    # 16 GPUs at 6.88 USD an hour; 32 samples of 2,048 tokens a step.
    cost = 16 * 6.88 / 3600 * best["step_time_s"] / (32 * 2048 / 1e6)
    assert told[told.index(f" 1 {best['strategy']}") + 1].split()[-1] == f"{cost:.4g}"


def test_files_of_the_best_are_the_job_that_was_simulated():
    asks = asked("llama3-8b", "h100-16", JOB).question
    done = asks.completed({"parallel.tp": "2", "parallel.pp": "2", "training.sharding": "zero1"})
    content = yaml.safe_load(yaml.safe_dump(job_content(done, "h100-16", {})))
    assert content.pop("cluster") == "h100-16"
    again = complete(content, "a file", num_gpus=16, generation="hopper")
    assert (again.model, again.parallel, again.training) == (done.model, done.parallel, done.training)
    assert again.software == done.software


def test_nothing_that_fits_is_infeasible(tmp_path, capsys):
    with pytest.raises(InfeasibleError, match="no candidate is legal and fits"):
        plan("llama3-70b", cluster="h100-8", search="tp=8", global_batch=8, seq=2048, out=tmp_path / "plan")
    assert "out of memory" in capsys.readouterr().out


def test_marked_strategies_beyond_the_best_are_told_and_written_too(tmp_path, capsys, monkeypatch):
    """Of a list of one, the slow job as it was given stands outside, with a file of its own."""
    monkeypatch.setattr(answer, "_BEST", 1)
    slow = [*JOB, "parallel.tp=8"]
    searched = {"search": "tp=1:2:8", "gap": 0.0, "settings": slow, "out": tmp_path / "plan"}
    plan("llama3-8b", cluster="h100-16", **searched)
    shown = capsys.readouterr().out
    assert "=: the job as it is by default" in shown
    assert {path.name for path in (tmp_path / "plan" / "best").iterdir()} >= {"1.yaml", "2.yaml"}


def test_an_interrupt_leaves_what_is_done_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    done = Search.learn

    def interrupted(self, found):
        done(self, found)
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "learn", interrupted)
    ask = {"cluster": "h100-16", "search": "tp=1:2:4,pp=1:2", "settings": JOB, "out": tmp_path, "gap": 0.0}
    with pytest.raises(typer.Exit) as ended:
        plan("llama3-8b", **ask)
    assert ended.value.exit_code == 130
    assert "ask again to go on" in capsys.readouterr().err
    monkeypatch.undo()
    before = (tmp_path / "simulations.jsonl").read_text()
    assert len(before.splitlines()) >= 1
    plan("llama3-8b", **ask)
    assert (tmp_path / "simulations.jsonl").read_text().startswith(before)


@pytest.mark.parametrize(
    ("gap", "budget", "spare", "named"),
    [(-0.1, 1, 0, "gap"), (1, 1, 0, "gap"), (0.1, 0, 0, "budget"), (0.1, 1, 1, "spare")],
)
def test_limits_that_cannot_be_are_refused(gap, budget, spare, named):
    with pytest.raises(InputError, match=named):
        checked_limits(gap, budget, spare)


def test_spaces_that_nobody_waits_for_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "_MOST", 100)
    with pytest.raises(InputError, match="more than 100 candidates; name fewer axes"):
        plan("llama3-8b", cluster="h100-16", search="all", settings=JOB, out=tmp_path)


def test_neighbours_differ_along_one_axis():
    best = {"parallel.tp": "2", "parallel.schedule": "1f1b", "parallel.virtual_stages": "2"}
    others = [
        {**best, "parallel.tp": "4"},
        {**best, "parallel.virtual_stages": "4"},  # one axis with the schedule
        {**best, "parallel.tp": "4", "parallel.virtual_stages": "4"},
        best,
    ]
    listed = Search([Appraised(one, "", 1, 1) for one in others], lambda _: 1, gap=0.0).trials
    assert [(axis, trial.settings) for axis, trial in neighbours(best, listed)] == [
        ("tp", others[0]), ("schedule", others[1]),
    ]  # fmt: skip


def test_memory_that_is_to_stay_free_is_taken_off():
    whole = asked("llama3-8b", "h100-16", JOB).question
    spared = asked("llama3-8b", "h100-16", JOB, spare=0.25).question
    assert spared.available_bytes == int(0.75 * whole.available_bytes)


def test_a_tornado_shakes_hardware_and_axes(tmp_path, capsys):
    plan(
        "llama3-8b",
        cluster="h100-16",
        search="tp=1:2",
        settings=JOB,
        out=tmp_path,
        tornado=True,
        as_json=True,
    )
    found = json.loads(capsys.readouterr().out)
    hardware = {row["what"]: row for row in found["sensitivity"]["hardware"]}
    best_s = found["best"]["step_time_s"]
    # More of a resource never slows the step; a slower clock does.
    assert all(
        row["step_time_s_more"] <= best_s * 1.001 for what, row in hardware.items() if "laten" not in what
        and "host" not in what
    )  # fmt: skip
    assert hardware["SM clock"]["step_time_s_less"] > 1.02 * best_s
    assert [one["axis"] for one in found["sensitivity"]["neighbours"]] == ["tp"]
