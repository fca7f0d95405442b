"""Jobs that are too large are refused before memory or time are spent on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.errors import GraphError, InputError
from simcore.graph import ProcessGroup, load_graph, save_graph, verify
from simcore.graph.ops import OpRows
from simcore.graph.schedules import SCHEDULES
from simcore.graph.size import refuse_too_large
from simcore.hardware import load_cluster
from simcore.run import run
from tests.graph.examples import data_parallel
from workloads.jobs import complete

_MODEL = {"layers": 4096, "hidden": 64, "heads": 4, "ffn": 64, "vocab": 64}


def test_what_is_needed_is_told(monkeypatch):
    monkeypatch.setenv("SIMCORE_LIMITS", "memory=2GiB")
    # 6,000 bytes a rank and 160 an op: 6e9 + 1.6e9 bytes are 7.078 GiB.
    with pytest.raises(
        InputError, match=r"x: this job needs about 7\.078 GiB: 1,000,000 ranks, .*; 2 GiB may"
    ):
        refuse_too_large("x", ranks=1_000_000, ops=10_000_000)
    refuse_too_large("x", ranks=100_000, ops=1_000_000)


def test_a_cluster_of_more_links_than_memory_holds_is_refused(monkeypatch):
    # 2,000,000 nodes of 8 GPUs: 16,000,000 NVLinks and as many NICs, each out and in; leaves of 4 nodes and
    # pods of 16 leaves, up and down: 64,000,000 + 1,000,000 + 62,500 links of 180 bytes are 10.91 GiB.
    shape = {"num_nodes": "2000000", "nodes_per_leaf": "4", "leaves_per_pod": "16", "fabric": "fat_tree"}
    cluster = load_cluster("h100-16", {f"cluster.{key}": value for key, value in shape.items()})
    monkeypatch.setenv("SIMCORE_LIMITS", "memory=2GiB")
    with pytest.raises(InputError, match=r"needs about 10\.91 GiB: it has 65,062,500 links; 2 GiB may be"):
        run(data_parallel(size=2), cluster)


def test_op_executions_have_a_limit(monkeypatch, tmp_path):
    graph = data_parallel(size=2)  # a program of four ops
    save_graph(graph, tmp_path / "graph")
    monkeypatch.setenv("SIMCORE_LIMITS", "ops=3")
    folder, cluster = tmp_path / "graph", load_cluster("h100-8")
    for use in (lambda: verify(graph), lambda: run(graph, cluster), lambda: load_graph(folder)):
        with pytest.raises(InputError, match=r"4 op executions; at most 3 are played \(SIMCORE_LIMITS=ops="):
            use()
    monkeypatch.setenv("SIMCORE_LIMITS", "ops=4")
    verify(graph)


def test_a_described_job_is_refused_before_it_is_generated():
    job = complete({"model": _MODEL, "training": {"global_batch": 8 * 65_536}}, "x", num_gpus=8)
    # Sixteen ops at least for each of 4,096 layers and 65,536 microbatches.
    with pytest.raises(InputError, match="4,294,967,296 op executions; at most 20,000,000 are played"):
        job.graph()


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_pipelines_of_absurd_counts_are_refused(name):
    for stages, microbatches in ((4, 10**9), (10**9, 4)):
        with pytest.raises(InputError):
            SCHEDULES[name].actions(stages, microbatches, 2, 0)


@pytest.mark.parametrize(
    "group",
    [
        ProcessGroup("dp", ((10**9, 1),)),
        ProcessGroup("dp", ((2, 10**9),)),
        ProcessGroup("dp", ((2, 1), (2, 1))),
        ProcessGroup("dp", ((2, 1),), offset=1),
        ProcessGroup("dp", ((2, 1),), explicit=((0, 2),)),
    ],
)
def test_groups_beyond_the_world_are_refused(group):
    graph = replace(data_parallel(size=2), groups={"dp": group})
    with pytest.raises(GraphError, match=r"process group 'dp' names rank \d+, the world has 2"):
        verify(graph)


def test_what_64_bits_do_not_hold_names_the_op():
    build = OpRows()
    build.append(name="mm", flops=2**63)
    with pytest.raises(GraphError, match="op 'mm': flops = 9223372036854775808 is more than 64 bits hold"):
        build.table()
