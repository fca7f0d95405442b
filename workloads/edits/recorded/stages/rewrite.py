"""A recorded job with its pipelines in another layout: all ranks' programs and the groups they meet in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simcore.graph import EdgeTable, Graph, OpKind, OpTable, ProcessGroup, Program, Strings
from simcore.graph.ops import IntArray
from workloads.edits.job import EditableJob
from workloads.edits.kernels.classes import OVER_PARAMETERS, op_classes
from workloads.edits.recorded.rows import met, rank_playing
from workloads.edits.recorded.stages.pipelines import OVERLAPPED
from workloads.edits.recorded.stages.plan import PipelineRewrite
from workloads.edits.recorded.stages.program import ProgramWriter
from workloads.edits.recorded.stages.stage_program import stage_program
from workloads.imports.recorded import ImportedRank

_SMALL_BYTES = 4096  # a collective of so few bytes is a norm or a flag, no gradients


def rewritten(plan: PipelineRewrite) -> EditableJob:
    """The job as its pipelines shall be.  Errors: InputError when ranks would no longer meet."""
    parameters = _Parameters(plan)
    writers, places = [], []
    for stage in range(plan.pp):
        source = plan.source(stage)
        moved = stage not in (0, plan.pp - 1) and source in (0, plan.old_pp - 1)
        for lane in range(plan.lanes):
            index = plan.recorded.stages[source][lane]
            writer = stage_program(plan, stage, index, parameters.ends_only if moved else frozenset())
            parameters.scale(writer, stage, index)
            writers.append(writer)
            places.append((stage, index))
    graph = _Joined(plan, parameters.ends_only, writers, places).graph()
    ranks = []
    for writer, (stage, index) in zip(writers, places, strict=True):
        rank = rank_playing(plan.job, index, plan.job.ranks[index], np.array(writer.rows, dtype=np.int64))
        ranks.append(_shifted(rank, (stage - plan.stage_of[index]) * plan.width, plan))
    return met(replace(plan.job, graph=graph, ranks=tuple(ranks), origin=None))


class _Parameters:
    """How parameters of stages change, and what follows them.

    ``ends_only`` are rows of collectives among the first and the last stage alone: gradients of tied
    embeddings, which no stage between has.
    """

    def __init__(self, plan: PipelineRewrite) -> None:
        self._plan = plan
        self._classes = op_classes(plan.job.graph)
        self.ends_only = _between_ends(plan)

    def scale(self, writer: ProgramWriter, stage: int, index: int) -> None:
        """Kernels and collectives over all parameters of a stage, for the layers that it has now."""
        plan = self._plan
        if plan.layers is None or (plan.pp == plan.old_pp and not plan.wanted.layers):
            return
        ratio = self._ratio(stage, plan.stage_of[index])
        ops = plan.job.graph.ops
        once = self._once_a_step(index)
        for at, row in enumerate(writer.rows):
            if row in once:
                patch = writer.patches.setdefault(at, {})
                patch["recorded_ps"] = round(int(ops.recorded_ps[row]) * ratio)
                patch["num_bytes"] = round(int(ops.num_bytes[row]) * ratio)
        for at in writer.plain_rows:
            row = writer.rows[at]
            if row in self.ends_only:
                apart = plan.ends_ratio(int(ops.num_bytes[row]))
                writer.patches.setdefault(at, {})["recorded_ps"] = round(int(ops.recorded_ps[row]) * apart)
                continue
            large = ops.kind[row] == OpKind.COLLECTIVE and ops.num_bytes[row] > _SMALL_BYTES
            if large or self._classes[row] in OVER_PARAMETERS:
                patch = writer.patches.setdefault(at, {})
                patch["recorded_ps"] = round(int(ops.recorded_ps[row]) * ratio)
                patch["num_bytes"] = round(int(ops.num_bytes[row]) * ratio)

    def _once_a_step(self, index: int) -> frozenset[int]:
        """Collectives beside the layers of a recorded rank that fewer passes have than there are
        microbatches, and the kernel right before each: gathering parameters, scaling and reducing gradients,
        all of the stage at once.  None where layers have such of their own (buckets), which come and go with
        them.
        """
        plan = self._plan
        assert plan.layers is not None
        ops, source = plan.job.graph.ops, plan.stage_of[index]
        microbatches = plan.recorded.num_microbatches
        works = np.isin(ops.kind, (OpKind.COMPUTE, OpKind.COLLECTIVE)) & (ops.recorded_ps > 0)
        found: set[int] = set()
        for number, step in enumerate(plan.recorded.steps[index]):
            inside: set[int] = set()
            reduced = set()
            for kind in "FB":
                for microbatch in range(microbatches):
                    cut = plan.layers.stage(index, source, number, kind, microbatch)
                    rows = np.concatenate(cut.layers)
                    inside.update(rows.tolist())
                    reduced.add((kind, int((ops.kind[rows] == OpKind.COLLECTIVE).sum())))
            if len(reduced) > len("FB"):
                return frozenset()
            beside = np.setdiff1d(np.arange(step.begin, step.end), [*inside, *step.exchanges.tolist()])
            beside = beside[works[beside]]
            names = ops.name.codes[beside]
            once = beside[np.bincount(names, minlength=len(ops.name.values))[names] < microbatches]
            collective = ops.kind[once] == OpKind.COLLECTIVE
            found.update(once[collective | np.append(collective[1:], False)].tolist())
        return frozenset(found)

    def _ratio(self, stage: int, source: int) -> float:
        """Parameters of a new stage over those of the recorded one, by the time of the optimizer."""
        plan = self._plan
        assert plan.layers is not None
        counts, time = plan.layers.counts, [self._optimizer_ps(s) for s in range(plan.old_pp)]
        if not all(time):
            return plan.layers_of(stage) / counts[source]
        # Stages between have layers alone; without one, the end with fewer parameters for its layers.
        inner = range(1, plan.old_pp - 1) if plan.old_pp > 2 else range(plan.old_pp)
        each = min(time[s] / counts[s] for s in inner)
        own = each * plan.layers_of(stage)
        if stage in (0, plan.pp - 1):
            own += max(0.0, time[source] - each * counts[source])
        return own / time[source]

    def _optimizer_ps(self, stage: int) -> int:
        graph = self._plan.job.graph
        first, last = graph.template_start[self._plan.recorded.stages[stage][0] :][:2]
        mine = np.isin(self._classes[first:last], OVER_PARAMETERS)
        return int(graph.ops.recorded_ps[first:last][mine].sum())


def _between_ends(plan: PipelineRewrite) -> frozenset[int]:
    graph = plan.job.graph
    found: list[int] = []
    owner = np.repeat(np.arange(graph.num_templates), np.diff(graph.template_start))  # a rank each
    for name, group in graph.groups.items():
        ends = [m for m in group.explicit if {plan.stage_of[i] for i in m} == {0, plan.old_pp - 1}]
        if ends:
            rows = np.flatnonzero(graph.ops.group.equals(name))
            rows = rows[np.isin(owner[rows], np.concatenate(ends))]
            # Of two stages both are ends: small things concern all.
            kept = rows if plan.old_pp > 2 else rows[graph.ops.num_bytes[rows] > _SMALL_BYTES]
            found += kept.tolist()
    return frozenset(found)


class _Joined:
    """The graph of all new ranks; rank ``i`` is written by ``writers[i]`` for (stage, recorded rank)."""

    def __init__(
        self,
        plan: PipelineRewrite,
        ends_only: frozenset[int],
        writers: Sequence[ProgramWriter],
        places: Sequence[tuple[int, int]],
    ) -> None:
        self.plan, self.ends_only, self.writers, self.places = plan, ends_only, writers, places
        self.old = plan.job.graph
        single = {name: group for name, group in self.old.groups.items() if group.size == 1}
        everybody = ((len(writers), 1),)
        self.groups = {
            name: replace(group, base_dims=everybody, explicit=()) for name, group in single.items()
        }

    def graph(self) -> Graph:
        plan, old, writers = self.plan, self.old, self.writers
        starts = np.concatenate([[0], np.cumsum([len(w.rows) for w in writers])]).astype(np.int64)
        lanes, stages = range(plan.lanes), range(plan.pp)
        members = tuple(tuple(stage * plan.lanes + lane for stage in stages) for lane in lanes)
        chunks = range(plan.wanted.num_chunks)
        for name in ("stages", *(f"stages {word} {chunk}" for chunk in chunks for word in ("fwd", "bwd"))):
            self.groups[name] = ProcessGroup(name, ((plan.pp, 1),), explicit=members)
        patches: dict[str, dict[int, str | int]] = {}
        for start, writer, (stage, index) in zip(starts.tolist(), writers, self.places, strict=False):
            for at, patch in writer.patches.items():
                for column, value in patch.items():
                    patches.setdefault(column, {})[start + at] = value
            for at, row in enumerate(writer.rows):
                if old.ops.kind[row] == OpKind.COLLECTIVE and "group" not in writer.patches.get(at, {}):
                    patches.setdefault("group", {})[start + at] = self._group(stage, index, row)
        rows = np.concatenate([np.array(w.rows, dtype=np.int64) for w in writers])
        numbers = [
            plan.job.ranks[index].number + (stage - plan.stage_of[index]) * plan.width
            for stage, index in self.places
        ]
        options = {**old.workload.options, "recorded_ranks": numbers}
        options[OVERLAPPED] = plan.wanted.overlapped
        return replace(
            old, ops=_patched_ops(old.ops.take(rows), patches), groups=self.groups,
            programs=tuple(self._program(at, number) for at, number in enumerate(numbers)),
            edges=self._edges(starts.tolist()), template_start=starts,
            template_names=tuple(f"rank {number}" for number in numbers),
            workload=replace(old.workload, world_size=len(writers), options=options),
        )  # fmt: skip

    def _edges(self, starts: list[int]) -> EdgeTable:
        edges = sorted(
            {
                (start + dst, start + src)
                for start, w in zip(starts, self.writers, strict=False)
                for src, dst in w.edges
            }
        )
        dst, src = np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy()
        zero = np.zeros(len(dst), dtype=np.int64)
        kind = int(self.old.edges.kind[0]) if len(self.old.edges) else 1
        return EdgeTable(dst, src, zero + kind, Strings(zero.astype(np.int32), ("",)), zero.copy())

    def _program(self, at: int, number: int) -> Program:
        like = self.old.programs[int(self.old.program_of_rank[self.places[at][1]])]
        template = np.array([at], dtype=np.int32)
        return replace(like, name=f"recorded rank {number}", ranks=((at, at + 1, 1),), template=template)

    def _group(self, stage: int, index: int, row: int) -> str:
        """The group of a collective on a new stage, made where it is missing."""
        plan, name = self.plan, self.old.ops.group[row]
        if name in self.groups:
            return name
        members = self.old.groups[name].ranks_of(index)
        here = {plan.stage_of[i] for i in members}
        lanes = sorted({plan.recorded.stages[plan.stage_of[i]].index(i) for i in members})
        if len(here) == 1:
            stages, label = [stage], f"{name}, stage {stage}"
        elif row in self.ends_only:
            stages, label = [0, plan.pp - 1], f"{name}, ends"
        else:
            stages, label = list(range(plan.pp)), f"{name}, all stages"
        label = f"{label}, from {lanes[0]}"
        if label not in self.groups:
            found = tuple(s * plan.lanes + lane for s in stages for lane in lanes)
            self.groups[label] = ProcessGroup(label, ((len(found), 1),), explicit=(found,))
        return label


def _shifted(rank: ImportedRank, by: int, plan: PipelineRewrite) -> ImportedRank:
    """A rank's recording as that of one ``by`` further: its number, and the members of its groups."""
    known = rank.recorded.collectives
    if known is not None:
        first = (rank.number + by) % plan.width
        pipeline = tuple(first + plan.width * stage for stage in range(plan.pp))
        moved: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
        for members in set(known.members) - {()}:
            within = max(members) - min(members) < plan.width
            moved[members] = tuple(member + by for member in members) if within else members
        sends = known.collective.equals("send_recv").tolist()
        known = replace(
            known,
            members=tuple(
                pipeline if send and members else moved[members]
                for send, members in zip(sends, known.members, strict=True)
            ),
        )
    return replace(rank, number=rank.number + by, recorded=replace(rank.recorded, collectives=known))


def _patched(column: Strings | IntArray, changes: Mapping[int, str | int]) -> Strings | IntArray:
    if isinstance(column, Strings):
        return column.changed(changes)
    changed = column.copy()
    changed[list(changes)] = [int(value) for value in changes.values()]
    return changed


def _patched_ops(ops: OpTable, patches: Mapping[str, Mapping[int, str | int]]) -> OpTable:
    """``ops`` with single values changed: column -> row -> value."""
    return replace(ops, **{n: _patched(getattr(ops, n), c) for n, c in patches.items()})  # type: ignore[arg-type]
