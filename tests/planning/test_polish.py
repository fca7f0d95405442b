"""Polishing: what a framework can run beside the space, moved along one step at a time."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.plan.asking import asked
from simcore.apps.plan.command import plan
from simcore.planning.appraisal import Appraiser
from simcore.planning.polish import Polish, lines
from simcore.planning.search import Search
from simcore.planning.space import asked_axes, candidates

SMALL = ["model.layers=8", "training.seq=2048", "training.global_batch=32"]


def found(settings, search, **kwargs):
    asks = asked("llama3-8b", "h100-16", [*SMALL, *settings], **kwargs).question
    appraiser = Appraiser(asks)
    every = appraiser.appraised(list(candidates(asks.ground, asked_axes(search, asks.said))))
    search = Search([one for one in every if not one.reason], appraiser.bound_ps, gap=0.0)
    for one in search.jobs():
        search.learn(appraiser.simulated(one))
    simulated = []

    def simulate(some):
        for one in some:
            simulated.append(appraiser.simulated(one))
            yield simulated[-1]

    polished = Polish(appraiser, simulate, every, kept=asks.said).polished(search.ranked()[:1])
    return asks, appraiser, polished[0], simulated


def test_a_heavy_head_leaves_layers_to_others():
    # Llama-3's vocabulary makes the head as long as several of these layers: four even stages of two
    # layers wait for the last; with fewer there all others wait less.
    asks, appraiser, one, simulated = found(["parallel.pp=4", "parallel.tp=4"], "micro_batch=1")
    assert one.moves[0].what.startswith("stage_layers ")
    layers = asks.completed(one.best.settings).parallel.stage_layers
    assert layers[-1] < 2 and sum(layers) == 8
    # Megatron's inner stages are equal: only the ends have numbers of their own.
    assert len(set(layers[1:-1])) == 1
    # Each move is what it says, simulated as any other job, and counted from the one before.
    assert (
        one.best.step_s == appraiser.simulated(one.best.settings).step_s == min(s.step_s for s in simulated)
    )
    before = one.start.step_s
    for move in one.moves:
        assert (move.before_s, move.gain) == (before, 1 - move.step_s / before)
        assert move.gain > 0.001
        before = move.step_s
    assert one.best.bound_s <= one.best.step_s
    assert f"({-one.moves[0].gain:+.1%})" in lines([one], asks)[1]


def test_what_does_not_fit_is_tried_with_less_recomputed_than_all():
    # With everything recomputed it fits; with nothing it does not: a part of the layers is enough.
    memory = ["parallel.tp=2", "parallel.pp=2", "training.micro_batch=8", "training.global_batch=64"]
    asks = asked("llama3-8b", "h100-16", ["training.seq=8192", *memory]).question
    appraiser = Appraiser(asks)
    every = appraiser.appraised(list(candidates(asks.ground, asked_axes("recompute", asks.said))))
    kinds = {one.settings["training.recompute"]: one for one in every}
    assert kinds["none"].reason.startswith("out of memory") and not kinds["full"].reason
    search = Search([kinds["full"]], appraiser.bound_ps, gap=0.0)
    for settings in search.jobs():
        search.learn(appraiser.simulated(settings))
    (one,) = Polish(appraiser, lambda jobs: map(appraiser.simulated, jobs), every).polished(search.ranked())
    job = asks.completed(one.best.settings)
    assert any("recompute_" in move.what for move in one.moves) and one.best.step_s < one.start.step_s
    assert 0 < job.training.recompute_layers < 16 or job.training.recompute == "selective"
    assert one.best.appraised.peak_bytes <= asks.available_bytes


@pytest.mark.parametrize(
    ("framework", "said", "moved"),
    [
        # Megatron deals layers to its ends, any framework may leave out what it overlaps.
        ("megatron-core", [], {"stage_layers", "recompute_layers", "order", "buckets"}),
        ("torchtitan-fsdp2", [], {"stage_layers"}),
        ("deepspeed", [], set()),
        # What the job says is kept.
        ("megatron-core", ["parallel.order=tp-cp-ep-dp-pp", "training.bucket_parameters=-1"],
         {"stage_layers", "recompute_layers"}),
    ],
)  # fmt: skip
def test_only_what_the_framework_has_and_the_job_leaves_open_is_moved(framework, said, moved):
    asks = asked("llama3-8b", "h100-16", [*SMALL, *said], framework=framework).question
    settings = {"parallel.tp": "2", "parallel.pp": "2", "training.recompute": "full"}
    polish = Polish(Appraiser(asks), lambda _: [], [], kept=asks.said)
    kinds = {what.split()[0] for what, one in polish._named(settings)
             if asks.completed(one) != asks.completed(settings)}  # fmt: skip
    assert kinds & {"stage_layers", "recompute_layers", "order", "buckets"} == moved


def test_a_plan_says_what_polishing_gained_and_keeps_its_certificate(tmp_path, capsys):
    ask = {"cluster": "h100-16", "settings": [*SMALL, "parallel.pp=4", "parallel.tp=4",
           "training.micro_batch=1"], "out": tmp_path, "as_json": True}  # fmt: skip
    plan("llama3-8b", **ask)
    told = json.loads(capsys.readouterr().out)
    first = told["polished"][0]
    assert told["best"]["settings"] == first["settings"]
    assert told["best"]["step_time_s"] == first["step_time_s"] < first["start_step_time_s"]
    assert f"{first['step_time_s']:.4g} s a step" in (tmp_path / "best" / "1.yaml").read_text()
    plan("llama3-8b", **ask, polish=False)
    plain = json.loads(capsys.readouterr().out)
    assert plain["polished"] == []
    assert plain["unpolished"] == "as asked" and told["unpolished"] == ""
    assert plain["best"]["step_time_s"] == first["start_step_time_s"]
    assert plain["certificate"] == told["certificate"]


def test_with_search_the_best_are_polished_only_when_asked(tmp_path, capsys):
    ask = {"cluster": "h100-16", "settings": [*SMALL, "parallel.pp=4", "parallel.tp=4"], "out": tmp_path}
    plan("llama3-8b", **ask, search="micro_batch=1:2")
    assert "not polished: --search says all that changes" in " ".join(capsys.readouterr().out.split())
    plan("llama3-8b", **ask, search="micro_batch=1:2,buckets=-1", polish=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["unpolished"] == "" and told["polished"][0]["moves"]
    # What is searched with values of its own is not moved beyond them.
    assert {one["settings"]["training.bucket_parameters"] for one in told["polished"]} == {"-1"}


def test_recomputation_that_the_job_says_is_kept():
    memory = ["parallel.tp=2", "training.micro_batch=8", "training.global_batch=64", "training.seq=8192"]
    asks = asked("llama3-8b", "h100-16", [*memory, "training.recompute=none"]).question
    appraiser = Appraiser(asks)
    every = appraiser.appraised(list(candidates(asks.ground, asked_axes("pp", asks.said))))
    assert any(one.reason.startswith("out of memory") for one in every)
    polish = Polish(appraiser, lambda _: [], every, kept=asks.said)
    assert not any("training.recompute" in moved for _, moved in polish._named({"parallel.pp": "1"}))


LEAVES = ["cluster.nodes_per_leaf=2", "cluster.spine_oversubscription=8", "parallel.tp=8", "parallel.pp=2"]


def test_placements_are_moves_and_run_as_they_would_by_themselves(tmp_path):
    """Four nodes under two leaves: data parallelism meets in nodes 0 and 1, the pipeline across."""

    def told(*words):
        done = CliRunner().invoke(app, [*map(str, words), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    job = [f"--set={one}" for one in (*SMALL, *LEAVES)]
    searched = ["--search", "placement,micro_batch=1", "--gap", 0, "--out", tmp_path / "plan"]
    found = told("plan", "llama3-8b", "--cluster", "h100-32", *job, *searched)
    # As it is, dealt to the nodes, dealt to the leaves: the first node of each, then the second.
    assert found["num_candidates"] == 3
    first, second = found["candidates"]
    assert "cluster.placement" not in first["settings"]
    assert second["settings"]["cluster.placement"] == "nodes:0,2,1,3"
    assert second["strategy"] == f"{first['strategy']} listed"
    for number, one in enumerate((first, second), start=1):
        run = told("run-sim", tmp_path / "plan" / "best" / f"{number}.yaml", "--out", tmp_path / f"{number}")
        assert run["step_time_s"] == one["step_time_s"]


def test_a_placement_that_cannot_be_is_refused_with_its_reason():
    asks = asked("llama3-8b", "h100-16", SMALL).question
    (one,) = Appraiser(asks).appraised([{"cluster.placement": "round-robin"}])
    assert "did you mean 'round_robin'" in one.reason
    # One that somebody said is kept.
    given = asked("llama3-8b", "h100-16", [*SMALL, "cluster.placement=round_robin"]).question
    assert list(candidates(given.ground, asked_axes("placement", given.said))) == [{}]


def test_a_strategy_that_the_framework_does_not_run_is_told_with_the_reason(tmp_path, capsys):
    # torchtitan's configuration of Llama-3 8B has 32 layers, this model 8.
    plan("llama3-8b", cluster="h100-16", settings=SMALL, search="tp=2:4", framework="torchtitan-0.3",
         emit="torchtitan", out=tmp_path)  # fmt: skip
    told = capsys.readouterr().err
    assert "no launch file of torchtitan for number 1, 2: " in told
    why = (tmp_path / "best" / "1.torchtitan.txt").read_text()
    assert why.strip() in told
