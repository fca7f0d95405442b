"""Plans of lists of blocks: a strategy for each class of layers, and where tables lie."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.plan.asking import asked
from simcore.errors import InputError
from simcore.planning.appraisal import Appraiser
from simcore.planning.search import Search
from simcore.planning.space import asked_axes, candidates
from simcore.units import s_from_ps

#: Two networks around tables of which one is asked for far more often than the others.
SMALL = {
    "model": {
        "name": "small",
        "blocks": [
            {"block": "features", "width": 13},
            {"block": "tables", "popularity": 1.05, "tables": [
                {"rows": 1000000, "dim": 128, "pooling": 40},
                *({"rows": 100000 * k, "dim": 128} for k in range(1, 8)),
            ]},
            {"block": "mlp", "widths": [2048, 2048, 128], "name": "bottom"},
            {"block": "dot"},
            {"block": "mlp", "widths": [4096, 4096, 512], "name": "top"},
            {"block": "click"},
        ],
    },
    "training": {"global_batch": 32768},
    "software": "torchrec",
}  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("jobs") / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return str(path)


def question(job: str, *settings: str, cluster: str = "h100-16"):
    return asked(job, cluster, settings).question


def test_classes_are_searched_on_two_levels_and_tables_where_they_are_dealt_out(job: str) -> None:
    # dense: ddp, fsdp, tp inside and between, 3 x 3; tables: copies on all, or dealt out over nodes, in nodes
    # or over all, each placed in one of 6 ways (4, and 2 of groups): 9 x (1 + 3 x 6).
    asks = question(job)
    axes = asked_axes("", asks.said, lists=True)
    found = list(candidates(asks.ground, axes))
    assert len(found) == 9 * (1 + 3 * 6)
    words = Counter(one["parallel.strategy.dense"] for one in found)
    assert set(words) == {
        '""', "fsdp", "tp", "ddp.fsdp", "ddp.tp", "fsdp.ddp", "fsdp.tp", "tp.ddp", "tp.fsdp",
    }  # fmt: skip
    copied = [one for one in found if one["parallel.strategy.embedding"] == "ddp"]
    assert all("parallel.strategy.tables" not in one for one in copied)
    # In one node there is one level, and no group to split rows inside of: 3 x (1 + 4).
    assert len(list(candidates(question(job, cluster="h100-8").ground, axes))) == 3 * (1 + 4)


def test_what_a_job_says_is_kept(job: str) -> None:
    asks = question(job, "strategy.dense=fsdp")
    axes = [axis.name for axis, _ in asked_axes("", asks.said, lists=True)]
    assert "dense" not in axes
    assert {"embedding", "tables"} <= set(axes)
    (only,) = candidates(asks.ground, asked_axes("dense=tp.ddp", asks.said, lists=True))
    assert asks.completed(only).parallel.strategy.dense == "tp.ddp"


def test_bounds_are_below_every_step_and_the_search_finds_the_fastest(job: str) -> None:
    asks = question(job)
    appraiser = Appraiser(asks)
    axes = asked_axes("dense,tables=auto:row_wise", asks.said, lists=True)
    every = [one for one in appraiser.appraised(list(candidates(asks.ground, axes))) if not one.reason]
    steps = {str(one.settings): appraiser.simulated(one.settings).step_s for one in every}
    assert len(every) == 9 * 2
    for one in every:
        step_s = steps[str(one.settings)]
        close_s = s_from_ps(appraiser.bound_ps(one.settings))
        assert 0 < s_from_ps(one.rough_ps) <= step_s, one.settings
        assert 0.6 * step_s < close_s <= step_s, one.settings
    search = Search(every, appraiser.bound_ps, gap=0.0)
    for settings in search.jobs():
        search.learn(appraiser.simulated(settings))
    assert search.best is not None
    assert search.best.step_s == min(steps.values())
    assert search.num_simulated < len(every) / 2


def test_a_plan_is_asked_as_of_any_model(job: str, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        found = CliRunner().invoke(app, [*words])
        assert found.exit_code == 0, found.output
        return found.stdout

    words = ("plan", job, "--cluster", "h100-16", "--search", "dense", "--out", str(tmp_path / "plan"))
    found = json.loads(run(*words, "--json"))
    assert found["certificate"]["exhaustive"]
    assert found["best"]["step_time_s"] <= found["default"]["step_time_s"]
    best = str(tmp_path / "plan" / "best" / "1.yaml")
    again = json.loads(run("run-sim", best, "--json", "--no-perfetto", "--out", str(tmp_path / "run")))
    assert again["step_time_s"] == pytest.approx(found["best"]["step_time_s"])
    said = run(*words)
    assert "smp/s/GPU" in said
    assert "not polished: " in said


def test_axes_of_transformers_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown axis 'tp' of lists of blocks.*dense, transformer"):
        asked_axes("tp", (), lists=True)
    with pytest.raises(InputError, match="dens"):
        asked_axes("dens", (), lists=True)
