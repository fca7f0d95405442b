"""One truth for plain PyTorch: DDP, FSDP2, HSDP and tensor parallelism, traced against generated.

The traced program is tests/tracing/scripts/llama.py.  Where they may differ, and why:

- FSDP2: a trace issues a layer's gather when the host reaches the layer, a description one layer ahead; both
  are on the gathers' own stream, which waits for no compute, so they start alike.
- FSDP2: torch reshards the last layer after its forward and gathers it again at once; a description keeps it
  through the turn, as torchtitan tells torch to.
- Tensor parallelism: each of torch's column-parallel layers sums its own input's gradient, five in a layer;
  a description adds the gradients of one input up first, as Megatron does and torchtitan's
  PrepareModuleInput: twice in a layer.  The script's head is whole on each rank, a description splits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simcore.graph import Graph
from tests.tracing.small_jobs import column
from workloads.models import ModelSpec
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate
from workloads.tracing.pool import workers
from workloads.tracing.script.job import ScriptJob

SCRIPT = Path(__file__).parents[1] / "tracing/scripts/llama.py"
LAYERS = 3
MODEL = ModelSpec(
    name="llama", family="llama", layers=LAYERS, hidden=256, heads=8, kv_heads=4, ffn=512, gated=True,
    activation="silu", norm="rmsnorm", bias=False, positions="none", vocab=1024, tied_embeddings=False,
)  # fmt: skip
SOFTWARE = SoftwareSpec(
    attention="flash", fused_qkv=False, fused_gate_up=False, grad_accumulation_fusion=False,
    gradient_scaling=False, cross_entropy="unfused", vocab_multiple=1, qkv_grad_copy=False,
)  # fmt: skip
DDP = {"sharding": "ddp", "grad_dtype": "bf16", "grad_reduce_dtype": "bf16"}
BUCKETS = {"bucket_bytes": 25 * 2**20, "overlap_grad_reduce": True}
FSDP = {"sharding": "fsdp2", "grad_reduce_dtype": "fp32"}
CASES: dict[str, tuple[ParallelSpec, dict[str, Any]]] = {
    "ddp": (ParallelSpec(dp=8), DDP | BUCKETS),
    "fsdp2": (ParallelSpec(dp=8), FSDP),
    "hsdp": (ParallelSpec(dp=8, dp_shard=4), FSDP),
    "tp": (ParallelSpec(tp=4), DDP),
}
#: Parameters of a layer: q and o, k and v, three of the feed-forward block, two norms.
LAYER = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256

#: Forward and backward: each op as its flops, or as (collective, ranks, bytes).
Step = dict[str, list[int | tuple[str, int, int]]]


@pytest.fixture(scope="module")
def traced() -> Iterator[dict[str, Step]]:
    pytest.importorskip("torch")
    from workloads.tracing.script import rank_script

    with workers(rank_script.prepare, 1) as pool:
        found = {}
        for how, (parallel, _) in CASES.items():
            job = ScriptJob(SCRIPT, (how,), world_size=parallel.world_size)
            trace = pool.run(rank_script.run_script, job, 1).trace
            program = trace.program
            sizes = {name: len(ranks) for name, ranks in trace.groups.items()}
            templates = [program.templates[entry.template] for entry in program.skeleton]
            names = ("collective", "group", "comm_bytes", "flops")
            found[how] = {
                t.name: _ops(zip(*(column(t, name) for name in names), strict=True), sizes) for t in templates
            }
        yield found


def made(how: str) -> Step:
    parallel, settings = CASES[how]
    training = TrainingSpec(
        micro_batch=2, global_batch=2 * parallel.dp, seq=128, clip_gradients=False, optimizer="sgd",
        **settings,
    )  # fmt: skip
    graph = generate(MODEL, parallel, training, SOFTWARE)
    sizes = {name: group.size for name, group in graph.groups.items()}
    return {
        graph.template_names[t]: _ops(_rows(graph, int(t)), sizes) for t in set(graph.programs[0].template)
    }


def _rows(graph: Graph, template: int) -> Iterator[tuple[str, str, int, int]]:
    ops = graph.ops
    for row in range(int(graph.template_start[template]), int(graph.template_start[template + 1])):
        yield ops.collective[row], ops.group[row], int(ops.comm_bytes[row]), int(ops.flops[row])


def _ops(rows: Any, sizes: dict[str, int]) -> list[int | tuple[str, int, int]]:
    return [
        (what, sizes[group], size) if what else flops for what, group, size, flops in rows if what or flops
    ]


def calls(ops: list[int | tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return [op for op in ops if isinstance(op, tuple)]


def products(ops: list[int | tuple[str, int, int]]) -> list[int]:
    return [op for op in ops if isinstance(op, int)]


def test_ddp_is_the_same_op_by_op(traced: dict[str, Step]) -> None:
    ours = made("ddp")
    assert [ours[name] for name in ("fwd", "bwd")] == [traced["ddp"][name] for name in ("fwd", "bwd")]


@pytest.mark.parametrize("how", ["fsdp2", "hsdp"])
def test_fsdp_gathers_and_reduces_the_same(traced: dict[str, Step], how: str) -> None:
    ours, theirs = made(how), traced[how]
    shard = 8 if how == "fsdp2" else 4
    for name in ("fwd", "bwd"):
        assert products(ours[name]) == products(theirs[name])
    assert calls(ours["fwd"]) == calls(theirs["fwd"])
    # The last layer, which torch reshards and gathers again at once, comes first.
    assert [("all_gather", shard, 2 * LAYER), *calls(ours["bwd"])] == calls(theirs["bwd"])


def test_tensor_parallel_layers_are_the_same(traced: dict[str, Step]) -> None:
    ours, theirs = made("tp"), traced["tp"]
    in_layers = 8 * LAYERS  # seven products and attention
    assert products(ours["fwd"])[:in_layers] == products(theirs["fwd"])[:in_layers]
    assert products(ours["bwd"])[2:] == products(theirs["bwd"])[2:]
    activation = ("all_reduce", 4, 2 * 128 * 256 * 2)
    assert calls(theirs["fwd"]) == [activation] * 2 * LAYERS
    # The description's embedding is split, too, and its loss shares a few numbers a token.
    assert calls(ours["fwd"])[: 2 * LAYERS + 1] == [activation] * (2 * LAYERS + 1)
    assert calls(theirs["bwd"]) == [activation] * 5 * LAYERS
    assert calls(ours["bwd"]) == [activation] * (2 * LAYERS + 1)
