"""The learned slowdown: its trees, its file, what the engine does with it, how it is asked for."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.engine.shortcuts import SHORTCUTS, simulate
from simcore.errors import InputError
from simcore.interference import FEATURES, LearnedInterference, Neighbours, features, load_interference
from simcore.interference.train import TrainingRow, train, without_kernels, without_trace
from simcore.interference.trees import RegressionTree
from tests.commands import simcore
from tests.engine.lab import US, C, K, TableCost, TablePlanner, cluster, end_us, single
from tests.imports.traces import launched, step, write


def constant(slowdown, num_sms=(132,)):
    leaf = RegressionTree((-1,), (0.0,), (0,), (0,), (False,), (0.0,))
    return LearnedInterference(math.log(slowdown), (leaf,), num_sms, "by hand", 1)


def run(graph, kernels, transfers, learned, *, shortcuts=SHORTCUTS):
    topology = cluster()
    planner = TablePlanner(transfers, topology)
    return simulate(graph, topology, TableCost(kernels), planner, learned=learned, shortcuts=shortcuts)


def beside():
    build = single()
    template = build.template("fwd")
    template.collective("all_reduce", "self", 1, stream="comm")
    template.compute("kernel")
    template.compute("kernel")
    build.program([0], [(template, 0, 0)])
    return build.build()


def test_features_of_a_kernel():
    # 264 blocks, 1 per SM: 2 waves on 132 SMs, 264 / 116 -> 3 on what 16 channels leave.
    found = features(
        sm_ps=90.0 * US, hbm_ps=45.0 * US, fixed_ps=10.0 * US, blocks=264, blocks_per_sm=1, num_sms=132,
        beside=Neighbours(16, True),
    )  # fmt: skip
    assert dict(zip(FEATURES, found, strict=True)) == {
        "alone_us": 100.0, "blocks": 264.0, "blocks_per_sm": 1.0, "waves": 2.0, "sm_share": 0.9,
        "hbm_share": 0.45, "num_sms": 132.0, "comm_sms": 16.0, "comm_share": 16 / 132, "waves_beside": 1.5,
        "comm_exchanges": 1.0,
    }  # fmt: skip
    unknown = features(
        sm_ps=1.0,
        hbm_ps=0.0,
        fixed_ps=0.0,
        blocks=0,
        blocks_per_sm=1,
        num_sms=132,
        beside=Neighbours(1, False),
    )
    assert all(math.isnan(unknown[FEATURES.index(name)]) for name in ("blocks", "waves", "waves_beside"))


def test_a_kernel_beside_communication_is_stretched_by_what_was_learned():
    # 100 us each, the transfer holds SMs for 120 us: the first kernel takes 150.  From 120 us on nobody
    # communicates: 80 us of it are done by then (120 / 1.5), 20 are left: ends at 140, the second at 240.
    kernels, transfers = {"kernel": K(100)}, {1: C(120, 16)}
    result = run(beside(), kernels, transfers, constant(1.5))
    assert [end_us(result, op) for op in (0, 1, 2)] == [120.0, 140.0, 240.0]
    for_itself = run(beside(), kernels, transfers, constant(1.5), shortcuts=())
    np.testing.assert_array_equal(result.times[0].end_ps, for_itself.times[0].end_ps)
    assert not result.warnings


def test_alone_nothing_is_stretched():
    build = single()
    template = build.template("fwd")
    template.compute("kernel")
    build.program([0], [(template, 0, 0)])
    assert end_us(run(build.build(), {"kernel": K(100)}, {}, constant(3.0)), 0) == 100.0
    without_sms = run(beside(), {"kernel": K(100)}, {1: C(500, 0)}, constant(3.0))  # a copy-engine transfer
    assert end_us(without_sms, 2) == 200.0


def test_a_gpu_that_was_never_seen_shares_resources_and_says_so():
    kernels, transfers = {"kernel": K(100)}, {1: C(1000, 12)}
    result = run(beside(), kernels, transfers, constant(1.5, num_sms=(80, 108)))
    assert end_us(result, 2) == pytest.approx(200 * 132 / 120, abs=1e-6)
    (warning,) = result.warnings
    assert "no GPU of 132 SMs (only 80, 108)" in warning


def test_slowdown_is_never_below_one():
    assert constant(0.5).of_features([1.0] * len(FEATURES)) == 1.0
    nobody = Neighbours(0, False)
    kernel = {"sm_ps": 1.0, "hbm_ps": 0.0, "fixed_ps": 0.0, "blocks": 0, "blocks_per_sm": 1, "num_sms": 132}
    assert constant(2.0).slowdown(**kernel, beside=nobody) == 1.0


def test_a_tree_sends_missing_values_where_it_learned_to():
    # alone_us <= 5: 1; else 2; missing to the left or right.
    for left, expected in ((True, 1.0), (False, 2.0)):
        tree = RegressionTree(
            (0, -1, -1), (5.0, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (left, False, False), (0.0, 1.0, 2.0)
        )
        assert [tree.predict([value]) for value in (5.0, 5.1, math.nan)] == [1.0, 2.0, expected]


def test_the_file_says_what_was_learned(tmp_path):
    path = tmp_path / "model.json"
    constant(1.5).write(path)
    found = load_interference(path)
    assert found == constant(1.5)
    assert found.of_features([0.0] * len(FEATURES)) == pytest.approx(1.5)


def test_the_model_of_the_project_covers_a100_and_v100():
    model = load_interference()
    assert model.covers(108)
    assert model.covers(80)
    assert model.num_rows > 1000


#: A model of one leaf, which says that nothing slows.
LEAF = {
    "format": "stepsim-interference-1", "features": list(FEATURES), "num_sms": [1], "base": 0.0, "trees": [
        {"feature": [-1], "threshold": [0], "left": [0], "right": [0], "missing_left": [False],
         "value": [0.0]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 2000, "64 levels"),
        ("[]", "no learned interference"),
        (json.dumps({**LEAF, "features": ["x"]}), "other features"),
        (json.dumps({**LEAF, "trees": [{}]}), "a tree needs"),
        (json.dumps({**LEAF, "num_rows": "[bold]x[/]"}), "num_rows the number of measurements"),
        (json.dumps({**LEAF, "base": True}), "base must be a number"),
        (json.dumps({**LEAF, "base": 1e300}), "more than a million times"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, content, reason):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(LEAF))
    assert load_interference(path).of_features([0.0] * len(FEATURES)) == 1.0
    path.write_text(content)
    with pytest.raises(InputError, match=reason):
        load_interference(path)


def test_a_tree_that_would_never_end_is_refused():
    with pytest.raises(InputError, match="no later node"):
        RegressionTree((0, -1), (1.0, 0.0), (0, 0), (1, 0), (False, False), (0.0, 0.0))


def test_the_command_line_refuses_other_words():
    for arguments in (
        ["run-sim", "--interference", "lerned"],
        ["run-sim", "--interference", "learned:none.json"],
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
    assert "learned" in CliRunner().invoke(app, ["run-sim", "--interference", "lerned"]).output


def rows():
    """Slowdown 2 below 50 us, 1.25 above, missing grids for a third; two traces, three kernels."""
    found = []
    for i in range(240):
        alone = 10.0 + i / 2
        row = [alone, math.nan if i % 3 == 0 else 100.0, 1.0, 1.0, 1.0, 0.5, 108.0, 24.0, 0.2, 1.0, 0.0]
        trace, kernel = f"trace {i % 2}", f"kernel {i % 3}"
        found.append(TrainingRow(trace, kernel, tuple(row), 2.0 if alone < 50 else 1.25))
    return found


def test_training_finds_a_step_and_evaluates_as_the_library_does():
    ensemble = pytest.importorskip("sklearn.ensemble")
    model = train(rows(), "by hand")
    assert model.num_sms == (108,)
    for row in rows():
        assert model.of_features(row.features) == pytest.approx(row.slowdown, rel=0.03)
    del ensemble


def test_cross_validation_leaves_out_what_it_says():
    pytest.importorskip("sklearn")
    assert without_trace(rows(), "trace 0").num_rows == 120
    models = without_kernels(rows())
    assert {name: model.num_rows for name, model in models.items()} == dict.fromkeys(models, 160)


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="too few"):
        train(rows()[:5], "by hand")


def overlapping_steps(path, num_steps=30):
    """Two kernels a step: alone in even steps, twice as long beside 24 blocks of all_reduce in odd ones."""
    grid = {"grid": [216, 1, 1], "block": [256, 1, 1], "registers per thread": 128}
    nccl = {"grid": [24, 1, 1], "block": [640, 1, 1], "registers per thread": 96}
    events, corr = [], 0
    for number in range(num_steps):
        at, beside = 2000 * number, number % 2
        events.append(step(number, at, 1900))
        if beside:
            corr += 1
            events += launched("ncclKernel_AllReduce", at + 5, at + 10, 1000, corr=corr, stream=20, **nccl)
        for place, name in enumerate(("sgemm", "softmax")):
            corr += 1
            start, length = at + 100 + 300 * place, 100 * (1 + beside)
            events += launched(name, at + 10 + place * 3, start, length, corr=corr, **grid)
    device = [{"name": "NVIDIA A100-SXM4-80GB", "numSms": 108}]
    return write(path, events, distributedInfo={"rank": 0, "world_size": 2}, deviceProperties=device)


def test_learning_from_a_trace_and_using_it(tmp_path, capsys):
    pytest.importorskip("sklearn")
    path, model = overlapping_steps(tmp_path / "t.json"), tmp_path / "m.json"
    few = [str(overlapping_steps(tmp_path / "few.json", 4)), "--out", str(model)]
    assert simcore("calibrate", "--interference", *few) == 2
    assert "too few" in capsys.readouterr().err
    assert simcore("calibrate", "--interference", path, path, "--out", model) == 0
    assert "from 60 kernels" in capsys.readouterr().out
    learned = load_interference(model)
    assert learned.num_sms == (108,)
    replay = ["replay", str(path), "--level", "communication", "--json", "--interference"]
    done = CliRunner().invoke(app, [*replay, f"learned:{model}"])
    assert done.exit_code == 0
    assert simcore("contention-study", path, "--learned", model, "--json") == 0
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    for row in trace["rows"]:
        assert row["learned_us"]["learned"] == pytest.approx(200, rel=0.05)  # recorded: twice 100 us


def test_a_replay_of_recorded_durations_takes_no_interference(tmp_path):
    path = overlapping_steps(tmp_path / "t.json", 2)
    done = CliRunner().invoke(app, ["replay", str(path), "--interference", "learned"])
    assert done.exit_code == 2
