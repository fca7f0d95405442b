"""One truth for ``torch.distributed.pipelining``: each of its schedules, traced against generated.

The traced program is tests/tracing/scripts/llama_stages.py: two stages, a layer in each chunk.  What every
stage does is the same, action by action and kernel by kernel; where they may differ, and why:

- Autograd computes a product's weight gradient before its input gradient, a description after; both are on
  one stream, and nothing waits in between.  So kernels of an action are compared without their order.
- Halves of a backward: torch runs a norm's backward in both, once for its input and once for its weight; a
  description in the first.
- ZB-V and interleaved zero bubble: torch leaves the input half of the model's first chunk out, whose input
  needs no gradient, and computes all of its backward with the weight half.
- DualPipeV: torch sends what a forward and a backward made after both, where they overlap; a description
  after each.
- 1F1B: torch sends and receives in one group; a description posts the first two receives one after the other.
- Attention: torch's kernel keeps 24 bytes of the random generator's state.
- Loss: 8-byte labels, which a description counts as 4; the scalar; logits of all microbatches are joined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from simcore.graph import Graph, OpKind
from tests.models.traced_cases import EAGER as SOFTWARE
from tests.models.traced_cases import MODEL
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parents[1] / "tracing/scripts/llama_stages.py"
STAGES, MICROBATCHES, SEQ = 2, 4, 128
#: A schedule of torch and its description: schedule, chunks.
CASES: dict[str, tuple[Any, int]] = {
    "ScheduleGPipe": ("gpipe", 1),
    "Schedule1F1B": ("1f1b", 1),
    "ScheduleInterleaved1F1B": ("interleaved", 2),
    "ScheduleLoopedBFS": ("gpipe", 2),
    "ScheduleInterleavedZeroBubble": ("zero_bubble", 2),
    "ScheduleZBVZeroBubble": ("zb_v", 2),
    "ScheduleDualPipeV": ("dualpipe_v", 2),
}
#: Templates of actions in either graph, by the letter of what they do; a weight half is "W" when traced.
LETTERS = {"fwd": "F", "bwd": "B", "wgrad": "W"}
#: Schedules with halves of backwards.
SPLIT = ("ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV")
NORM_BACKWARD = ("rms_norm_bwd", "aten::_fused_rms_norm_backward")
#: Kernels that only one side has, and those that differ by some bytes a token.
ONLY_TRACED = ("aten::ones_like", "aten::cat")
LABELS = ("aten::nll_loss_forward", "aten::nll_loss_backward")

#: Letter, microbatch, chunk; of a message "send" or "recv" and its phase.
Step = tuple[str, int, int] | tuple[str, str]


@pytest.fixture(scope="module")
def traced(pool: WorkerPool) -> dict[str, Graph]:
    return {
        name: trace_in(pool, ScriptJob(SCRIPT, (name, str(chunks)), world_size=STAGES))
        for name, (_, chunks) in CASES.items()
    }


def made(name: str) -> Graph:
    schedule, chunks = CASES[name]
    parallel = ParallelSpec(pp=STAGES, schedule=schedule, virtual_stages=chunks)
    training = TrainingSpec(
        micro_batch=2, global_batch=2 * MICROBATCHES, seq=SEQ, clip_gradients=False, optimizer="sgd",
        grad_dtype="bf16", grad_reduce_dtype="bf16", overlap_p2p=True, p2p_per_peer=True,
        bucket_bytes=25 * 2**20,
    )  # fmt: skip
    model = MODEL.model_copy(update={"layers": STAGES * chunks})
    return generate(model, parallel, training, SOFTWARE.model_copy(update={"swiglu_fusion": False}))


def steps(graph: Graph, stage: int) -> list[Step]:
    """Actions and messages of a stage in order.

    Left out: weight halves, which exchange nothing, and backwards of the model's first chunk, likewise.
    """
    program = next(program for program in graph.programs if program.stage == stage)
    found: list[Step] = []
    backwards: set[tuple[int, int]] = set()
    for template, microbatch, chunk in zip(program.template, program.microbatch, program.chunk, strict=True):
        rows = range(int(graph.template_start[template]), int(graph.template_start[template + 1]))
        letter = LETTERS.get(graph.template_names[template], "")
        place = (int(microbatch), int(chunk))
        if letter == "B" and (place in backwards or (stage, chunk) == (0, 0)):
            letter = "W"
        backwards |= {place} if letter == "B" else set()
        messages = {row for row in rows if graph.ops.kind[row] in (OpKind.SEND, OpKind.RECV)}
        action: list[Step] = [(letter, *place)] if letter in ("F", "B") else []
        for row in rows:
            if row in messages:
                found.append((graph.ops.name[row].removeprefix("nccl::"), graph.ops.phase[row]))
            else:
                found, action = found + action, []
    return found


def kernels(
    graph: Graph, stage: int, *, splits: bool
) -> dict[tuple[bool, int, int], Counter[tuple[int, int, int]]]:
    """By (forward, microbatch, chunk): how often a stage runs a kernel of some flops, bytes read and written,
    these in units of 256 bytes; halves of a backward (``splits``) are counted together.
    """
    ops = graph.ops
    program = next(program for program in graph.programs if program.stage == stage)
    found: dict[tuple[bool, int, int], Counter[tuple[int, int, int]]] = defaultdict(Counter)
    for template, microbatch, chunk in zip(program.template, program.microbatch, program.chunk, strict=True):
        kind = LETTERS.get(graph.template_names[template])
        for row in range(int(graph.template_start[template]), int(graph.template_start[template + 1])):
            name, read, written = ops.name[row], int(ops.bytes_read[row]), int(ops.bytes_written[row])
            if kind is None or ops.kind[row] != OpKind.COMPUTE or name.startswith(ONLY_TRACED):
                continue
            if splits and name.startswith(NORM_BACKWARD):
                continue
            if name.startswith(LABELS):
                assert read <= 17 * 2 * SEQ  # a label, a logit and the gradient of a token
                read, written = 0, written // 4096 * 4096
            found[kind == "F", int(microbatch), int(chunk)][
                int(ops.flops[row]), read // 256, written // 256
            ] += 1
    return dict(found)


@pytest.mark.parametrize("name", CASES)
def test_actions_and_messages_are_the_same(traced: dict[str, Graph], name: str) -> None:
    for stage in range(STAGES):
        ours, theirs = steps(made(name), stage), steps(traced[name], stage)
        actions = [[step for step in one if len(step) == 3] for one in (ours, theirs)]
        assert actions[0] == actions[1]
        if name in ("Schedule1F1B", "ScheduleDualPipeV"):
            messages = [[step for step in one if len(step) == 2] for one in (ours, theirs)]
            assert Counter(messages[0]) == Counter(messages[1])
        else:
            assert ours == theirs


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_every_action_are_the_same(traced: dict[str, Graph], name: str) -> None:
    graph = made(name)
    for stage in range(STAGES):
        ours, theirs = (kernels(one, stage, splits=name in SPLIT) for one in (graph, traced[name]))
        assert ours.keys() == theirs.keys()
        for action, counted in theirs.items():
            assert ours[action] == counted, (stage, action)


def test_bytes_of_messages_and_streams_are_the_same(traced: dict[str, Graph]) -> None:
    for name, (_, chunks) in CASES.items():
        for graph in (made(name), traced[name]):
            rows = [row for row in range(len(graph.ops)) if graph.ops.kind[row] in (OpKind.SEND, OpKind.RECV)]
            # Two sequences of 128 tokens, 256 wide, in bf16.
            assert {int(graph.ops.num_bytes[row]) for row in rows} == {2 * SEQ * 256 * 2}
            if chunks > 1:  # all messages with the other stage are on one stream
                assert len({graph.ops.stream[row] for row in rows}) == 1
