"""A recorded job with its pipelines in another layout: all ranks' programs and the groups they meet in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simcore.collectives.kinds import SEND_RECV
from simcore.graph import EdgeTable, Graph, OpKind, ProcessGroup, Program, Strings
from workloads.edits.assembly import patched_ops
from workloads.edits.job import EditableJob
from workloads.edits.recorded_rows import met, rank_playing
from workloads.edits.stages.parameters import Parameters
from workloads.edits.stages.pipelines import OVERLAPPED
from workloads.edits.stages.plan import Plan
from workloads.edits.stages.program import ProgramWriter
from workloads.edits.stages.stage_program import stage_program
from workloads.imports.recorded import ImportedRank


def rewritten(plan: Plan) -> EditableJob:
    """The job as its pipelines shall be.  Errors: InputError when ranks would no longer meet."""
    parameters = Parameters(plan)
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


class _Joined:
    """The graph of all new ranks; rank ``i`` is written by ``writers[i]`` for (stage, recorded rank)."""

    def __init__(
        self,
        plan: Plan,
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
            old, ops=patched_ops(old.ops.take(rows), patches), groups=self.groups,
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


def _shifted(rank: ImportedRank, by: int, plan: Plan) -> ImportedRank:
    """A rank's recording as that of one ``by`` further: its number, and the members of its groups."""
    known = rank.recorded.collectives
    if known is not None:
        first = (rank.number + by) % plan.width
        pipeline = tuple(first + plan.width * stage for stage in range(plan.pp))
        moved: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
        for members in set(known.members) - {()}:
            within = max(members) - min(members) < plan.width
            moved[members] = tuple(member + by for member in members) if within else members
        sends = known.collective.equals(SEND_RECV.name).tolist()
        known = replace(
            known,
            members=tuple(
                pipeline if send and members else moved[members]
                for send, members in zip(sends, known.members, strict=True)
            ),
        )
    return replace(rank, number=rank.number + by, recorded=replace(rank.recorded, collectives=known))
