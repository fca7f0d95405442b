"""Another number of data-parallel replicas, each with the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simcore.errors import InputError
from simcore.graph import Graph, OpKind, Program, Workload, rank_ranges
from workloads.edits.activations import activations
from workloads.edits.assembly import Assembly, Piece, patched_ops
from workloads.edits.buckets import Bucket, Parameter, buckets, first_stage_parameters, reduced_after
from workloads.edits.job import EditableJob, Edited, count_changed
from workloads.edits.megatron import (
    Sizes,
    groups_for,
    like_old,
    scaled_memory,
    segments,
    sizes_of,
    stage_parts,
)
from workloads.edits.registry import WHOLE, Call, edit

_GRADIENT_BYTES = 4  # Megatron accumulates and reduces gradients in fp32
_SMALL_BYTES = 4096


@edit("dp", value=WHOLE, help="data-parallel replicas, each with the same work", kinds=("traced",))
def data_parallel(job: EditableJob, call: Call) -> Edited:
    """Gradients reduced over other groups, in the buckets that Megatron makes for them."""
    graph = job.program("dp")
    before = sizes_of(graph, "dp")
    after = replace(before, dp=call.value)
    options = graph.workload.options
    sharded, overlap = bool(options.get("distributed_optimizer")), bool(options.get("overlap_grad_reduce"))
    if sharded and 1 in (before.dp, after.dp):
        raise InputError("a sharded optimizer over one replica has other ops; dp must be at least 2")
    workload = _workload(graph.workload, before, after)
    parameters = first_stage_parameters(before, _first_stage_layers(graph))
    same_buckets = not overlap or buckets(parameters, before.dp) == buckets(parameters, after.dp)
    if sharded and not same_buckets:
        raise InputError(
            "buckets of a sharded optimizer are padded for the number of replicas: trace without"
            f" overlap_grad_reduce, or keep dp at most {_same_up_to(parameters, before.dp)}"
        )
    groups = groups_for(graph, after.tp, after.dp, after.pp)
    reduces = graph.ops.group.equals("dp")
    if min(before.dp, after.dp) > 1 and same_buckets:
        edited = replace(graph, workload=workload, groups=groups, programs=_programs(graph, before, after))
        if sharded:
            edited = _shards(edited, before.dp / after.dp)
    else:
        edited = _rewritten(graph, before, after, overlap, workload)
        reduces = edited.ops.group.equals("dp")
    assumed = [
        f"{after.dp} replicas of {before.microbatches} microbatches each; tokens per step grow with them"
    ]
    if overlap:
        count = len(buckets(parameters, after.dp))
        assumed.append(
            f"the first stage reduces gradients in {count} buckets while it goes backward, others at the end"
        )
    if sharded:
        assumed.append(
            "optimizer states and work in proportion to 1 / dp; gathers and scatters of the same size"
        )
    if min(before.dp, after.dp) == 1 or not same_buckets:
        assumed.append("activations as before")
    return Edited(replace(job, graph=edited), tuple(assumed), count_changed(edited, reduces))


def _same_up_to(parameters: list[Parameter], dp: int) -> int:
    here = buckets(parameters, dp)
    return max(n for n in (dp, 2 * dp, 4 * dp, 8 * dp, 16 * dp) if buckets(parameters, n) == here)


def _workload(workload: Workload, before: Sizes, after: Sizes) -> Workload:
    return replace(
        workload,
        world_size=after.tp * after.pp * after.dp,
        dims={**workload.dims, "dp": after.dp},
        tokens_per_step=workload.tokens_per_step // before.dp * after.dp,
    )


def _programs(graph: Graph, before: Sizes, after: Sizes) -> tuple[Program, ...]:
    return tuple(
        replace(one, ranks=ranks)
        for one, ranks in zip(graph.programs, _ranks(graph, before, after), strict=True)
    )


def _ranks(graph: Graph, before: Sizes, after: Sizes) -> list[tuple[tuple[int, int, int], ...]]:
    """New ranks of each program: replica 0 and the last keep their program, others take a middle one's."""
    by_place = graph.program_of_rank.reshape(before.pp, before.dp, before.tp)
    owner = by_place[:, like_old(before.dp, after.dp), :].reshape(-1)
    return [rank_ranges(np.flatnonzero(owner == index).tolist()) for index in range(len(graph.programs))]


def _shards(graph: Graph, ratio: float) -> Graph:
    """Work of the optimizer on its shard, ``ratio`` times as much."""
    ops = graph.ops
    rows = np.flatnonzero((ops.kind == OpKind.COMPUTE) & ops.phase.equals("optimizer"))
    patches = {
        column: {
            row: round(int(getattr(ops, column)[row]) * ratio)
            for row in rows.tolist()
            if int(getattr(ops, column)[row]) > _SMALL_BYTES
        }
        for column in ("bytes_read", "bytes_written", "flops")
    }
    programs = tuple(
        replace(one, memory=replace(one.memory, optimizer_states=round(one.memory.optimizer_states * ratio)))
        for one in graph.programs
    )
    return replace(graph, ops=patched_ops(ops, patches), programs=programs)


def _first_stage_layers(graph: Graph) -> int:
    first = next(program for program in graph.programs if program.stage == 0)
    return len(segments(graph, stage_parts(graph, first).forward).layers)


def _rewritten(graph: Graph, before: Sizes, after: Sizes, overlap: bool, workload: Workload) -> Graph:
    """Programs with their gradient reductions taken out and put in anew."""
    assembly = Assembly(graph)
    writer = _Reductions(graph, after, overlap)
    ranks = _ranks(graph, before, after)
    held = activations(graph)
    for program, mine in zip(graph.programs, ranks, strict=True):
        if not mine:
            continue
        parts = stage_parts(graph, program)
        played, names = program.template.tolist(), graph.template_names
        last = max(at for at, t in enumerate(played) if names[t] == "bwd")
        buffer = after.parameters(
            len(segments(graph, parts.forward).layers),
            first=program.stage == 0,
            last=program.stage == after.pp - 1,
        )
        new: list[tuple[int, int, int]] = []
        reduced, unused = after.dp == 1, True
        for at, template in enumerate(played):
            rows = [row for row in graph.template_rows(template) if not writer.is_reduction(row)]
            pieces = [Piece(row) for row in rows]
            in_backward = overlap and program.stage == 0
            if at == last and in_backward and after.dp > 1:
                pieces, reduced = writer.in_backward(rows), True
            elif at > last and not reduced and names[template] in ("grad_sync", "optimizer"):
                new.append((assembly.template("grad_sync", writer.whole(buffer, 0)), -1, 0))
                reduced = True
            if pieces and unused and overlap and after.dp > 1 and at > last and names[template] != "exchange":
                # The buffer is used when its reductions, on a stream of their own, are done.
                pieces[0], unused = replace(pieces[0], waits=("dp",)), False
            if pieces:
                number = assembly.template(names[template], pieces)
                new.append((number, int(program.microbatch[at]), int(program.chunk[at])))
        memory = scaled_memory(program.memory, 1.0, held[program.name])
        assembly.program(program, mine, program.stage, new, program.layer_offset, memory)
    return assembly.build(workload, groups_for(graph, after.tp, after.dp, after.pp))


def rereduced(graph: Graph, sizes: Sizes) -> Graph:
    """A graph of other sizes whose first stage reduces gradients in the buckets of these sizes."""
    return _rewritten(graph, sizes, sizes, True, graph.workload)


class _Reductions:
    """Finds and writes gradient reductions: scale the buffer, reduce it."""

    def __init__(self, graph: Graph, sizes: Sizes, overlap: bool) -> None:
        self._graph, self._sizes, self._overlap = graph, sizes, overlap
        ops = graph.ops
        dp = np.flatnonzero(ops.group.equals("dp") & (ops.kind == OpKind.COLLECTIVE)).tolist()
        self._own = set(dp)
        # The buffer is divided by the number of replicas just before.
        self._own |= {
            row - 1
            for row in dp
            if ops.name[row - 1].startswith("aten::mul_") and ops.phase[row - 1] == "grad_sync"
        }
        others = np.flatnonzero(
            (ops.kind == OpKind.COLLECTIVE) & ops.collective.equals("all_reduce")
        ).tolist()
        fills = [row for row in range(len(ops)) if ops.name[row].startswith("aten::zero_")]
        if not others or not fills:
            raise InputError("the traced program has no all_reduce or no gradient buffer to copy")
        self._reduce, self._scale = (dp or others)[0], fills[0]

    def is_reduction(self, row: int) -> bool:
        """Whether an op reduces gradients over replicas, or prepares it."""
        return row in self._own

    def whole(self, elements: int, at: int) -> list[Piece]:
        """Reduce a buffer of ``elements``; ``at`` is the position of the first op in its template."""
        num_bytes, shape = elements * _GRADIENT_BYTES, f"[[{elements}]]"
        stream = "dp" if self._overlap else "compute"
        scale = Piece(self._scale, (
            ("name", "aten::mul_.Tensor"), ("op_class", "elementwise"), ("phase", "grad_sync"),
            ("in_shapes", shape), ("out_shapes", shape),
            ("bytes_read", num_bytes), ("bytes_written", num_bytes),
        ))  # fmt: skip
        reduce = Piece(self._reduce, (
            ("name", "nccl::all_reduce"), ("collective", "all_reduce"), ("group", "dp"), ("stream", stream),
            ("phase", "grad_sync"), ("in_shapes", shape), ("out_shapes", shape), ("num_bytes", num_bytes),
            ("dtype", "float32"), ("blocking", 0), ("layer", -1), ("module", ""), ("reduce_op", "sum"),
        ), (at,) if self._overlap else ())  # fmt: skip
        return [scale, reduce]

    def in_backward(self, rows: Sequence[int]) -> list[Piece]:
        """A backward with a reduction after the last gradient of each bucket."""
        layers = len({int(layer) for layer in self._graph.ops.layer[list(rows)] if layer >= 0})
        wanted: list[Bucket] = buckets(first_stage_parameters(self._sizes, layers), self._sizes.dp)
        after = reduced_after(self._graph, list(rows), wanted)
        pieces: list[Piece] = []
        for place, row in enumerate(rows):
            pieces.append(Piece(row))
            for bucket in after.get(place, ()):
                pieces += self.whole(bucket.numel, len(pieces))
        return pieces
