"""The traced workloads that come with the project (Echo's Figure 13, arXiv 2412.12487)."""

from collections import Counter
from pathlib import Path

import pytest

from simcore.graph import Graph, load_graph, verify
from simcore.graph.ops import OpKind
from workloads import catalog

GRAPHS = Path(__file__).parents[2] / "workloads/catalog/graphs"

#: name -> (layers, hidden, tp, pp, dp, microbatches); all but the default recompute every layer, in fp32
CASES = {
    catalog.DEFAULT: (96, 12288, 8, 12, 1, 96),
    "echo-gpt-175b-pp12-tp8-dp1": (96, 12288, 8, 12, 1, 96),
    "gpt-70b-pp12-tp4-dp2": (80, 8192, 4, 12, 2, 96),
    "gpt-13b-pp8-tp4-dp2": (40, 5120, 4, 8, 2, 64),
}
SEQ, VOCAB = 2048, 51200


@pytest.fixture(scope="module", params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> tuple[str, Graph]:
    return request.param, load_graph(GRAPHS / request.param)


def test_small_whole_and_consistent(case: tuple[str, Graph]) -> None:
    name, graph = case
    assert sum(path.stat().st_size for path in (GRAPHS / name).iterdir()) < 5_000_000
    assert verify(graph) == []
    layers, _, tp, pp, dp, microbatches = CASES[name]
    assert graph.workload.dims == {"tp": tp, "pp": pp, "dp": dp} and graph.world_size == tp * pp * dp
    assert graph.workload.num_microbatches == microbatches
    assert graph.workload.command.startswith(
        f"python scripts/trace_workload.py megatron-gpt --layers {layers} "
    )
    assert max(program.memory.peak for program in graph.programs) < 80e9


def test_flops_of_the_whole_job(case: tuple[str, Graph]) -> None:
    # Per microbatch forward: 24 s h^2 + 4 s^2 h per layer, logits 2 s h v; backward twice; layers recomputed.
    name, graph = case
    layers, hidden, _, _, dp, microbatches = CASES[name]
    traced = 0
    for program in graph.programs:
        flat = graph.flat_ops(program)
        traced += int(graph.ops.flops[flat.row].sum()) * program.num_ranks
    layer = 24 * SEQ * hidden**2 + 4 * SEQ**2 * hidden
    logits = 2 * SEQ * hidden * VOCAB
    passes = 3 if name == catalog.DEFAULT else 4
    assert traced == dp * microbatches * (layers * layer * passes + logits * 3)


def test_tensor_parallel_collectives_of_the_whole_job(case: tuple[str, Graph]) -> None:
    # Per layer and microbatch: two all_reduce forward, two recomputed, two backward, of one hidden state.
    # Besides one behind the embedding, and one of the logits' input gradient.
    name, graph = case
    layers, hidden, tp, _, dp, microbatches = CASES[name]
    expected = {"all_reduce": 6 * layers + 2}
    if name == catalog.DEFAULT:
        # Sequence parallel: gathered before two products, scattered behind two, and the same backward, when
        # the inputs are gathered again for the weight gradients.  The embedding's sum stays, and its gradient
        # is gathered; the logits' input is gathered, twice, and its gradient scattered.
        expected = {"all_gather": 6 * layers + 3, "reduce_scatter": 4 * layers + 1, "all_reduce": 1}
    size = SEQ * hidden * (2 if name == catalog.DEFAULT else 4)
    mine = (
        graph.ops.group.equals("tp") & (graph.ops.kind == OpKind.COLLECTIVE) & (graph.ops.num_bytes == size)
    )
    issued: Counter[str] = Counter()
    for program in graph.programs:
        for row in graph.flat_ops(program).row[mine[graph.flat_ops(program).row]].tolist():
            issued[graph.ops.collective[row]] += program.num_ranks
    assert issued == {call: tp * dp * microbatches * count for call, count in expected.items()}
