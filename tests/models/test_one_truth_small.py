"""One truth for what the catalog's graphs leave out: bf16, sequence parallelism, selective and no
recomputation, interleaved and uneven stages, one tensor-parallel rank, the distributed optimizer and what it
overlaps, context parallelism, experts.

Traced once and kept beside this file; each graph holds the command that made it.  Sizes differ from each
other, so that equal bytes are equal tensors.  Differences as in ``test_one_truth``, and:

- Buckets of the distributed optimizer are padded to a multiple that its shards can share; its gathers are
  of phase "optimizer" in a trace.
- Context parallelism: what a rank sends in backward is keys and values, then both with their gradients, then
  gradients alone; a description sends both each time, the same bytes together.  Attention on a part that
  arrived has half of the keys or half of the queries, as ranks stand; a description all queries, on one
  stream.  Weighting, adding and stacking parts is more kernels in the stand-in for Transformer Engine.
- Experts: a trace also sends the probabilities of tokens, a number a copy, and adds a bias to the router's
  product; how scores become routes and tokens are sorted is other kernels, so only products, their bytes
  and what is exchanged are compared.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from simcore.graph import apply_kernels, load_graph
from simcore.graph.races import missing_waits
from tests.models.one_truth import Op, actions, exchanges, generated, of_first_rank
from tests.models.test_one_truth import LOSS, LOSS_BYTES_PER_TOKEN, Pair

GRAPHS = Path(__file__).with_name("graphs")
#: Bytes up to which a collective is a count, a probability or a norm.
SMALL_BYTES = 512
#: Bytes by which attention differs: the state of its random generator.
STATE_BYTES = 24


def load(name: str) -> Pair:
    traced = load_graph(GRAPHS / name)
    return Pair(apply_kernels(traced, "megatron"), generated(traced, "megatron"))


@pytest.fixture(
    scope="module", params=["sequence-parallel", "interleaved", "overlapped", "uneven", "param-gather"]
)
def pair(request: pytest.FixtureRequest) -> Pair:
    return load(request.param)


def of_layers(ops: list[Op]) -> list[Op]:
    """All but the distributed optimizer's gathers."""
    return [op for op in ops if op.name != "nccl::all_gather" or op.group != "dp"]


def test_same_kernels_collectives_and_waits(pair: Pair) -> None:
    compared = 0
    overlaps = pair.traced.workload.options["overlap_grad_reduce"]
    for theirs, ours, tokens in pair.actions:
        traced, made = of_layers(theirs), of_layers(ours)
        assert [(op.name, op.phase, op.stream, op.flops) for op in traced] == [
            (op.name, op.phase, op.stream, op.flops) for op in made
        ]
        assert [(op.group, op.num_bytes, op.reduce_op) for op in traced] == [
            (op.group, op.num_bytes, op.reduce_op) for op in made
        ]
        if not overlaps:
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


def test_a_steps_collectives_are_the_same(pair: Pair) -> None:
    phases = ("fwd", "recompute", "bwd", "grad_sync", "optimizer")
    for stage in range(pair.num_stages):
        traced, made = (
            [op for op in of_first_rank(graph, stage, phases) if op.group]
            for graph in (pair.traced, pair.made)
        )
        for one, other in zip(traced, made, strict=True):
            assert (one.name, one.stream) == (other.name, other.stream)
            padding = 0.002 if one.group == "dp" else 0
            assert other.num_bytes <= one.num_bytes <= (1 + padding) * other.num_bytes


def test_context_parallel_attention_is_shared_out_alike() -> None:
    pair = load("context-parallel")
    flats = [pair.traced.flat_ops(program) for program in pair.traced.programs]
    assert missing_waits(pair.traced, flats) == []  # of parts on two streams
    for theirs, ours, tokens in pair.actions:
        inside = [[op for op in ops if "core_attention" in op.module] for ops in (theirs, ours)]
        traced, made = ([op for op in ops if "core_attention" not in op.module] for ops in (theirs, ours))
        assert [(op.name, op.stream, op.flops, op.group, op.num_bytes) for op in traced] == [
            (op.name, op.stream, op.flops, op.group, op.num_bytes) for op in made
        ]
        for one, other in zip(traced, made, strict=True):
            slack = LOSS_BYTES_PER_TOKEN * tokens if one.name in LOSS else 0
            if one.name != "bias_dropout_add_fwd":
                assert abs(one.bytes_read - other.bytes_read) <= slack
                assert abs(one.bytes_written - other.bytes_written) <= slack
        kernels = [[op for op in ops if op.flops] for ops in inside]
        assert [op.flops for op in kernels[0]] == [op.flops for op in kernels[1]]
        # The rank's own part: all queries, all keys.
        own = [ops[0] for ops in kernels if ops]
        if own:
            assert own[0].bytes_read - own[1].bytes_read in (0, STATE_BYTES)
            assert own[0].bytes_written - own[1].bytes_written in (0, STATE_BYTES)
    for stage in range(pair.num_stages):
        sent = [
            {way: sum(sizes) for way, sizes in exchanges(graph, stage).items()}
            for graph in (pair.traced, pair.made)
        ]
        assert sent[0] == sent[1]


def test_experts_multiply_and_exchange_the_same() -> None:
    pair = load("experts")
    for theirs, ours, _ in pair.actions:
        products, calls = [], []
        for ops in (theirs, ours):
            # The router's product adds a bias in a trace.
            products.append(
                Counter(
                    (op.flops, op.bytes_read, op.bytes_written)
                    for op in ops
                    if op.flops and "router" not in op.module
                )
            )
            calls.append(
                [
                    (op.name, op.group, op.stream, op.num_bytes)
                    for op in ops
                    if op.group and op.num_bytes > SMALL_BYTES
                ]
            )
        assert [op.flops for op in theirs if op.flops] == [op.flops for op in ours if op.flops]
        assert products[0] == products[1]
        assert calls[0] == calls[1]
    for stage in range(pair.num_stages):
        assert exchanges(pair.traced, stage) == exchanges(pair.made, stage)
