"""One truth for what the catalog's graphs leave out: bf16, sequence parallelism, selective and no
recomputation, interleaved stages, one tensor-parallel rank, the distributed optimizer.

Traced once and kept beside this file; each graph holds the command that made it.  Sizes differ from each
other, so that equal bytes are equal tensors.  Differences as in ``test_one_truth``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.graph import apply_kernels, load_graph
from tests.models.one_truth import actions, generated
from tests.models.test_one_truth import LOSS, LOSS_BYTES_PER_TOKEN, Pair

GRAPHS = Path(__file__).with_name("graphs")


@pytest.fixture(scope="module", params=["sequence-parallel", "interleaved", "overlapped"])
def pair(request: pytest.FixtureRequest) -> Pair:
    traced = load_graph(GRAPHS / request.param)
    return Pair(apply_kernels(traced, "megatron"), generated(traced, "megatron"))


def test_same_kernels_collectives_and_waits(pair: Pair) -> None:
    compared = 0
    for traced, made, tokens in pair.actions:
        assert [(op.name, op.phase, op.stream, op.flops) for op in traced] == [
            (op.name, op.phase, op.stream, op.flops) for op in made
        ]
        assert [(op.group, op.comm_bytes, op.reduce_op) for op in traced] == [
            (op.group, op.comm_bytes, op.reduce_op) for op in made
        ]
        if not pair.traced.workload.options["overlap_grad_reduce"]:
            assert [op.waits for op in traced] == [op.waits for op in made]
        for one, other in zip(traced, made, strict=True):
            slack = LOSS_BYTES_PER_TOKEN * tokens if one.name in LOSS else 0
            if one.name != "bias_dropout_add_fwd":
                assert abs(one.bytes_read - other.bytes_read) <= slack
                assert abs(one.bytes_written - other.bytes_written) <= slack
            compared += 1
    assert compared > 100


def test_same_schedule(pair: Pair) -> None:
    orders = [
        {stage: "".join(name[0] for name, _ in done) for stage, done in actions(graph).items()}
        for graph in (pair.traced, pair.made)
    ]
    assert orders[0] == orders[1]
