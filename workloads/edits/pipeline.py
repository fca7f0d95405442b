"""Edits of the pipeline: stages, schedule, microbatches, layers.

Templates are cut at layers and put together anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from simcore.errors import InputError
from simcore.graph import Action, Graph, OpKind, validate_schedule
from simcore.memory import peak_memory
from workloads.edits.activations import ASSUMED, held_at_once, program_holds, regrouped
from workloads.edits.assembly import Assembly, Piece
from workloads.edits.job import EditableJob, Edited, plays
from workloads.edits.layout import SCHEDULE, Layout, schedule_named
from workloads.edits.megatron import (
    Segments,
    Sizes,
    StageParts,
    counter_row,
    exchange_rows,
    groups_for,
    scaled_memory,
    segments,
    sizes_of,
    stage_parts,
)
from workloads.edits.registry import WHOLE, Call, edit

_LAYER = re.compile(r"(layers\.)\d+")


@edit("schedule", value=SCHEDULE, help="another order of forwards and backwards", kinds=("traced",))
def schedule(job: EditableJob, call: Call) -> Edited:
    """The same work per microbatch in another order; model chunks are made of the stage's layers."""
    sizes = sizes_of(job.program(call.key), call.key)
    return _edited(job, sizes, sizes, call.value)


@edit("pp", value=WHOLE, help="pipeline stages; layers are regrouped", kinds=("traced",))
def pipeline_stages(job: EditableJob, call: Call) -> Edited:
    """Layers on another number of stages."""
    sizes = sizes_of(job.program(call.key), call.key)
    if call.value < 2:
        raise InputError("a pipeline needs at least 2 stages to be edited; trace the program without one")
    return _edited(job, sizes, replace(sizes, pp=call.value))


@edit("layers", value=WHOLE, help="layers of the model", kinds=("traced",))
def layers(job: EditableJob, call: Call) -> Edited:
    """More or fewer of the same layers."""
    sizes = sizes_of(job.program(call.key), call.key)
    return _edited(job, sizes, replace(sizes, layers=call.value))


@edit("num_microbatches", value=WHOLE, help="microbatches per step and replica", kinds=("traced",))
def num_microbatches(job: EditableJob, call: Call) -> Edited:
    """More or fewer of the same microbatches."""
    sizes = sizes_of(job.program(call.key), call.key)
    return _edited(job, sizes, replace(sizes, microbatches=call.value))


def _edited(job: EditableJob, before: Sizes, after: Sizes, schedule_name: str = "") -> Edited:
    graph = job.program("this edit")
    if before.pp < 2:
        raise InputError("the traced program has no pipeline: sends and receives of one are not known")
    options = graph.workload.options
    name = schedule_name or str(options.get("schedule", "1f1b"))
    order, chunks = schedule_named(name, after.pp, after.microbatches)
    validate_schedule(order)
    regroups = (after.pp, after.layers, chunks) != (before.pp, before.layers, 1)
    if regroups and (options.get("first_stage_layers") or options.get("last_stage_layers")):
        raise InputError("stages with unequal numbers of layers cannot be regrouped")
    layout = Layout(after, chunks, order, regroups)
    edited = rebuilt(graph, before, layout)
    workload = replace(edited.workload, options={**edited.workload.options, "schedule": name})
    edited = replace(edited, workload=workload)
    assumed = [
        f"{name}, {after.pp} stages, {after.layers} layers, {after.microbatches} microbatches",
        "every layer runs the ops that a layer in the same place of a traced stage runs",
        ASSUMED,
    ]
    if chunks > 1:
        assumed.append("exchanges of model chunks run beside the computation, which waits for what it needs")
    if after.layers != before.layers or after.pp != before.pp:
        assumed.append("gradient buffers, optimizer and their communication in proportion to parameters")
    return Edited(replace(job, graph=edited), tuple(assumed), int(plays(edited).sum()))


def rebuilt(graph: Graph, before: Sizes, layout: Layout) -> Graph:
    """The graph of ``layout`` from the ops of ``graph``."""
    after, pp = layout.sizes, layout.sizes.pp
    per_stage = after.tp * before.dp
    writer = _Writer(graph, before, layout)
    for stage in range(pp):
        source = stage
        if layout.regroups:
            source = 0 if stage == 0 else before.pp - 1 if stage == pp - 1 else min(1, before.pp - 2)
        for program in graph.programs:
            if program.stage == source:
                shift = (stage - source) * per_stage
                ranks = [(lo + shift, hi + shift, step) for lo, hi, step in program.ranks]
                writer.program(stage_parts(graph, program), stage, source, ranks)
    model = {**graph.workload.model, "layers": after.layers}
    tokens = graph.workload.tokens_per_step * after.microbatches // before.microbatches
    workload = replace(
        graph.workload, world_size=after.tp * before.dp * pp, num_microbatches=after.microbatches,
        model=model, dims={**graph.workload.dims, "pp": pp}, tokens_per_step=tokens,
    )  # fmt: skip
    groups = groups_for(graph, after.tp, before.dp, pp)
    if layout.chunks > 1:
        groups["pp.bwd"] = replace(groups["pp"], name="pp.bwd")
    return writer.assembly.build(workload, groups)


class _Writer:
    """Writes the programs of a layout."""

    def __init__(self, graph: Graph, before: Sizes, layout: Layout) -> None:
        self.graph, self.before, self.layout = graph, before, layout
        self.assembly = Assembly(graph)
        self._exchange = exchange_rows(graph)
        self._counter = counter_row(graph)
        self._memory = {found.program: found for found in peak_memory(graph)}

    def program(
        self, parts: StageParts, stage: int, source: int, ranks: Sequence[tuple[int, int, int]]
    ) -> None:
        """One rank class of a new stage, from the parts of an old one."""
        layout, write = self.layout, self.assembly.template
        pp, chunks = layout.sizes.pp, layout.chunks
        own = len(segments(self.graph, parts.forward).layers)
        per_chunk = layout.layers_per_chunk if layout.regroups else own
        ratio = self._parameter_ratio(stage, source) if layout.regroups else 1.0
        actions = layout.schedule[stage]
        played: list[tuple[int, int, int]] = []
        if parts.begin:
            played.append((write("begin", self._scaled(parts.begin, ratio)), -1, 0))
        last = max(at for at, action in enumerate(actions) if action.kind == "B")
        for at, action in enumerate(actions):
            self._exchanges(played, stage, actions[at - 1] if at else None, action)
            template = parts.forward if action.kind == "F" else parts.backward
            if at == last and parts.last_backward != parts.backward:
                template = self._last_backward(parts, per_chunk)
            virtual = action.chunk * pp + stage
            body = self._body(
                segments(self.graph, template),
                per_chunk,
                action.kind == "F",
                virtual == 0,
                virtual == pp * chunks - 1,
            )
            name = "fwd" if action.kind == "F" else "bwd"
            played.append((write(name, body), action.microbatch, action.chunk))
            if action.kind == "F" and self._counter is not None:
                played.append((write("exchange", [Piece(self._counter)]), action.microbatch, action.chunk))
        self._exchanges(played, stage, actions[-1], None)
        for name, rows in parts.finish:
            # Stages in the middle have no embedding to reduce with the other end.
            kept = [row for row in rows if stage in (0, pp - 1) or self.graph.ops.group[row] != "embd"]
            if kept:
                played.append((write(name, self._scaled(kept, ratio)), -1, 0))
        offsets = parts.program.layer_offset
        if layout.regroups:
            offsets = tuple((chunk * pp + stage) * per_chunk for chunk in range(chunks))
        held = held_at_once(action.kind == "F" for action in actions if action.kind in "FB")
        share = held * per_chunk / (program_holds(self.graph, parts.program) * own)
        held_bytes = regrouped(self._memory[parts.program.name], share)
        memory = scaled_memory(parts.program.memory, ratio, held_bytes)
        self.assembly.program(parts.program, ranks, stage, played, offsets, memory)

    def _last_backward(self, parts: StageParts, per_chunk: int) -> int:
        """The last backward, which may reduce gradients on its way: its buckets are those of its layers."""
        ops = self.graph.ops
        reduces = any(ops.phase[row] == "grad_sync" for row in self.graph.template_rows(parts.last_backward))
        same = len(segments(self.graph, parts.last_backward).layers) == per_chunk
        if reduces and not (same and self.layout.chunks == 1):
            raise InputError(
                "gradients are reduced during the backward, in buckets that depend on the layers of a stage;"
                " trace without overlap_grad_reduce, or keep the layers of each stage"
            )
        return parts.last_backward

    def _body(self, cut: Segments, count: int, forward: bool, first: bool, last: bool) -> list[Piece]:
        """Embedding, ``count`` layers, loss; backwards in a backward."""
        head, tail = (first, last) if forward else (last, first)
        pieces = [Piece(row) for row in cut.head] if head else []
        for place in range(count):
            layer = place if forward else count - 1 - place
            old = (
                0
                if place == 0
                else len(cut.layers) - 1
                if place == count - 1
                else min(1, len(cut.layers) - 1)
            )
            pieces += [Piece(row, self._layer_patch(row, layer)) for row in cut.layers[old]]
        return pieces + ([Piece(row) for row in cut.tail] if tail else [])

    def _layer_patch(self, row: int, layer: int) -> tuple[tuple[str, str | int], ...]:
        ops = self.graph.ops
        if int(ops.layer[row]) == layer or ops.layer[row] < 0:
            return ()
        return ("layer", layer), ("module", _LAYER.sub(rf"\g<1>{layer}", ops.module[row], count=1))

    def _parameter_ratio(self, stage: int, source: int) -> float:
        old, new = self.before, self.layout.sizes
        count = self.layout.layers_per_chunk * self.layout.chunks
        before = old.parameters(old.layers // old.pp, first=source == 0, last=source == old.pp - 1)
        return new.parameters(count, first=stage == 0, last=stage == new.pp - 1) / before

    def _scaled(self, rows: Sequence[int], ratio: float) -> list[Piece]:
        """Ops over all parameters of a stage, for another number of them."""
        return [Piece(row, self._scale_patch(row, ratio)) for row in rows]

    def _scale_patch(self, row: int, ratio: float) -> tuple[tuple[str, str | int], ...]:
        ops = self.graph.ops
        # The tied embedding's gradient is as large on any stage; small things count ranks, not parameters.
        if ratio == 1.0 or ops.group[row] == "embd":
            return ()
        patch: list[tuple[str, str | int]] = []
        for column in ("flops", "bytes_read", "bytes_written", "num_bytes"):
            value = int(getattr(ops, column)[row])
            if value > 4096:
                patch.append((column, round(value * ratio)))
        return tuple(patch)

    def _exchanges(
        self, played: list[tuple[int, int, int]], stage: int, done: Action | None, todo: Action | None
    ) -> None:
        """What is sent after ``done`` and received before ``todo``."""
        pp, chunks = self.layout.sizes.pp, self.layout.chunks
        virtuals = pp * chunks
        moves: list[tuple[OpKind, str]] = []
        for action, kind in ((done, OpKind.SEND), (todo, OpKind.RECV)):
            if action is None:
                continue
            virtual = action.chunk * pp + stage
            # A forward comes from the stage before and goes to the next; a backward the other way round.
            end = virtuals - 1 if (action.kind == "F") == (kind == OpKind.SEND) else 0
            if virtual != end:
                moves.append((kind, "fwd" if action.kind == "F" else "bwd"))
        if not moves:
            return
        together = chunks > 1 or (done is not None and todo is not None and done.kind != todo.kind)
        for batch in [moves] if together else [[move] for move in moves]:
            pieces = self._exchange_pieces(batch, pp, chunks)
            played.append((self.assembly.template("exchange", pieces), done.microbatch if done else -1, 0))

    def _exchange_pieces(self, batch: list[tuple[OpKind, str]], pp: int, chunks: int) -> list[Piece]:
        pieces: list[Piece] = []
        for kind, phase in batch:
            row = self._exchange.get((kind, phase))
            if row is None:
                raise InputError(f"the traced program has no {kind.name.lower()} of a {phase} to copy")
            ahead = (kind == OpKind.SEND) == (phase == "fwd")
            patch: list[tuple[str, str | int]] = [("peer_delta", 1 if ahead else pp - 1)]
            if chunks > 1:
                word = f"pp.{kind.name.lower()}.{phase}"
                patch += [("stream", word), ("batch", -1), ("group", "pp" if phase == "fwd" else "pp.bwd")]
            else:
                patch.append(("batch", 0))
            pieces.append(
                Piece(row, tuple(patch), ("compute",) if kind == OpKind.SEND or chunks == 1 else ())
            )
        if chunks == 1:
            sync = self._exchange.get("sync")
            return [*pieces, *([Piece(sync)] if sync is not None else [])]
        received = tuple(at for at, (kind, _) in enumerate(batch) if kind == OpKind.RECV)
        if received:
            pieces.append(Piece(pieces[received[0]].row, _WAIT_PATCH, received))
        return pieces


_WAIT_PATCH: tuple[tuple[str, str | int], ...] = (
    ("kind", int(OpKind.EVENT_WAIT)), ("stream", "compute"), ("name", "cudaStreamWaitEvent"), ("group", ""),
    ("num_bytes", 0), ("peer_delta", 0), ("batch", -1), ("collective", ""),
)  # fmt: skip
