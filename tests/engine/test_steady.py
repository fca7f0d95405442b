"""Steady states said instead of simulated: the same times and link use as the whole job, event by event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine import Variants
from simcore.engine.launches import host_costs
from simcore.engine.shortcuts import simulate, solo
from simcore.engine.shortcuts.host_times import HostSchedule
from simcore.engine.shortcuts.repeats import FEW, Repeating, Repeats
from simcore.engine.shortcuts.settling import Settling
from simcore.graph import GraphBuilder, external
from simcore.graph.schedules import gpipe, one_f_one_b
from simcore.hardware import Topology, load_cluster
from tests.engine.lab import TableCost
from tests.engine.test_spans import counters
from tests.symmetry import jobs
from workloads.models.spec import ModelSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate

MODEL = ModelSpec(name="wide", layers=8, hidden=2048, heads=16, ffn=8192, vocab=32000)


def job(microbatches, *, schedule="1f1b", **parallel):
    spec = ParallelSpec(**{"tp": 2, "pp": 4, "dp": 2, "schedule": schedule, **parallel})
    return generate(MODEL, spec, TrainingSpec(seq=2048, global_batch=microbatches * spec.dp))


def cluster(graph, overhead_s=None):
    found = load_cluster("h100", {"cluster.num_nodes": str(-(-graph.world_size // 8))})
    gpu = replace(
        found.gpu, launch_overhead_s=found.gpu.launch_overhead_s if overhead_s is None else overhead_s
    )
    return Topology(replace(found, gpu=gpu))


def run(graph, where, cost=None, **options):
    return simulate(graph, where, cost or RooflineCost(where.cluster.gpu), NcclPlanner(where), **options)


def both(graph, where, **options):
    """With steady states, after comparing with an event per kernel of the whole job, to the picosecond."""
    quick, plain = run(graph, where, **options), run(graph, where, shortcuts=(), **options)
    assert quick.step_ps == plain.step_ps
    for name in ("times", "alone_ps"):
        for ours, theirs in zip(getattr(quick, name), getattr(plain, name), strict=True):
            for column in ("ready_ps", "start_ps", "end_ps") if name == "times" else ("real",):
                np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column))
    for ours, theirs in zip(quick.plan_of, plain.plan_of, strict=True):
        planned = [
            [run.plans[i].num_bytes for i in of[of >= 0]] for run, of in ((quick, ours), (plain, theirs))
        ]
        assert planned[0] == planned[1]
    assert counters(quick).keys() == counters(plain).keys()
    for link, carried in counters(plain).items():
        np.testing.assert_allclose(counters(quick)[link], carried, rtol=1e-9)
    return quick


def share_simulated(graph, where):
    """Events of the job as it is simulated, kernel runs one by one, over those of the whole job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solo, "WORTH_OPS", float("inf"))
        events = run(graph, where).engine_events
        return events / run(graph, where, shortcuts=("runs",)).engine_events


def test_one_f_one_b_repeats_a_forward_and_a_backward():
    # Stage s of 4 begins with 3 - s forwards; then F and B in turn, 20 - (3 - s) times.  The last stage's
    # last backward, which reduces gradients, follows its forward at once: one repetition less.
    graph = jobs.pipeline(one_f_one_b(4, 20), tp=1, dp=1)
    repeating = Repeating.of(graph)
    assert repeating.repeats[0] == Repeats(first=3, size=2, copies=17, microbatches=1)
    assert [repeats.copies for repeats in repeating.repeats] == [17, 18, 19, 19]
    short = repeating.kept(FEW)
    assert short.left_out == 17 - FEW
    for whole, less in zip(graph.programs, short.graph.programs, strict=True):
        assert len(less.template) == len(whole.template) - 2 * short.left_out


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 6), gpipe(4, 64)])
def test_too_few_repetitions_or_none_of_all_that_a_microbatch_needs(schedule):
    repeating = Repeating.of(jobs.pipeline(schedule, tp=1, dp=1))
    assert repeating is None or repeating.kept(FEW) is None


@pytest.mark.parametrize(
    "graph",
    [
        job(24),
        job(32, tp=1, pp=8, dp=1),
        job(20, pp=1),
        job(64, schedule="interleaved", virtual_stages=2),
    ],
)
def test_a_job_with_a_steady_state(graph):
    where = cluster(graph)
    both(graph, where)
    assert share_simulated(graph, where) < 0.75


def test_chunks_that_settle_while_the_pipeline_fills():
    # A repetition is four microbatches through two chunks, 16 passes of a stage, of 16 in all: two of them
    # say the others.
    graph = job(64, schedule="interleaved", virtual_stages=2)
    short = Repeating.of(graph).kept(FEW)
    whole = sum(len(graph.flat_ops(program)) for program in graph.programs)
    assert both(graph, cluster(graph)).answered.steady == whole - short.kept_ops


def test_few_repetitions_of_a_short_job():
    # Stage s of 4 begins with 3 - s forwards and ends with as many backwards: of the first one's 7 pairs
    # between two are played, 10 passes of 20.
    graph = job(10)
    short = Repeating.of(graph).kept(FEW)
    whole = sum(len(graph.flat_ops(program)) for program in graph.programs)
    assert both(graph, cluster(graph)).answered.steady == whole - short.kept_ops < 0.8 * whole


def test_without_counters_times_are_the_same():
    graph = job(24)
    told, untold = (run(graph, cluster(graph), counters=counters) for counters in (True, False))
    assert len(told.counters.time_ps) and not len(untold.counters.time_ps) and untold.log is None
    assert untold.step_ps == told.step_ps
    for one, other in zip(untold.times, told.times, strict=True):
        np.testing.assert_array_equal(one.end_ps, other.end_ps)


def test_replicas_whose_messages_have_further_to_go():
    # Three replicas on nodes 3 s + r of stage s; ten nodes to a leaf: the last message of the first stays on
    # its leaf (nodes 6 and 9), those of the others go through a spine (7 and 10, 8 and 11).  Each replica
    # repeats itself with a period of its own, until all reduce gradients.
    graph = job(24, tp=8, dp=3)
    where = Topology(load_cluster("h100", {"cluster.num_nodes": "12", "cluster.nodes_per_leaf": "10"}))
    quick = both(graph, where)
    assert quick.answered.steady
    # The job is played twice, the first time until the replicas' paces are known.
    assert quick.engine_events < 0.8 * run(graph, where, shortcuts=("runs",)).engine_events
    last_stages = [quick.times_of(8 * node) for node in (9, 10)]
    flat = graph.flat_ops(graph.programs[graph.program_of_rank[72]])
    (reduces,) = np.flatnonzero(graph.ops.group.equals("dp")[flat.row])
    ready, end = ([getattr(times, name)[reduces] for times in last_stages] for name in ("ready_ps", "end_ps"))
    assert ready[0] < ready[1]
    assert end[0] == end[1]


def test_a_job_that_settles_late_is_given_more_while_it_is_played(monkeypatch):
    graph = job(40, schedule="zero_bubble")
    told: list[str] = []
    for name in ("_settled", "_extend"):
        own = getattr(Settling, name)

        def noted(self, argument, own=own, name=name):
            found = own(self, argument)
            told.append(name if name == "_extend" or found is not None else "")
            return found

        monkeypatch.setattr(Settling, name, noted)
    events = run(graph, cluster(graph)).engine_events
    assert {"", "_extend"} <= set(told)
    assert told[-1] == "_settled"
    monkeypatch.undo()
    result = both(graph, cluster(graph))
    assert result.answered.steady
    assert result.engine_events == events  # nothing was played in vain


def test_a_job_that_does_not_settle_has_been_played_whole():
    graph = job(12, tp=1)
    where = cluster(graph, 250e-6)  # hosts hold up their GPUs, each other ones
    whole = run(graph, where, shortcuts=("runs", "cells"))
    tried = both(graph, where)
    assert not tried.answered.steady
    assert tried.engine_events == whole.engine_events


def test_rings_that_share_what_messages_need():
    # A ring's send and receive are one launch, whose end is noted by call: over, it is not under way.
    graph = job(24, tp=1, cp=2)
    assert both(graph, cluster(graph)).answered.steady


def test_a_slow_rank_keeps_its_neighbours_waiting():
    graph = job(24)
    where = cluster(graph)
    gpu = where.cluster.gpu
    slow = replace(gpu, launch_overhead_s=7e-6, hbm_bytes_per_s=0.7 * gpu.hbm_bytes_per_s)
    of_rank = np.zeros(graph.world_size, dtype=np.int64)
    of_rank[5] = 1
    variants = Variants((gpu, slow), (RooflineCost(gpu), RooflineCost(slow)), of_rank)
    both(graph, where, variants=variants)


def one_node(microbatch, begin, num_microbatches=40, num_ranks=1):
    """``begin`` and 40 times ``microbatch`` write templates of a job on one node."""
    build = GraphBuilder(num_ranks, name="one node")
    build.group("dp", ((num_ranks, 1),))
    first, again, last = build.template("begin"), build.template("fwd"), build.template("optimizer")
    begin(first)
    microbatch(again)
    last.compute("norm", waits=(external("dp"),) if num_ranks > 1 else ())
    body = [(again, number, 0) for number in range(num_microbatches)]
    build.program(range(num_ranks), [(first, -1, 0), *body, (last, -1, 0)])
    return build.build()


def kernels(name, number):
    return lambda template: [template.compute(name) for _ in range(number)]


def test_a_transfer_that_outlasts_the_repetitions_that_are_simulated():
    # 2 GB among 8 GPUs take some 15 ms of NVLink, and SMs; a microbatch takes 1 ms, so that 5 and more repeat
    # exactly beside the transfer, and others after it.
    def begin(template):
        template.collective("all_gather", "dp", 2_000 * jobs.MB, stream="dp")

    graph, where = one_node(kernels("gemm", 5), begin, num_ranks=8), jobs.topology(1)
    (times,) = both(graph, where, cost=TableCost(jobs.KERNELS)).times
    period = np.diff(times.start_ps[1:-1:5])
    assert period[0] == period[8] > period[-1]


def test_a_host_whose_lead_is_used_up_in_the_middle():
    # Kernels of 29 us, launched every 60 us.  While the first ones run, 19 ms, the host gets 300 launches
    # ahead; of these, 20 kernels use up 10, so that after some 30 microbatches of 40 the GPU waits.
    graph, where = one_node(kernels("norm", 20), kernels("adam", 60)), jobs.topology(1)
    where = Topology(replace(where.cluster, gpu=replace(where.cluster.gpu, launch_overhead_s=60e-6)))
    (times,) = both(graph, where, cost=TableCost(jobs.KERNELS)).times
    gaps = times.start_ps[1:] - times.end_ps[:-1]
    assert not gaps[1:400].any()
    assert gaps[-100:].all()


@settings(max_examples=12)
@given(
    overhead_us=st.floats(0.0, 250.0),
    microbatches=st.integers(14, 30),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
)
def test_hosts_that_run_ahead_or_lag_behind(overhead_us, microbatches, tp, pp):
    graph = job(microbatches, tp=tp, pp=pp)
    both(graph, cluster(graph, overhead_us * 1e-6))


@pytest.mark.parametrize("overhead_s", [0.0, 4e-6, 100e-6])
def test_a_host_is_worked_out_as_the_engine_plays_it(overhead_s):
    # Stages that begin late make the host wait for room in its queue; the optimizer's sync makes it wait too.
    graph = job(16)
    where = cluster(graph, overhead_s)
    result = run(graph, where, shortcuts=())
    costs = host_costs(where.cluster.gpu)
    for rank, times in zip(result.representatives.tolist(), result.times, strict=True):
        schedule = HostSchedule.of(graph, graph.programs[graph.program_of_rank[rank]], costs)
        played = schedule.play(times.end_ps)
        begun = played.base_ps[schedule.launches.segment[schedule.host_ops]]
        done = played.launched_ps[schedule.host_ops] + schedule.launches.host_ps
        reached = np.where(schedule.is_sync, begun, done)
        np.testing.assert_array_equal(times.end_ps[schedule.host_ops], reached)
        assert (played.launched_ps[schedule.on_gpu] <= times.ready_ps[schedule.on_gpu]).all()
