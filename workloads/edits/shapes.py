"""Edits of sizes: microbatch, hidden, ffn, tensor parallelism.  Every op gets its new shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simcore.cost.kernel import parse_shapes
from simcore.errors import InputError
from simcore.graph import FreeTable, Graph, Program, Workload, rank_ranges
from simcore.graph.passes.view import tensors
from workloads.edits.activations import ASSUMED, activations, written_ratio
from workloads.edits.assembly import patched_ops
from workloads.edits.data_parallel import rereduced
from workloads.edits.dims import PARAMETERS, Dims, Relabel, Shape
from workloads.edits.job import EditableJob, Edited, count_changed
from workloads.edits.megatron import Sizes, groups_for, like_old, scaled_memory, sizes_of
from workloads.edits.registry import WHOLE, Call, edit

_MANY = 8  # tensors: an op on a list of all parameters
_EMBEDDING = "embedding.word_embeddings"  # whose gradient the ends of the pipeline share
_COPY_ROWS = ("embedding_fwd", "embedding_bwd")


@edit("batch.micro", value=WHOLE, help="sequences per microbatch", kinds=("traced",))
def micro_batch(job: EditableJob, call: Call) -> Edited:
    """Larger or smaller microbatches, as many of them."""
    sizes = sizes_of(job.program(call.key), call.key)
    return _resized(job, sizes, replace(sizes, micro_batch=call.value), "as many microbatches as before")


@edit("hidden", value=WHOLE, help="hidden size; heads keep their size, ffn stays", kinds=("traced",))
def hidden(job: EditableJob, call: Call) -> Edited:
    """Another hidden size with more or fewer heads of the same size."""
    sizes = sizes_of(job.program(call.key), call.key)
    head = sizes.hidden // sizes.heads
    step = head * sizes.tp
    if call.value % step:
        near = max(1, round(call.value / step)) * step
        raise InputError(f"must be a multiple of head size {head} x tp {sizes.tp}, such as {near}")
    after = replace(sizes, hidden=call.value, heads=call.value // head)
    return _resized(job, sizes, after, f"{after.heads} heads of size {head}; ffn {sizes.ffn} as before")


@edit("ffn", value=WHOLE, help="width of the feed-forward layers", kinds=("traced",))
def ffn(job: EditableJob, call: Call) -> Edited:
    """Another width of the MLP."""
    sizes = sizes_of(job.program(call.key), call.key)
    _divides("ffn", call.value, sizes.tp)
    return _resized(job, sizes, replace(sizes, ffn=call.value), "hidden and heads as before")


@edit(
    "tp", value=WHOLE, help="tensor-parallel ranks; at least 2, and traced with at least 2", kinds=("traced",)
)
def tensor_parallel(job: EditableJob, call: Call) -> Edited:
    """Column- and row-parallel weights, heads and vocabulary over another number of ranks."""
    graph = job.program(call.key)
    sizes = sizes_of(graph, call.key)
    if 1 in (sizes.tp, call.value):
        raise InputError(
            "without tensor parallelism other ops run; trace the program so (tp must be at least 2)"
        )
    for what, size in (("heads", sizes.heads), ("ffn", sizes.ffn), ("vocab", sizes.vocab)):
        _divides(what, size, call.value)
    if graph.workload.options.get("sequence_parallel"):
        _divides("seq", sizes.seq, call.value)
    return _resized(job, sizes, replace(sizes, tp=call.value), "groups keep Megatron's order: tp, dp, pp")


def _divides(what: str, size: int, by: int) -> None:
    if size % by:
        fits = [n for n in range(1, 2 * by + 1) if size % n == 0]
        near = min(fits, key=lambda n: abs(n - by))
        raise InputError(f"{what} {size} is not divisible by {by}; {near} would divide it")


def _resized(job: EditableJob, before: Sizes, after: Sizes, told: str) -> Edited:
    graph = job.program("this edit")
    options = graph.workload.options
    if options.get("overlap_grad_reduce") and options.get("distributed_optimizer"):
        raise InputError("buckets of a sharded optimizer are padded: trace without overlap_grad_reduce")
    parallel = bool(options.get("sequence_parallel"))
    head = before.hidden // before.heads
    old, new = (Dims.from_sizes(sizes, head, parallel) for sizes in (before, after))
    patches = _Patches(graph, before, after, Relabel(old, new))
    for template in range(graph.num_templates):
        patches.template(template)
    none = np.zeros(0, dtype=np.int64)
    ops = replace(
        patched_ops(graph.ops, patches.columns), alloc_bytes=np.zeros(len(graph.ops), dtype=np.int64)
    )
    edited = replace(
        graph, ops=ops, frees=FreeTable(none, none, none, none, none),
        workload=_workload(graph, before, after),
        groups=groups_for(graph, after.tp, after.dp, after.pp),
        programs=_programs(graph, before, after, patches.columns["bytes_written"]),
    )  # fmt: skip
    if options.get("overlap_grad_reduce") and after.dp > 1:
        edited = rereduced(edited, after)
    changed = np.zeros(len(graph.ops), dtype=np.bool_)
    changed[[row for column in patches.columns.values() for row in column]] = True
    assumed = (
        told,
        "every kernel is priced by its new shapes; flops and bytes follow from them",
        "gradient buffers and optimizer in proportion to parameters",
        ASSUMED,
    )
    return Edited(replace(job, graph=edited), assumed, count_changed(graph, changed) * after.tp // before.tp)


def _workload(graph: Graph, before: Sizes, after: Sizes) -> Workload:
    workload = graph.workload
    model = {**workload.model, "hidden": after.hidden, "ffn_hidden": after.ffn, "heads": after.heads}
    return replace(
        workload, model=model, micro_batch_size=after.micro_batch, dims={**workload.dims, "tp": after.tp},
        world_size=after.tp * after.dp * after.pp,
        tokens_per_step=workload.tokens_per_step // before.micro_batch * after.micro_batch,
    )  # fmt: skip


def _parameter_ratio(before: Sizes, after: Sizes, stage: int) -> float:
    first, last, layers = stage == 0, stage == before.pp - 1, before.layers // before.pp
    old = before.parameters(layers, first=first, last=last)
    return after.parameters(layers, first=first, last=last) / old


def _programs(
    graph: Graph, before: Sizes, after: Sizes, written: Mapping[int, str | int]
) -> tuple[Program, ...]:
    """Tensor-parallel rank 0 and the last keep their program, others take a middle one's."""
    place = graph.program_of_rank.reshape(before.pp, before.dp, before.tp)
    owner = place[:, :, like_old(before.tp, after.tp)].reshape(-1)
    held = activations(graph)
    return tuple(
        replace(
            program,
            ranks=rank_ranges(ranks.tolist()),
            memory=scaled_memory(
                program.memory,
                _parameter_ratio(before, after, program.stage),
                held[program.name] * written_ratio(graph, program, written),
            ),
        )
        for index, program in enumerate(graph.programs)
        if len(ranks := np.flatnonzero(owner == index))
    )


class _Patches:
    """New column values by row."""

    def __init__(self, graph: Graph, before: Sizes, after: Sizes, relabel: Relabel) -> None:
        self._graph, self._before, self._after, self._relabel = graph, before, after, relabel
        self.columns: dict[str, dict[int, str | int]] = {
            name: {}
            for name in ("in_shapes", "out_shapes", "flops", "bytes_read", "bytes_written", "num_bytes")
        }
        self._memo: dict[tuple[object, ...], dict[str, str | int]] = {}
        self._ratio = {
            template: _parameter_ratio(before, after, program.stage)
            for program in graph.programs
            for template in program.template.tolist()
        }

    def template(self, template: int) -> None:
        """All ops of a template."""
        ops = self._graph.ops
        seen: set[tuple[int, str]] = set()
        for row in self._graph.template_rows(template):
            if not ops.in_shapes[row] and not ops.out_shapes[row]:
                continue
            name, module, phase = ops.name[row], ops.module[row], ops.phase[row]
            first = False
            if name.startswith("aten::mm") and phase == "bwd":
                first = (int(ops.layer[row]), module) not in seen
                seen.add((int(ops.layer[row]), module))
            key = (
                name, module.rpartition(".")[2], ".mlp" in module, phase, first, ops.dtype[row],
                ops.group[row], ops.in_shapes[row], ops.out_shapes[row], int(ops.bytes_read[row]),
                int(ops.bytes_written[row]), int(ops.num_bytes[row]), self._ratio[template],
            )  # fmt: skip
            if key not in self._memo:
                self._memo[key] = self._new(row, first, self._ratio[template])
            for column, value in self._memo[key].items():
                self.columns[column][row] = value

    def _new(self, row: int, first: bool, ratio: float) -> dict[str, str | int]:
        ops = self._graph.ops
        read, written = (parse_shapes(text[row]) for text in (ops.in_shapes, ops.out_shapes))
        whole = len(read) > _MANY or self._flat(read) or self._flat(written)
        if whole:
            return self._scaled(row, ratio)
        forward = ops.phase[row] in ("fwd", "recompute")
        module = _EMBEDDING if ops.group[row] == "embd" else ops.module[row]
        if not module and ops.phase[row] in ("optimizer", "grad_sync"):
            module = PARAMETERS
        new_read, new_written = self._relabel.shapes(read, written, ops.name[row], module, forward, first)
        if (new_read, new_written) == (list(read), list(written)):
            return {}
        values: dict[str, str | int] = {"in_shapes": _text(new_read), "out_shapes": _text(new_written)}
        by_rows = ops.op_class[row] in _COPY_ROWS
        for column, new in (("bytes_read", new_read), ("bytes_written", new_written)):
            total = int(getattr(ops, column)[row])
            if by_rows:
                values[column] = _share(total, written[:1], new_written[:1])
            else:
                text = ops.in_shapes[row] if column == "bytes_read" else ops.out_shapes[row]
                parts = tensors(text, ops.dtype[row], total)
                values[column] = sum(
                    round(part.num_bytes * math.prod(shape) / max(1, part.numel))
                    for part, shape in zip(parts, new, strict=True)
                )
        if ops.flops[row] > 0 and len(read) >= 2 and read[-2]:
            work = math.prod(written[0]) * read[-2][-1]
            new_work = math.prod(new_written[0]) * new_read[-2][-1]
            values["flops"] = int(ops.flops[row]) * new_work // work
        if ops.num_bytes[row] > 0:
            larger = read if sum(map(math.prod, read)) >= sum(map(math.prod, written)) else written
            values["num_bytes"] = _share(
                int(ops.num_bytes[row]), larger, new_read if larger is read else new_written
            )
        return values

    def _flat(self, shapes: tuple[Shape, ...]) -> bool:
        """Whether a tensor is a buffer of parameters or gradients: larger than any activation's row."""
        largest = 4 * max(self._before.hidden, self._before.ffn, self._before.vocab, self._before.seq)
        tokens = self._before.seq * self._before.micro_batch
        return any(len(shape) == 1 and shape[0] > largest and shape[0] != tokens for shape in shapes)

    def _scaled(self, row: int, ratio: float) -> dict[str, str | int]:
        ops = self._graph.ops
        values: dict[str, str | int] = {}
        for column in ("flops", "bytes_read", "bytes_written", "num_bytes"):
            if (value := int(getattr(ops, column)[row])) > 4096:
                values[column] = round(value * ratio)
        for column in ("in_shapes", "out_shapes"):
            shapes = parse_shapes(getattr(ops, column)[row])
            if len(shapes) == 1 and self._flat(shapes):
                values[column] = _text([(round(shapes[0][0] * ratio),)])
        return values


def _share(total: int, old: tuple[Shape, ...] | list[Shape], new: tuple[Shape, ...] | list[Shape]) -> int:
    return total * sum(map(math.prod, new)) // max(1, sum(map(math.prod, old)))


def _text(shapes: list[Shape]) -> str:
    return json.dumps([list(shape) for shape in shapes], separators=(",", ":"))
