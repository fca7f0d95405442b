"""Jobs on a real Ray cluster of two nodes of this machine, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from contextlib import closing

import pyarrow.parquet as pq
import pytest
import yaml

ray = pytest.importorskip("ray", reason="pip install ray for these")

from ray.cluster_utils import Cluster  # noqa: E402

from simcore.apps.plan.command import plan  # noqa: E402
from simcore.apps.run.identity import outcome_version  # noqa: E402
from simcore.apps.run.outcome import outcomes  # noqa: E402
from simcore.apps.store import Store  # noqa: E402
from simcore.apps.sweep.command import sweep  # noqa: E402
from simcore.apps.workers import chosen_workers  # noqa: E402
from simcore.errors import InputError  # noqa: E402

JOB = {
    "model": {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}, "cluster": "h100-8",
    "training": {"seq": 128, "global_batch": 8, "micro_batch": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with a CPU each, of which the second may be killed; the address is in the environment."""
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    found.add_node(num_cpus=1)
    yield found
    found.shutdown()


@pytest.fixture
def workers(cluster):
    with chosen_workers(cluster.address, outcome_version) as found:
        yield found


def test_jobs_that_die_hang_or_end_their_process_are_told(workers):
    def work(job):
        acts = {
            2: lambda: os._exit(7),
            4: lambda: time.sleep(60),
            5: lambda: os.kill(os.getpid(), signal.SIGKILL),
        }
        acts.get(job, lambda: None)()
        return job, "done"

    with closing(workers.each(work, range(8), str, lost=lambda job, how: (job, how), limit_s=2.0)) as found:
        results = dict(found)
    assert [results[job] for job in (0, 1, 3, 6, 7)] == ["done"] * 5
    assert results[2] == results[5] == "as its process died"
    assert results[4] == "after 2 s"


def test_a_job_that_ends_its_process_twice_is_named(workers):
    def work(job):
        os._exit(1)

    with pytest.raises(InputError, match="the 3: ended twice"):
        list(workers.each(work, [3], lambda job: f"the {job}"))


def test_a_node_with_another_version_is_refused(cluster):
    driver = os.getpid()

    def version():
        return "this" if os.getpid() == driver else "another"

    with (
        chosen_workers(cluster.address, version) as other,
        pytest.raises(InputError, match="has another version of stepsim"),
    ):
        list(other.each(str, [1], str))


def test_what_the_best_excludes_is_left_out(workers):
    incumbent = workers.incumbent(0.1, 2.0)

    def work(bound_s):
        incumbent.learn(1.0)
        return incumbent.excludes(bound_s)

    assert not incumbent.excludes(1.5)
    # None of 0.9 s or more is faster than 1 s by more than a tenth.
    assert list(workers.each(work, [0.95], str)) == [True]
    assert incumbent.excludes(0.9)
    assert not incumbent.excludes(0.89)


def test_a_plan_is_that_of_one_machine(cluster, tmp_path, capsys):
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(JOB))
    found = []
    for where in (cluster.address, None):
        plan(
            str(job), search="tp=1:2,pp=1:2", gap=0.0, ray=where, out=tmp_path / f"{where}"[:4], as_json=True
        )
        found.append(json.loads(capsys.readouterr().out))
    on_ray, here = found
    assert on_ray["best"]["settings"] == here["best"]["settings"]
    assert on_ray["best"]["step_time_s"] == here["best"]["step_time_s"]
    assert on_ray["certificate"]["gap"] == here["certificate"]["gap"] == 0.0


def test_a_node_that_is_killed_costs_nothing_and_nothing_is_done_twice(
    cluster, tmp_path, capsys, monkeypatch
):
    spec = tmp_path / "spec.yaml"
    grid = {"training.global_batch": [8, 16, 24, 32, 40, 48], "parallel.tp": [1, 2]}
    spec.write_text(yaml.safe_dump({**JOB, "grid": grid}))
    real, noted = Store.put, []

    def put(self, key, result):
        real(self, key, result)
        noted.append(key)
        if len(noted) == 4:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    monkeypatch.setattr(Store, "put", put)
    sweep(spec, out=tmp_path / "ray", ray=cluster.address, as_json=True)
    told = json.loads(capsys.readouterr().out)
    monkeypatch.undo()
    assert len(cluster.worker_nodes) == 0
    assert (told["num_done"], told["num_simulated"]) == (12, 12)
    lines = (tmp_path / "ray" / "simulations.jsonl").read_text().splitlines()
    assert set(Counter(json.loads(line)["key"] for line in lines).values()) == {1}
    assert len(outcomes(tmp_path / "ray" / "simulations.jsonl")) == 12
    sweep(spec, out=tmp_path / "here", as_json=True)
    rows = [pq.read_table(tmp_path / name / "cases.parquet").to_pylist() for name in ("ray", "here")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:9", "127.0.0.1:99999999"])
def test_an_address_where_nobody_answers_is_refused(address):
    with pytest.raises(InputError, match="--ray"), chosen_workers(address, outcome_version):
        pass
