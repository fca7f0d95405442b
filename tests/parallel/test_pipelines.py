"""Pipelines of generated jobs as the engine runs them."""

from __future__ import annotations

import pytest

from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine.shortcuts import simulate
from simcore.graph import OpKind, one_f_one_b
from simcore.graph.schedules import interleaved_one_f_one_b
from simcore.hardware import Topology, load_cluster
from tests.parallel.jobs import step
from workloads.models.spec import ModelSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate
from workloads.parallel.messages import Direction, plan_messages

#: Wide enough that kernels, not launches or messages, make the time.
WIDE = ModelSpec(name="wide", layers=16, hidden=4096, heads=32, ffn=16384, vocab=1000, tied_embeddings=False)


def graph(schedule: str, virtual: int = 1, **changes):
    parallel = ParallelSpec(pp=4, schedule=schedule, virtual_stages=virtual)
    return generate(WIDE, parallel, TrainingSpec(seq=1024, global_batch=8, optimizer="none", **changes))


def seconds(schedule: str, virtual: int = 1) -> float:
    return step(graph(schedule, virtual)).step_ps * 1e-12


def test_schedules_are_as_fast_as_their_bubbles_say():
    # Work of 8 microbatches: 1f1b adds 3 of 8, interleaved and ZB-H1 less (F : I : W is about 1 : 1 : 1).
    plain, interleaved, split, dual = (
        seconds("1f1b"), seconds("interleaved", 2), seconds("zero_bubble"), seconds("dualpipe_v", 2)
    )  # fmt: skip
    work = plain / (1 + 3 / 8)
    assert interleaved / work == pytest.approx(1 + 3 / 16, abs=0.06)
    assert split / work == pytest.approx(1 + 1 / 8, abs=0.06)
    assert work < dual < plain
    # Two chunks and weight gradients apart: less than either alone.
    looped, v = seconds("zero_bubble", 2), seconds("zb_v", 2)
    assert work < looped < interleaved
    assert work < v < split


def test_halves_of_a_backward_do_all_of_its_work():
    flops = []
    for schedule in ("1f1b", "zero_bubble"):
        made = graph(schedule)
        flops.append([int(made.ops.flops[made.flat_ops(one).row].sum()) for one in made.programs])
    assert flops[0] == flops[1]


def test_one_rank_stands_for_its_like():
    parallel = ParallelSpec(tp=2, pp=2, dp=2, sequence_parallel=True)
    training = TrainingSpec(
        seq=256, global_batch=8, sharding="zero1", overlap_grad_reduce=True, overlap_param_gather=True
    )
    made = generate(WIDE.model_copy(update={"layers": 4}), parallel, training)
    cluster = load_cluster("h100", {"cluster.num_nodes": "1"})
    topology = Topology(cluster)
    times = [
        simulate(made, topology, RooflineCost(cluster.gpu), NcclPlanner(topology), fold=fold).step_ps
        for fold in (True, False)
    ]
    assert times[0] == times[1]


def test_receives_of_1f1b_follow_the_action_before():
    before, exchanges = plan_messages(one_f_one_b(2, 3), [8], overlap=False)
    down, up = Direction(False, 1), Direction(True, -1)
    # Stage 0: F0 F1 B0 F2 B1 B2.  It expects the gradient of B0 once F1 is through.
    assert before == [(), ((down, 8),)]
    assert [exchange.posts for exchange in exchanges[0]] == [
        (), ((up, 8),), (), ((up, 8),), ((up, 8),), ()
    ]  # fmt: skip
    # Without overlap what was sent is waited for by the next action.
    assert [exchange.awaits for exchange in exchanges[0]] == [(), (down,), (down,), (), (down,), ()]


def test_interleaved_stages_exchange_once_for_a_forward_and_a_backward():
    _, exchanges = plan_messages(interleaved_one_f_one_b(2, 4, 2), [8, 8, 8], overlap=False)
    _, overlapped = plan_messages(interleaved_one_f_one_b(2, 4, 2), [8, 8, 8], overlap=True)
    assert max(len(exchange.sends) for exchange in exchanges[0]) == 2
    assert max(len(exchange.sends) for exchange in overlapped[0]) == 1
    assert all(exchange.awaits == () for exchange in overlapped[0])


def test_slices_of_activations_travel_and_are_gathered():
    def sent(scatter: bool) -> set[int]:
        made = generate(
            WIDE, ParallelSpec(tp=4, pp=2), TrainingSpec(seq=256, global_batch=1, scatter_gather_p2p=scatter)
        )
        ops = made.ops
        return {int(ops.num_bytes[row]) for row in range(len(ops)) if ops.kind[row] == OpKind.SEND}

    # 256 tokens x 4096 in bf16, a quarter on each of four ranks.
    assert sent(False) == {256 * 4096 * 2}
    assert sent(True) == {256 * 4096 * 2 // 4}
