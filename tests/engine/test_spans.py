"""Cells of a rank as one event: the same times and link use as event by event, with far fewer events."""

from dataclasses import replace

import numpy as np
import pytest

from simcore.collectives import NcclPlanner
from simcore.engine.shortcuts import simulate, solo
from simcore.graph.schedules import interleaved_one_f_one_b, one_f_one_b
from simcore.hardware import Topology
from tests.engine.lab import TableCost
from tests.symmetry import jobs


@pytest.fixture(autouse=True)
def _however_short(monkeypatch):
    monkeypatch.setattr(solo, "WORTH_OPS", 0)


def run(graph, where, **options):
    return simulate(graph, where, TableCost(jobs.KERNELS), NcclPlanner(where), **options)


def both(graph, where, **options):
    """With spans, after comparing with an event per kernel, to the picosecond."""
    spans, plain = run(graph, where, **options), run(graph, where, shortcuts=(), **options)
    for ours, theirs in zip(spans.times, plain.times, strict=True):
        for column in ("ready_ps", "start_ps", "end_ps"):
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column))
    assert counters(spans).keys() == counters(plain).keys()
    for link, steps in counters(plain).items():
        np.testing.assert_allclose(counters(spans)[link], steps, rtol=1e-9)
    return spans, plain


def counters(result):
    """Bytes by link: the integral of its use."""
    used = {}
    for link in np.unique(result.counters.resource).tolist():
        mine = result.counters.resource == link
        time, value = result.counters.time_ps[mine], result.counters.value[mine]
        used[link] = float((value[:-1] * np.diff(time)).sum()) / 1e12
    return used


def pipeline(**changes):
    return jobs.pipeline(one_f_one_b(4, 40), tp=8, dp=2, **changes)


def uneven(stage):
    return 9 - (stage in (0, 3))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_pipeline_of_tensor_parallel_layers(overlap, monkeypatch):
    graph, where = pipeline(overlap=overlap, layers=uneven), jobs.topology(8)
    spans, _ = both(graph, where)
    monkeypatch.setattr(solo, "WORTH_OPS", float("inf"))
    without = run(graph, where)
    assert without.step_ps == spans.step_ps
    assert spans.engine_events < 0.55 * without.engine_events


def test_interleaved_stages_that_messages_disturb():
    # Messages last as long as a stage computes: hardly a cell is left in peace.
    graph = jobs.pipeline(interleaved_one_f_one_b(4, 48, 2), tp=8, dp=1, layers=lambda virtual: 1)
    both(graph, jobs.topology(4))


def of_node_1(port, way, attribute, value):
    """The same port of each of its GPUs: they stay alike, so that cells still form."""
    return {f"{port.format(gpu=8 + n, local=n)}.{way}.{attribute}": value for n in range(8)}


@pytest.mark.parametrize(
    "slow",
    [
        of_node_1("nic.1.{local}", "out", "bytes_per_s", 1e9),  # its messages last longer than stages compute
        of_node_1("nvlink.{gpu}", "out", "bytes_per_s", 30e9),
        of_node_1("nvlink.{gpu}", "in", "latency_s", 50e-6),
    ],
)
def test_a_slow_node(slow, monkeypatch):
    graph, where = pipeline(), jobs.topology(8, link_overrides=slow)
    spans, _ = both(graph, where)
    monkeypatch.setattr(solo, "WORTH_OPS", float("inf"))
    assert spans.engine_events < run(graph, where).engine_events


def test_a_node_of_slower_gpus():
    # Its tensor-parallel groups are classes of their own: as many kernels as elsewhere, each twice as long.
    graph, where = pipeline(), jobs.topology(8)
    spans, _ = both(graph, where, variants=jobs.slow_ranks(where, graph.world_size, 2.0, range(8)))
    assert spans.answered.cells > 0


@pytest.mark.parametrize(
    "broken",
    [
        {"nic.1.2.out.bytes_per_s": 1e9},
        {"nvlink.9.out.bytes_per_s": 30e9},
        {"nvlink.9.in.latency_s": 50e-6},
    ],
)
def test_ranks_that_differ(broken):
    # Two classes meet in a tensor-parallel group: what the link does to one of them it does not do to the
    # others at the same instant.
    both(pipeline(), jobs.topology(8, link_overrides=broken))
    both(two_stages(), jobs.topology(2, link_overrides=broken), fold=False)


def two_stages():
    return jobs.pipeline(one_f_one_b(2, 20), tp=8, dp=1)


@pytest.mark.parametrize("fold", [True, False])
def test_members_of_a_group_that_are_classes_of_their_own(fold):
    # The first of each group has a GPU of its own number: a class of its own.  Without folding all are.
    graph, where = two_stages(), jobs.topology(2)
    alike = run(graph, where)
    first = jobs.slow_ranks(where, graph.world_size, 1.0, range(0, graph.world_size, 8))
    parted, _ = both(graph, where, variants=first, fold=fold)
    assert len(parted.times) == (2 * len(alike.times) if fold else graph.world_size)
    assert parted.answered.cells / len(parted.times) > 0.9 * alike.answered.cells / len(alike.times) > 0


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("slow", [[3], [9, 10], range(12, 16)])
def test_slow_members_of_a_group(slow, fold):
    graph, where = two_stages(), jobs.topology(2)
    both(graph, where, variants=jobs.slow_ranks(where, graph.world_size, 1.3, slow), fold=fold)


def test_messages_that_pass_ports_of_cells():
    # One NIC for a node: what other GPUs send goes over the ports of the one that has it.
    both(pipeline(), jobs.topology(8, nics_per_node=1))


@pytest.mark.parametrize("overhead_s", [40e-6, 300e-6])
def test_a_host_that_lags_behind(overhead_s):
    where = jobs.topology(8)
    gpu = replace(where.cluster.gpu, launch_overhead_s=overhead_s)
    both(pipeline(), Topology(replace(where.cluster, gpu=gpu)))


def test_messages_beside_kernels_that_need_all_of_hbm():
    where = jobs.topology(8)
    gpu = replace(where.cluster.gpu, hbm_bytes_per_s=4e11)
    both(pipeline(), Topology(replace(where.cluster, gpu=gpu)))
