"""Comparing a generated graph with the traced one of the same program, op by op."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from simcore.graph import Graph, OpKind
from simcore.graph.ops import EdgeKind
from workloads.models import ModelSpec, MoeSpec
from workloads.models.software import AttentionKernels, SoftwareSpec
from workloads.parallel.generate import generate
from workloads.parallel.spec import ParallelSpec, TrainingSpec

PHASES = ("fwd", "bwd")


@dataclass(frozen=True)
class Op:
    """A compute kernel or collective; ``waits`` are names of collectives on other streams."""

    name: str
    module: str
    phase: str
    stream: str
    flops: int
    bytes_read: int
    bytes_written: int
    group: str
    num_bytes: int
    reduce_op: str
    waits: tuple[str, ...]


def generated(traced: Graph, kernels: str) -> Graph:
    """What the description of a traced Megatron-Core GPT job generates, with kernels mapped alike."""
    work = traced.workload
    dims, model, options = work.dims, work.model, work.options
    fp32, pp = work.precision == "fp32", dims.get("pp", 1)
    ends = (options["first_stage_layers"], options["last_stage_layers"])
    layers: tuple[int, ...] = ()
    if any(ends):
        layers = (ends[0], *[(model["layers"] - sum(ends)) // (pp - 2)] * (pp - 2), ends[1])
    parallel = ParallelSpec(
        tp=dims.get("tp", 1), pp=pp, dp=dims.get("dp", 1), stage_layers=layers,
        cp=dims.get("cp", 1), ep=model.get("ep", 1),
        sequence_parallel=options["sequence_parallel"], virtual_stages=options["virtual_pipeline"],
        schedule="interleaved" if options["virtual_pipeline"] > 1 else "1f1b",
    )  # fmt: skip
    training = TrainingSpec(
        micro_batch=work.micro_batch_size, seq=work.seq_len, precision=work.precision,  # type: ignore[arg-type]
        global_batch=work.num_microbatches * work.micro_batch_size * parallel.dp,
        recompute=options["recompute"], param_gather_dtype=work.precision,  # type: ignore[arg-type]
        sharding="zero1" if options["distributed_optimizer"] else "ddp",
        overlap_grad_reduce=options["overlap_grad_reduce"],
        overlap_param_gather=options["overlap_param_gather"],
    )  # fmt: skip
    in_16_bits: AttentionKernels = "cudnn" if kernels == "cudnn" else "flash"
    attention: AttentionKernels = "efficient" if fp32 else in_16_bits
    if kernels == "megatron" and parallel.cp == 1:  # else the recipe's stand-in for Transformer Engine's
        attention = "unfused"
    # The tracing recipe does not pad the vocabulary; Megatron's default dropout is 0.1.  Its experts are
    # products one by one with a GELU that is not fused, its router works step by step.
    software = SoftwareSpec(
        attention=attention, vocab_multiple=1, bias_activation_fusion="num_experts" not in model,
        moe_grouped_gemm=False, moe_permute_fusion=False, moe_router_fp32=False,
    )  # fmt: skip
    experts = None
    if "num_experts" in model:
        experts = MoeSpec(
            num_experts=model["num_experts"], top_k=model["moe_top_k"], ffn=model["ffn_hidden"], bias=True
        )
    spec = ModelSpec(
        name=work.name, layers=model["layers"], hidden=model["hidden"], heads=model["heads"],
        ffn=model["ffn_hidden"], vocab=model["vocab"], dropout=0.1,
        moe=experts,
    )  # fmt: skip
    return generate(spec, parallel, training, software)


def actions(graph: Graph) -> dict[int, list[tuple[str, list[Op]]]]:
    """Per stage its forwards and backwards in order: template name and ops."""
    bodies = [_ops(graph, template) for template in range(graph.num_templates)]
    found: dict[int, list[tuple[str, list[Op]]]] = {}
    for program in graph.programs:
        found.setdefault(
            program.stage,
            [
                (graph.template_names[t], bodies[t])
                for t in program.template
                if graph.template_names[t] in PHASES
            ],
        )
    return found


def of_first_rank(graph: Graph, stage: int, phases: tuple[str, ...]) -> list[Op]:
    """All ops of ``phases`` that the first rank of a stage runs in a step, in order."""
    program = next(program for program in graph.programs if program.stage == stage)
    bodies = {int(t): _ops(graph, int(t)) for t in set(program.template)}
    return [op for t in program.template for op in bodies[int(t)] if op.phase in phases]


def exchanges(graph: Graph, stage: int) -> dict[tuple[str, int], list[int]]:
    """Bytes of a stage's messages in order, by ("send" or "recv", peer)."""
    program = next(program for program in graph.programs if program.stage == stage)
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    members = {name: group.size for name, group in graph.groups.items()}
    for t in program.template:
        for row in range(int(graph.template_start[t]), int(graph.template_start[t + 1])):
            kind = int(graph.ops.kind[row])
            if kind in (OpKind.SEND, OpKind.RECV):
                peer = int(graph.ops.peer_delta[row]) % members[graph.ops.group[row]]
                found["send" if kind == OpKind.SEND else "recv", peer].append(int(graph.ops.num_bytes[row]))
    return dict(found)


def _ops(graph: Graph, template: int) -> list[Op]:
    ops, edges = graph.ops, graph.edges
    start, stop = int(graph.template_start[template]), int(graph.template_start[template + 1])
    waits: dict[int, list[str]] = defaultdict(list)
    for k in np.flatnonzero(
        (edges.dst >= start) & (edges.dst < stop) & (edges.src >= 0) & (edges.kind == EdgeKind.WAIT)
    ):
        source = int(edges.src[k])
        if ops.kind[source] == OpKind.COLLECTIVE:
            waits[int(edges.dst[k])].append(ops.name[source])
    return [
        Op(
            name=ops.name[row], module=ops.module[row], phase=ops.phase[row], stream=ops.stream[row],
            flops=int(ops.flops[row]), bytes_read=int(ops.bytes_read[row]),
            bytes_written=int(ops.bytes_written[row]), group=ops.group[row],
            num_bytes=int(ops.num_bytes[row]), reduce_op=ops.reduce_op[row],
            waits=tuple(sorted(waits[row])),
        )
        for row in range(start, stop) if ops.kind[row] in (OpKind.COMPUTE, OpKind.COLLECTIVE)
    ]  # fmt: skip
