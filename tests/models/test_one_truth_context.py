"""One truth for torch's context parallelism: its ring of keys and values, traced against generated.

The traced program is tests/tracing/scripts/context.py, run eagerly, of which a description gives the last
rank: all of its queries meet the first half of everybody's keys.  Kernels of attention are the same in order,
flops and bytes, exchanges in bytes, and the same kernels wait for them.  Where they may differ, and why:

- Other ranks: of pieces that only their later queries attend to, half of the rows are merged; same flops.
- What is done to the logarithms of sums, a number a row and head, is left out of a description.
- Bytes are compared in units of 64 KiB: weights of merging, and 24 bytes of a random generator's state.
- An exchange of gradients is an all_to_all in which each rank has one partner, written down as an even one of
  that time, 4/3 of the bytes on four ranks; a description sends and receives.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.graph import Graph, OpKind
from simcore.graph.ops import EdgeKind
from workloads.models import ModelSpec
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parents[1] / "tracing/scripts/context.py"
RANKS, SEQ = 4, 4096
MODEL = ModelSpec(
    name="attention", family="llama", layers=1, hidden=512, heads=8, kv_heads=2, ffn=1024, gated=True,
    activation="silu", norm="rmsnorm", bias=False, positions="none", vocab=1024, tied_embeddings=False,
)  # fmt: skip
SOFTWARE = SoftwareSpec(attention="flash", fused_qkv=False, repeat_keys=True)
#: A unit of bytes: 1024 rows of 8 heads have numbers of 32 KiB, tensors of 512 KiB and more.
UNIT = 1 << 16

#: Flops, read and written, or a collective's bytes; whether it waits for a collective.
Step = tuple[int, int, int, bool]


@pytest.fixture(scope="module")
def traced(pool: WorkerPool) -> Graph:
    return trace_in(pool, ScriptJob(SCRIPT, (), world_size=RANKS))


def made() -> Graph:
    training = TrainingSpec(seq=SEQ, global_batch=1, clip_gradients=False)
    return generate(MODEL, ParallelSpec(cp=RANKS, cp_style="torch"), training, SOFTWARE)


def steps(graph: Graph, rank: int, name: str, module: str) -> list[Step]:
    """What ``rank`` does in a pass for attention itself, in order."""
    ops, edges = graph.ops, graph.edges
    program = graph.programs[int(graph.program_of_rank[rank])]
    template = next(t for t in program.template if graph.template_names[t] == name)
    rows = range(int(graph.template_start[template]), int(graph.template_start[template + 1]))
    calls = {row for row in rows if ops.kind[row] in (OpKind.COLLECTIVE, OpKind.RECV)}
    waiting = {
        int(edges.dst[k])
        for k in range(len(edges.dst))
        if edges.kind[k] == EdgeKind.WAIT and int(edges.src[k]) in calls
    }
    found = []
    for row in rows:
        if ops.module[row] != module:
            continue
        size = int(ops.num_bytes[row])
        if ops.collective[row] == "all_to_all":
            size = size * (RANKS - 1) // RANKS
        moved = (int(ops.bytes_read[row]) // UNIT, int(ops.bytes_written[row]) // UNIT)
        if row in calls:
            found.append((0, round(size / UNIT), 0, False))
        elif ops.kind[row] == OpKind.COMPUTE and max(moved) > 1:
            found.append((int(ops.flops[row]), *moved, row in waiting))
    return found


@pytest.mark.parametrize("name", ["fwd", "bwd"])
def test_attention_of_the_last_rank_is_the_same_op_by_op(traced: Graph, name: str) -> None:
    ours = steps(made(), 0, name, "decoder.layers.0.self_attention.core_attention")
    theirs = steps(traced, RANKS - 1, name, "")
    if name == "fwd":  # the output's heads are joined, and the loss summed
        assert theirs[len(ours) :] == [(0, 16, 0, False)]
        theirs = theirs[: len(ours)]
    assert ours == theirs


def test_every_rank_has_the_same_flops(traced: Graph) -> None:
    for name in ("fwd", "bwd"):
        found = {sum(step[0] for step in steps(traced, rank, name, "")) for rank in range(RANKS)}
        ours = steps(made(), 0, name, "decoder.layers.0.self_attention.core_attention")
        assert found == {sum(step[0] for step in ours)}
