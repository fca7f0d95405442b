"""What is remembered from job to job does not grow with their number."""

import gc
import os
from pathlib import Path

from simcore.collectives import NcclPlanner
from simcore.hardware import load_cluster, load_gpu
from simcore.run import run
from tests.engine.twelve_jobs import described

PROFILES = Path(__file__).parents[2] / "hardware_profiles"


def test_plans_of_former_jobs_are_forgotten_once_they_are_many(monkeypatch):
    monkeypatch.setattr("simcore.run._KEPT_RANKS", 8)
    cluster = load_cluster("h100-8")
    planned = []
    for batch in (8, 16, 24):
        run(described({"tp": 2, "dp": 4}, batch, model=small(batch)).graph, cluster)
        gc.collect()
        planned.append(sum(it.num_planned_ranks for it in gc.get_objects() if isinstance(it, NcclPlanner)))
    assert planned[0] == planned[1] == planned[2] > 8


def small(batch):
    """A model whose messages have sizes of their own."""
    return {
        "name": "small", "family": "llama", "layers": 2, "hidden": 64 * batch, "heads": 8, "ffn": 1024,
        "vocab": 32000,
    }  # fmt: skip


def test_a_die_of_the_users_own_is_read_again_when_its_file_changes(tmp_path):
    die = (PROFILES / "die" / "gh100.toml").read_text()
    gpu = (PROFILES / "gpu" / "h100-sxm.toml").read_text()
    (tmp_path / "mine.toml").write_text(gpu.replace('die = "gh100"', 'die = "own.toml"'))
    clocks = []
    for clock in ("0.835", "0.7"):
        (tmp_path / "own.toml").write_text(die.replace("value = 0.835", f"value = {clock}"))
        sustained = load_gpu(os.fspath(tmp_path / "mine.toml")).sustained
        clocks.append(sustained.clock)
    assert clocks == [0.835, 0.7]


def test_jobs_of_one_cluster_share_prices_and_others_do_not():
    graph = described({"tp": 2, "dp": 4}, 8, model=small(8)).graph
    cluster = load_cluster("h100-8")
    slower = load_cluster("h100-8", {"gpu.clock": "0.5"})
    first, again, apart = (
        run(graph, one).result.step_ps for one in (cluster, load_cluster("h100-8"), slower)
    )
    assert first == again < apart
