"""One truth for torchtitan: FSDP2, tensor, context, pipeline and expert parallelism.

The traced programs are torchtitan 0.3.0's trainer with its debug models of two layers
(``scripts/trace_workload.py tests/tracing/scripts/titan_small.py HOW --world-size 8 --steps 1:2``), kept
beside this file; where torchtitan is installed, a test says that tracing gives them now.  A description
generates the same collectives, by group in the same order, and the same kernels in flops and bytes, but for
what :func:`is_apart` leaves out, each for its reason:

- Parameters: a trace casts a rank's own shard and copies it into the gather's buffer, 1/N of the copy out.
- Queries, keys and values of a joined projection are copied apart; in a description attention reads them.
- Positions: what is multiplied with is looked up first, and read.
- Loss: 8-byte labels and scalars; with tensor parallelism what is as long as the tokens.  Of the embedding
  then its masks.
- Context parallelism: a rank's queries meet all keys and values; a trace counts them as causal over all keys,
  a description half of them.
- Experts: routing and sorting, step by step in a trace; w1 and w3 are products of their own, in a description
  one.  Flops are the same.
- Norms under sequence parallelism: DTensor sums each gradient in bf16 where it is made, a description all of
  them at the end (below :data:`SMALL`).
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from simcore.graph import Graph, OpKind, load_graph
from workloads.models import ModelSpec, MoeSpec
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate
from workloads.parallel.job import Job

GRAPHS = Path(__file__).with_name("graphs")
SCRIPT = Path(__file__).parents[1] / "tracing/scripts/titan_small.py"
LLAMA = ModelSpec(
    name="llama3", family="llama", layers=2, hidden=256, heads=16, ffn=768, gated=True, activation="silu",
    norm="rmsnorm", bias=False, positions="rotary", vocab=2048, tied_embeddings=False,
)  # fmt: skip
QWEN = LLAMA.model_copy(
    update={
        "name": "qwen3", "kv_heads": 8, "head_size": 128, "qk_norm": "head",
        "moe": MoeSpec(num_experts=64, top_k=8, ffn=768),
    }
)  # fmt: skip
SOFTWARE = SoftwareSpec(
    attention="flash", fused_gate_up=False, grad_accumulation_fusion=False, gradient_scaling=False,
    cross_entropy="loss_parallel", vocab_multiple=1, swiglu_fusion=False, rope_fusion=False,
    rope_style="complex", gather_inputs_again=False, batch_first=True, moe_weights_fp32=True,
)  # fmt: skip
CASES = {
    "fsdp": ParallelSpec(dp=8),
    "tp": ParallelSpec(tp=4, dp=2, sequence_parallel=True),
    "cp": ParallelSpec(cp=4, dp=2, cp_style="all_gather"),
    "pp": ParallelSpec(pp=2, dp=4),
    "ep": ParallelSpec(dp=8, ep=4),
}
#: Bytes up to which a collective is of scalars, token counts or a norm's gradient.
SMALL = 4096
PASSES = {"fwd": "fwd", "bwd": "bwd", "exchange": "bwd"}  # behind the last backward gradients are reduced

#: Collective, ranks, bytes.
Call = tuple[str, tuple[int, ...], int]


def traced(how: str) -> Graph:
    return load_graph(GRAPHS / f"titan-{how}")


def job(how: str) -> Job:
    parallel, pipelined = CASES[how], how == "pp"
    training = TrainingSpec(
        micro_batch=1 if pipelined else 2, global_batch=parallel.dp * (4 if pipelined else 2), seq=512,
        sharding="fsdp2", grad_reduce_dtype="fp32", fsdp_ends_apart=True, reshard_after_forward=not pipelined,
    )  # fmt: skip
    return Job(QWEN if how == "ep" else LLAMA, parallel, training, SOFTWARE)


def made(how: str) -> Graph:
    one = job(how)
    return generate(one.model, one.parallel, one.training, one.software)


def rows(graph: Graph, stage: int) -> list[tuple[str, int]]:
    """(pass, op) of the first rank of a stage, in order; what surrounds the passes left out."""
    program = next(program for program in graph.programs if program.stage == stage)
    return [
        (PASSES[graph.template_names[template]], row)
        for template in program.template
        if graph.template_names[template] in PASSES
        for row in range(int(graph.template_start[template]), int(graph.template_start[template + 1]))
    ]


def calls(graph: Graph, stage: int) -> dict[tuple[str, tuple[int, ...]], list[Call]]:
    """By pass and group: its collectives in order."""
    rank = next(
        rank for rank, program in enumerate(graph.program_of_rank) if graph.programs[program].stage == stage
    )
    found: dict[tuple[str, tuple[int, ...]], list[Call]] = {}
    ops = graph.ops
    for name, row in rows(graph, stage):
        if ops.kind[row] == OpKind.COLLECTIVE and ops.num_bytes[row] > SMALL:
            ranks = tuple(graph.groups[ops.group[row]].ranks_of(rank))
            call = (ops.collective[row], ranks, int(ops.num_bytes[row]))
            found.setdefault((name, ranks), []).append(call)
    return found


def is_apart(how: str, name: str, module: str, *, last: bool) -> bool:
    """Whether a kernel belongs to what differs, for a reason above; ``last``: on the stage with the loss."""
    return (
        name in ("aten::_foreach_copy_", "fsdp::all_gather_copy_in")
        or (module.endswith("qkv_linear") and name == "aten::clone")
        or (module.endswith(".self_attention") and name in ("aten::mul.Tensor", "aten::_to_copy"))
        or ".rope" in module
        or (module in ("", "loss") and last and not name.startswith("fsdp::"))
        or (how == "tp" and "embedding" in module and not name.startswith("fsdp::"))
        or (how == "cp" and "flash" in name)
        or (how == "ep" and (".moe" in module or ".mlp" in module or "qk_norm" in module))
    )


def kernels(graph: Graph, how: str, stage: int) -> dict[str, Counter[tuple[int, int, int]]]:
    """By pass: how often a kernel of some flops, bytes read and written runs, these in units of 4 KiB."""
    found: dict[str, Counter[tuple[int, int, int]]] = {"fwd": Counter(), "bwd": Counter()}
    ops, last = graph.ops, stage == CASES[how].pp - 1
    for name, row in rows(graph, stage):
        if ops.kind[row] == OpKind.COMPUTE and not is_apart(how, ops.name[row], ops.module[row], last=last):
            kernel = (int(ops.flops[row]), int(ops.bytes_read[row]) >> 12, int(ops.bytes_written[row]) >> 12)
            if max(kernel) > 1:
                found[name][kernel] += 1
    return found


def flops(graph: Graph, stage: int) -> dict[str, int]:
    """By pass, of all kernels."""
    found = dict.fromkeys(PASSES.values(), 0)
    for name, row in rows(graph, stage):
        found[name] += int(graph.ops.flops[row])
    return found


@pytest.mark.parametrize("how", CASES)
def test_collectives_are_the_same(how: str) -> None:
    ours, theirs = made(how), traced(how)
    for stage in range(CASES[how].pp):
        assert calls(ours, stage) == calls(theirs, stage)


@pytest.mark.parametrize("how", CASES)
def test_kernels_are_the_same(how: str) -> None:
    ours, theirs = made(how), traced(how)
    for stage in range(CASES[how].pp):
        assert kernels(ours, how, stage) == kernels(theirs, how, stage)
        if how != "cp":
            assert flops(ours, stage) == flops(theirs, stage)


def test_a_loss_over_columns_is_as_many_passes_over_the_logits() -> None:
    """2 x 512 tokens, 2048 / 4 words in 16 and 32 bits: 1 and 2 MiB."""

    def passes(graph: Graph) -> dict[str, Counter[tuple[str, int, int]]]:
        ops, found = graph.ops, {"fwd": Counter(), "bwd": Counter()}
        for name, row in rows(graph, 0):
            moved = int(ops.bytes_read[row]) >> 20, int(ops.bytes_written[row]) >> 20
            if ops.module[row] in ("", "loss") and sum(moved):
                found[name][ops.name[row], *moved] += 1
        return found

    ours, theirs = passes(made("tp")), passes(traced("tp"))
    assert ours == theirs
    assert [sum(one.values()) for one in ours.values()] == [6, 5]


def test_attention_of_a_part_of_the_queries_counts_half_of_the_keys() -> None:
    """Two layers of 2 sequences, 128 of 512 queries, 16 heads of 16: 4 b h s_q s_k d, backward 5/2 of it."""
    scores = 2 * 4 * 2 * 16 * 128 * 512 * 16
    ours, theirs = flops(made("cp"), 0), flops(traced("cp"), 0)
    assert theirs["fwd"] - ours["fwd"] == scores // 2
    assert theirs["bwd"] - ours["bwd"] == scores // 2 * 5 // 2


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
@pytest.mark.parametrize("how", CASES)
def test_graphs_are_what_tracing_gives_now(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from workloads.tracing.drive.rounds import workers
    from workloads.tracing.drive.script_job import ScriptJob
    from workloads.tracing.drive.trace import trace_in

    with workers(1) as pool:
        now = trace_in(pool, ScriptJob(SCRIPT, (how,), world_size=8, step=1))
    then = traced(how)
    for stage in range(CASES[how].pp):
        assert calls(now, stage) == calls(then, stage)
        assert kernels(now, how, stage) == kernels(then, how, stage)
    assert not list(tmp_path.iterdir())  # torchtitan's logs and dumps are left out
