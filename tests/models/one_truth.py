"""Comparing a generated graph with the traced one of the same program, op by op."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from simcore.graph import Graph, OpKind
from simcore.graph.ops import EdgeKind
from workloads.edits.described.description import described
from workloads.parallel.generate import generate

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
    job = described(traced.workload, kernels)
    training = job.training.model_copy(update={"overlap_p2p": False})
    return generate(job.model, job.parallel, training, job.software)


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
