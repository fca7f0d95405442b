"""One truth: a description generates the graph that tracing the same program gives.

Where they may differ, and why:

- ``bias_dropout_add_fwd``: in a trace the mask of a checkpointed layer's last dropout dies at once, so that
  the mapping counts no write; and where the layer's input is also what a stage received or a checkpoint kept,
  no read of the residual.  The kernel does both, as generated.
- Loss kernels: vectors of a few bytes a token, which the mapping counts once where two have one shape.
- Scalars: the loss is divided by the number of microbatches, token counts are added up; no kernel of a
  description.
- Buckets of the distributed optimizer are padded to a multiple that its shards can share.
- The hook of a bucket comes behind the wait for tensor-parallel sums in a trace, here the kernel after.
  So kernels of "grad_sync" are compared over the step, and waits only where no hook stands between.
- Messages of a pipeline: a trace sends and receives in one call that the host waits for; generated ones are
  on a stream for each direction and kind, and only who needs them waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from simcore.graph import Graph, apply_kernels, load_graph
from tests.models.one_truth import Op, actions, exchanges, generated, of_first_rank

GRAPHS = Path(__file__).parents[2] / "workloads/catalog/graphs"
CASES = (
    "gpt-13b-pp8-tp4-dp2", "gpt-70b-pp12-tp4-dp2", "echo-gpt-175b-pp12-tp8-dp1",
    "scale-gpt-175b-pp16-tp8-dp8", "gpt-175b-pp12-tp8-dp1",
)  # fmt: skip
LOSS = ("cross_entropy_predicted_logits", "cross_entropy_loss", "cross_entropy_bwd")
#: Bytes a token that a loss kernel's vectors may differ by.
LOSS_BYTES_PER_TOKEN = 32


PAIRS = [(name, kernels) for name in CASES for kernels in ("megatron", "flash")]
PAIRS.append(("gpt-175b-pp12-tp8-dp1", "cudnn"))  # in fp32 the same as "flash"


@dataclass(frozen=True)
class Pair:
    """A traced graph and the one that its description generates."""

    traced: Graph
    made: Graph

    @cached_property
    def num_stages(self) -> int:
        return len({program.stage for program in self.traced.programs})

    @cached_property
    def actions(self) -> list[tuple[list[Op], list[Op], int]]:
        """Distinct (traced, generated, tokens) forwards and backwards of the same place in the same stage."""
        traced, made = actions(self.traced), actions(self.made)
        tokens = self.traced.workload.micro_batch_size * self.traced.workload.seq_len
        assert traced.keys() == made.keys()
        found: dict[tuple[int, int], tuple[list[Op], list[Op]]] = {}
        for stage, expected in traced.items():
            assert [name for name, _ in expected] == [name for name, _ in made[stage]]
            for (_, ops), (_, others) in zip(expected, made[stage], strict=True):
                found.setdefault((id(ops), id(others)), (ops, others))
        return [(compared(ops, tokens), compared(others, tokens), tokens) for ops, others in found.values()]


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> Pair:
    name, kernels = request.param
    traced = load_graph(GRAPHS / name)
    return Pair(apply_kernels(traced, kernels), generated(traced, kernels))


def compared(ops: list[Op], tokens: int) -> list[Op]:
    """What a description says of an action: no scalars, and no reduction of gradients."""
    return [op for op in ops if not is_scalar(op, tokens) and op.phase != "grad_sync"]


def is_scalar(op: Op, tokens: int) -> bool:
    """The loss and what it is divided by: outside any module, at most a number a token."""
    return not op.module and not op.group and op.bytes_read + op.bytes_written <= 16 * tokens


def test_kernels_are_the_same_in_the_same_order(pair: Pair) -> None:
    for traced, made, _ in pair.actions:
        assert [(op.name, op.phase, op.stream) for op in traced] == [
            (op.name, op.phase, op.stream) for op in made
        ]
        assert [op.flops for op in traced] == [op.flops for op in made]


def test_kernels_read_and_write_the_same(pair: Pair) -> None:
    for traced, made, tokens in pair.actions:
        for one, other in zip(traced, made, strict=True):
            read, written = other.bytes_read - one.bytes_read, other.bytes_written - one.bytes_written
            if one.name == "bias_dropout_add_fwd":
                # The residual is as large as the output; the mask has a byte an element.
                assert read in (0, one.bytes_read) or read == pytest.approx(one.bytes_read, rel=0.01)
                assert written == 0 or other.bytes_written - written == one.bytes_written
                assert written <= one.bytes_written // 2
            elif one.name in LOSS:
                assert max(abs(read), abs(written)) <= LOSS_BYTES_PER_TOKEN * tokens
            else:
                assert (read, written) == (0, 0), one


def test_collectives_are_the_same(pair: Pair) -> None:
    for traced, made, _ in pair.actions:
        calls = [
            [(op.name, op.group, op.stream, op.num_bytes, op.reduce_op) for op in ops if op.group]
            for ops in (traced, made)
        ]
        assert calls[0] == calls[1]


def test_kernels_wait_for_the_same_collectives(pair: Pair) -> None:
    if pair.traced.workload.options["overlap_grad_reduce"]:
        pytest.skip("hooks of buckets stand between kernels and what they wait for")
    for traced, made, _ in pair.actions:
        assert [(op.name, op.waits) for op in traced] == [(op.name, op.waits) for op in made]


def test_gradients_and_the_optimizer(pair: Pair) -> None:
    for stage in (0, 1, pair.num_stages - 1):
        traced, made = (
            of_first_rank(graph, stage, ("grad_sync", "optimizer")) for graph in (pair.traced, pair.made)
        )
        calls = [[(op.name, op.group, op.num_bytes) for op in ops if op.group] for ops in (traced, made)]
        assert calls[0] == calls[1]
        # Tensor by tensor or all at once, the same bytes are read and written.
        for names in (("aten::mul_.Tensor",), ("l2norm",), ("adam",), ("foreach_mul_", "multi_tensor_scale")):
            moved = [
                sum(op.bytes_read + op.bytes_written for op in ops if any(name in op.name for name in names))
                for ops in (traced, made)
            ]
            assert moved[1] == pytest.approx(moved[0], rel=0.005), (stage, names)


def test_messages(pair: Pair) -> None:
    for stage in (0, 1, pair.num_stages - 1):
        assert exchanges(pair.traced, stage) == exchanges(pair.made, stage)
