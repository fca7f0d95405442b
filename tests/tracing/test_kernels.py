"""Kernels that torch has no operator or no cost for, and those that a compiler makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simcore.errors import InputError
from simcore.graph import Graph
from tests.tracing.small_jobs import rows
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "kernels.py"
TENSOR = 4 * 8 * 64  # bytes of the script's activations

OPERATOR = """
import torch
from workloads.tracing.kernels import KernelCost, register_cost

library = torch.library.Library("mine", "DEF")
library.define("attention(Tensor q, Tensor k, Tensor v) -> Tensor")

@torch.library.register_fake("mine::attention")
def _(q, k, v):
    return torch.empty_like(q)
"""
COST = """
@register_cost("mine::attention")
def _(q, k, v):
    return KernelCost(flops=4 * q.numel(), bytes_read=3 * 4 * q.numel(), kernel="flash_fwd",
                      op_class="attention_fwd")
"""

TRITON = """
from workloads.tracing.kernels import KernelCost, LaunchedKernel, register_launch

@register_launch("double_kernel")
def _(source, target, n, BLOCK):
    return LaunchedKernel([source], [target], KernelCost(flops=n))
"""


def run(pool: WorkerPool, how: str, setup: Path | None = None) -> Any:
    """The RankTrace of one rank."""
    return pool.submit(rank_run.run_rank, ScriptJob(SCRIPT, (how,), world_size=8, setup=setup), 1).result()


def test_an_operator_has_the_cost_that_the_user_gives(pool: WorkerPool, tmp_path: Path) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text(OPERATOR)
    names = ("name", "op_class", "flops", "bytes_read", "bytes_written")
    # By default every argument is read, and nothing is computed.
    assert ("mine::attention", "other", 0, 3 * TENSOR, TENSOR) in rows(run(pool, "operator", setup), *names)
    setup.write_text(OPERATOR + COST)
    found = rows(run(pool, "operator", setup), *names)
    assert ("flash_fwd", "attention_fwd", 4 * 8 * 64, 3 * TENSOR, TENSOR) in found
    assert not any(row[0] == "mine::attention" for row in found)


def test_a_triton_kernel_is_what_the_user_describes(pool: WorkerPool, tmp_path: Path) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text(TRITON)
    found = rows(run(pool, "triton", setup), "name", "flops", "bytes_read", "bytes_written", "phase")
    assert [row for row in found if row[0] == "double_kernel"] == [
        ("double_kernel", 8 * 64, TENSOR, TENSOR, "fwd")
    ]
    names = [row[0] for row in found]
    assert names.index("aten::randn") < names.index("double_kernel") < names.index("aten::native_layer_norm")


def test_a_triton_kernel_is_counted_by_its_code(pool: WorkerPool) -> None:
    found = run(pool, "counted")
    costs = {name: rest for name, *rest in rows(found, "name", "flops", "bytes_read", "bytes_written")}
    # Three tiles of 16 rows cover 40, two steps of 32 inner ones cover 64; operands are read once, then they
    # come from caches; 40 x 32 results are written.
    assert costs["product_kernel"] == [3 * 2 * (2 * 16 * 32 * 32), 4 * (40 * 64 + 64 * 32), 4 * 40 * 32]
    # Rows 0 to 3 of 16 x 16 tiles read 1 to 4 of them; four numbers of 8 bytes are known, and say that 1, 0,
    # 2 and 1 sums are added to.
    assert costs["causal_kernel"] == [0, 4 * 10 * 16 * 16 + 8 * 4 + 4 * 4, 4 * 4]
    assert costs["double_kernel"] == [0, TENSOR, TENSOR]
    assert found.counted == ("causal_kernel", "double_kernel", "product_kernel")


def test_attention_of_xformers_and_convolutions_in_groups(pool: WorkerPool) -> None:
    found = run(pool, "packed")
    flops = {name: number for name, number in rows(found, "name", "flops") if number}
    # Scores of 3 x 3 and 5 x 5, two products of width 64 forward, five back.
    assert flops["flash_fwd_causal"] == 2 * (9 + 25) * 2 * 64
    assert flops["flash_bwd_causal"] == 5 * (9 + 25) * 2 * 64
    # Eight places, 64 channels, three taps; gradients of input and weight.
    assert flops["aten::convolution"] == 2 * 8 * 64 * 3
    assert flops["aten::convolution_backward"] == 2 * flops["aten::convolution"]
    assert "silu_bw_fused_kernel" in {name for (name,) in rows(found, "name")}
    assert found.stand_ins == ("xformers",)


def test_a_custom_operator_is_what_its_code_launches(pool: WorkerPool) -> None:
    names = [name for (name,) in rows(run(pool, "counted"), "name")]
    # One that calls nothing of torch is a kernel itself, of a library that rules may know.
    at = names.index("double_kernel") + 1
    assert names[at : at + 2] == ["aten::add.Tensor", "simcore_tests::sent"]


def test_a_triton_kernel_that_cannot_be_followed_says_how_to_describe_it(pool: WorkerPool) -> None:
    with pytest.raises(InputError) as raised:
        run(pool, "odd")
    text = str(raised.value)
    assert (
        "kernel 'odd_kernel' is launched and not described, and its code cannot be followed (TypeError"
        in text
    )
    assert "kernels.py:" in text and "register_launch('odd_kernel')" in text


@pytest.fixture(scope="module")
def compiled(pool: WorkerPool) -> dict[str, Graph]:
    """The graph by how the script compiles its model."""
    from workloads.tracing.drive.trace import trace_in

    return {
        how: trace_in(pool, ScriptJob(SCRIPT, (how,), world_size=8))
        for how in ("eager", "compiled", "method", "ddp")
    }


def ops(graph: Graph) -> list[tuple[str, str, int, int]]:
    """(phase, cost class, flops, bytes moved) of every op."""
    table = graph.ops
    return [
        (table.phase[row], table.op_class[row], int(table.flops[row]),
         int(table.bytes_read[row] + table.bytes_written[row]))
        for row in graph.flat_ops(graph.programs[0]).row.tolist()
    ]  # fmt: skip


def test_what_torch_compile_compiles_is_fused(compiled: dict[str, Graph]) -> None:
    eager, fused = ops(compiled["eager"]), ops(compiled["compiled"])
    assert ops(compiled["method"]) == fused
    # Forward: norm, mul, add, gelu and mul are one kernel, the product stays; the input is not compiled.
    assert [op_class for phase, op_class, *_ in fused if phase == "fwd"] == [
        "dropout", "norm_fwd", "gemm", "reduction"
    ]  # fmt: skip
    assert [op_class for phase, op_class, *_ in fused if phase == "bwd"] == [
        "fill", "gemm", "gemm", "norm_bwd"
    ]  # fmt: skip
    assert sum(flops for *_, flops, _ in fused) == sum(flops for *_, flops, _ in eager)
    # Read: the input once and the norm's weight and bias; written: the output, mean and inverse deviation of
    # 8 rows.  Gelu's input, which the backward pass reads, is computed again from those.
    (norm,) = (moved for phase, op_class, _, moved in fused if (phase, op_class) == ("fwd", "norm_fwd"))
    assert norm == TENSOR + 2 * 4 * 64 + TENSOR + 2 * 4 * 8


def test_a_compiled_region_is_cut_where_gradients_are_reduced(compiled: dict[str, Graph]) -> None:
    graph = compiled["ddp"]  # verified: nothing depends on what is issued behind it
    table = graph.ops
    rows = graph.flat_ops(graph.programs[0]).row.tolist()
    backward = [table.collective[row] or table.op_class[row] for row in rows if table.phase[row] != "fwd"]
    reductions = [index for index, name in enumerate(backward) if name == "all_reduce"]
    assert len(reductions) > 1 and "norm_bwd" in backward[reductions[0] : reductions[-1]]


@pytest.mark.parametrize(
    ("mask", "blocks"),
    [
        ("none", 2 * 16),
        ("causal", 2 * (1 + 2 + 3 + 4)),
        ("documents", 4 + 16),  # each of 4 blocks of queries sees its own, or all
        ("unknown", 2 * 16),  # the most that there can be
    ],
)
def test_flex_attention_computes_the_blocks_that_its_mask_names(
    pool: WorkerPool, mask: str, blocks: int
) -> None:
    job = ScriptJob(SCRIPT.with_name("flex.py"), (mask,), world_size=2)
    found = pool.submit(rank_run.run_rank, job, 1).result()
    attention = {
        name: (flops, shapes)
        for op_class, name, flops, shapes in rows(found, "op_class", "name", "flops", "out_shapes")
        if op_class.startswith("attention")
    }
    # Two products of a block of 128 x 128 scores in width 16, for each of 4 heads; backward five.
    flops = 2 * 2 * 128 * 128 * 16 * 4 * blocks
    queries, keys = "[2,4,512,16]", "[2,2,512,16]"
    assert attention == {
        "flex_attention_full_fwd": (flops, f"[{queries},[2,4,512]]"),
        "flex_attention_full_bwd": (flops * 5 // 2, f"[{queries},{keys},{keys}]"),
    }
    assumed = {asked.rule for asked, _ in found.asked if asked.kind == "share"}
    assert assumed == (
        {"every element counts as true, every entry as different"} if mask == "unknown" else set()
    )
