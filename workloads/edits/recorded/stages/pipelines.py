"""Which recorded ranks are the stages of which pipeline, in which order they work, and what a send takes."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph import Action, gpipe, interleaved_one_f_one_b
from simcore.graph.kinds import is_communication
from simcore.graph.ops import IntArray
from simcore.graph.schedules import Schedule
from simcore.records import dataclass
from workloads.edits.job import EditableJob
from workloads.edits.recorded.groups import Members, pattern
from workloads.edits.recorded.stages.actions import RecordedRankStep, is_whole, rank_steps
from workloads.imports.recorded import ImportedRank

_EXCHANGE = re.compile(r"send|recv", re.IGNORECASE)
_MOST_CHUNKS = 16
#: Option of a workload whose schedule was written anew: whether its exchanges run beside computation.
OVERLAPPED = "exchanges_overlapped"
_RECORD = "record every stage of a pipeline, one rank of each at least"


@dataclass(frozen=True)
class Recorded:
    """Recorded pipelines: ``stages[s][l]`` is the index of the rank that is stage ``s`` of pipeline ``l``.

    ``steps[i][k]`` are the actions of rank ``i`` in step ``k``; ``schedule`` is what they follow (a name, or
    "as recorded"), ``order[s]`` stage ``s``'s actions; ``transfer_ps[s]`` what a send between stages ``s``
    and ``s + 1`` takes, of ``sent_bytes`` (0: not recorded); ``overlapped``: computation goes on meanwhile.
    """

    stages: tuple[tuple[int, ...], ...]
    steps: dict[int, list[RecordedRankStep]]
    schedule: str
    num_chunks: int
    order: Schedule
    transfer_ps: tuple[int, ...]
    overlapped: bool
    told: str
    sent_bytes: int = 0

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step."""
        return len({action.microbatch for action in self.order[0]})


def recorded_pipelines(job: EditableJob) -> Recorded:
    """The pipelines of a recording.

    Errors: InputError, with what to record instead, when the recording holds no whole pipeline or does not
    show its actions.
    """
    if job.graph.workload.options.get(OVERLAPPED):
        raise InputError(
            "an edit before has put the exchanges of stages beside their computation: give that edit (another"
            " schedule) last"
        )
    candidates = [_exchanges(job, index) for index in range(len(job.ranks))]
    if not any(len(rows) for rows, _ in candidates):
        raise InputError(
            "no sends or receives between stages are recorded: this is no pipeline, or not all of it;"
            f" {_RECORD}"
        )
    kept = _of_stages([pattern(m) for _, members in candidates for m in members if m])
    exchanges: list[IntArray] = []
    for rows, members in candidates:
        mask = [not m or kept is None or pattern(m) in kept for m in members]
        exchanges.append(rows[np.array(mask, dtype=np.bool_)])
    silent = [str(job.ranks[i].number) for i, rows in enumerate(exchanges) if not len(rows)]
    if silent:
        raise InputError(
            f"rank {', '.join(silent)} sends nothing to other stages, others do: give traces of one job"
        )
    if not all(map(is_whole, job.ranks)):
        raise InputError("steps share launches: the recording's step annotations overlap")
    steps = {index: rank_steps(job, index, rows) for index, rows in enumerate(exchanges)}
    groups = [{m for m in members if m and (kept is None or pattern(m) in kept)} for _, members in candidates]
    stages, told = _stages(job, groups, steps)
    order, name, chunks, how = _order(job, stages, steps)
    transfer = _transfers(job, stages, steps, order, chunks)
    overlapped = _overlapped(job, steps)
    sent = _sent_bytes(job.ranks[stages[0][0]])
    return Recorded(stages, steps, name, chunks, order, transfer, overlapped, f"{told}; {how}", sent)


def _sent_bytes(rank: ImportedRank) -> int:
    """The largest send or receive of a rank; 0 where sizes are not recorded."""
    known = rank.recorded.collectives
    if known is None:
        return 0
    return int(known.num_bytes[known.collective.equals("send_recv")].max(initial=0))


def _exchanges(job: EditableJob, index: int) -> tuple[IntArray, list[Members]]:
    """Rows of a rank that may be sends and receives between stages, and the members of their groups."""
    rank, first = job.ranks[index], int(job.graph.template_start[index])
    recorded, known = rank.recorded, rank.recorded.collectives
    ops = np.flatnonzero(recorded.is_comm)
    named = [bool(_EXCHANGE.search(recorded.name[op])) for op in ops.tolist()]
    if known is not None:
        told = [known.collective[op] for op in ops.tolist()]
        named = [what == "send_recv" if what else name for what, name in zip(told, named, strict=True)]
    chosen = ops[np.array(named, dtype=np.bool_)]
    rows = first + rank.flat[chosen]
    order = np.argsort(rows)
    members = [known.members[op] if known is not None else () for op in chosen[order].tolist()]
    kinds = is_communication(job.graph.ops.kind)[rows[order]]
    return rows[order][kinds], [m for m, keep in zip(members, kinds.tolist(), strict=True) if keep]


def _of_stages(patterns: list[tuple[int, int] | None]) -> set[tuple[int, int] | None] | None:
    """Of several kinds of groups that send, those of the pipeline: its ranks lie furthest apart.

    None: all are.  Pairs of neighbours are one kind, whatever their distance.
    """
    larger = {found for found in patterns if found is not None and found[0] > 2}
    kept: set[tuple[int, int] | None]
    if not larger or len(set(patterns)) == 1:
        return None
    widest = max(larger, key=lambda found: found[1])
    pairs = {found for found in patterns if found is not None and found[0] == 2 and found[1] >= widest[1]}
    kept = {widest, *pairs}
    return kept


def _stages(
    job: EditableJob, groups: list[set[Members]], steps: dict[int, list[RecordedRankStep]]
) -> tuple[tuple[tuple[int, ...], ...], str]:
    index_of = {rank.number: index for index, rank in enumerate(job.ranks)}
    if any(groups):
        pipelines = _components([m for found in groups for m in found])
        whole = sorted(sorted(found) for found in pipelines if found & set(index_of))
        missing = sorted({n for found in whole for n in found} - set(index_of))
        if missing:
            raise InputError(
                f"stages are ranks {_listed(whole)}; not recorded: {', '.join(map(str, missing))}. Give a"
                " trace of every stage of a pipeline (one rank of each is enough)"
            )
        if len({len(found) for found in whole}) > 1 or len(whole[0]) < 2:
            raise InputError(f"groups that send to each other are of several sizes: {_listed(whole)}")
        stages = tuple(tuple(index_of[found[s]] for found in whole) for s in range(len(whole[0])))
        return stages, f"{len(stages)} stages by the groups that send: {_listed(whole)}"
    by_depth: dict[int, list[int]] = defaultdict(list)
    for index in range(len(job.ranks)):
        kinds = steps[index][0].kinds
        by_depth[kinds.index("B")].append(index)
    depths = sorted(by_depth, reverse=True)
    if (
        depths != list(range(len(depths), 0, -1))
        or len({len(v) for v in by_depth.values()}) > 1
        or not depths[1:]
    ):
        shown = ", ".join(f"rank {job.ranks[i].number}: {d}" for d in depths for i in by_depth[d])
        raise InputError(
            "which rank is which stage is not recorded, and forwards before the first backward do not count"
            f" down from stage to stage ({shown}); {_RECORD}, with a profiler of torch 2.1 or later (it"
            " writes the ranks of groups)"
        )
    stages = tuple(tuple(by_depth[depth]) for depth in depths)
    return stages, f"{len(stages)} stages by how many forwards come before the first backward"


def _components(groups: list[Members]) -> list[set[int]]:
    found: list[set[int]] = []
    for members in groups:
        joined = set(members)
        rest = []
        for other in found:
            if other & joined:
                joined |= other
            else:
                rest.append(other)
        found = [*rest, joined]
    return found


def _listed(groups: list[list[int]]) -> str:
    shown = [" ".join(map(str, found)) for found in groups[:3]]
    return "; ".join(shown) + ("; ..." if len(groups) > 3 else "")


def _order(
    job: EditableJob, stages: tuple[tuple[int, ...], ...], steps: dict[int, list[RecordedRankStep]]
) -> tuple[Schedule, str, int, str]:
    """What stages do in which order, its name, model chunks, and how that was told."""
    recorded = [steps[lanes[0]][0].kinds for lanes in stages]
    for stage, lanes in enumerate(stages):
        for index in lanes:
            for number, step in enumerate(steps[index]):
                if step.kinds != recorded[stage]:
                    raise InputError(
                        f"rank {job.ranks[index].number}, step {job.ranks[index].steps[number].number}: does"
                        f" {_brief(step.kinds)}, others of its stage {_brief(recorded[stage])}: record whole"
                        " steps that are alike (a profiler's schedule with wait and warmup)"
                    )
    count = {kinds.count("F") for kinds in recorded}
    if len(count) > 1:
        shown = ", ".join(_brief(kinds) for kinds in recorded)
        raise InputError(
            f"stages do different numbers of forwards: {shown}. Sends beside computation may hide where one"
            " ends and the next begins: record without (overlap_p2p_comm), or give a log of stage times"
        )
    actions = count.pop()
    pp = len(stages)
    for chunks in range(1, _MOST_CHUNKS + 1):
        if actions % chunks:
            continue
        micro = actions // chunks
        known: list[tuple[str, Schedule]] = []
        try:
            known.append(("1f1b" if chunks == 1 else f"interleaved:{chunks}",
                          interleaved_one_f_one_b(pp, micro, chunks)))  # fmt: skip
        except InputError:
            continue
        if chunks == 1 and micro > pp:
            known.append(("gpipe", gpipe(pp, micro)))
        for name, schedule in known:
            if ["".join(a.kind for a in own) for own in schedule] == recorded:
                return schedule, name, chunks, f"{micro} microbatches, schedule {name}"
    if any(len(set(kinds)) < 2 for kinds in recorded):
        raise InputError("a stage has only forwards or only backwards")
    schedule = []
    for kinds in recorded:
        seen = {"F": 0, "B": 0}
        own = []
        for kind in kinds:
            own.append(Action("F" if kind == "F" else "B", seen[kind]))
            seen[kind] += 1
        schedule.append(own)
    return (
        schedule,
        "as recorded",
        1,
        f"{actions} microbatches, in an order of their own: {_brief(recorded[0])}",
    )


def _brief(kinds: str) -> str:
    return kinds if len(kinds) <= 24 else f"{kinds[:24]}..."


def moves(stage: int, action: Action, num_stages: int, num_chunks: int) -> tuple[int, int]:
    """Stages that an action receives from and sends to; -1: none."""
    virtual, last = action.chunk * num_stages + stage, num_stages * num_chunks - 1
    ahead = 1 if action.kind == "F" else -1
    source, target = virtual - ahead, virtual + ahead
    return (
        source % num_stages if 0 <= source <= last else -1,
        target % num_stages if 0 <= target <= last and action.kind != "W" else -1,
    )


def _transfers(
    job: EditableJob,
    stages: tuple[tuple[int, ...], ...],
    steps: dict[int, list[RecordedRankStep]],
    order: Schedule,
    num_chunks: int,
) -> tuple[int, ...]:
    """The shortest exchange recorded between neighbours: one that nobody waited in."""
    recorded = job.graph.ops.recorded_ps
    pp = len(stages)
    shortest: dict[int, int] = {}
    for stage, lanes in enumerate(stages):
        for index in lanes:
            for step in steps[index]:
                for at, action in enumerate(order[stage]):
                    peers = {moves(stage, action, pp, num_chunks)[0]}
                    if at:
                        peers.add(moves(stage, order[stage][at - 1], pp, num_chunks)[1])
                    peers -= {-1, stage}
                    since = int(step.pieces[at - 1].body[-1]) if at else step.begin - 1
                    until = int(step.pieces[at].body[0])
                    inside = step.exchanges[(step.exchanges > since) & (step.exchanges < until)]
                    if len(peers) == 1 and len(inside):
                        pair = min(peers.pop(), stage) if pp > 2 else 0
                        least = int(recorded[inside].min())
                        shortest[pair] = min(shortest.get(pair, least), least)
    every = [
        int(recorded[step.exchanges].min()) for own in steps.values() for step in own if len(step.exchanges)
    ]
    typical = int(np.median(list(shortest.values()))) if shortest else min(every)
    return tuple(shortest.get(pair, typical) for pair in range(pp - 1))


def _overlapped(job: EditableJob, steps: dict[int, list[RecordedRankStep]]) -> bool:
    """Whether most exchanges are waited for by nothing before the kernels that follow."""
    edges = job.graph.edges
    waits: npt.NDArray[np.bool_] = np.zeros(len(job.graph.ops), dtype=np.bool_)
    for own in steps.values():
        for step in own:
            inside = (edges.dst >= step.begin) & (edges.dst < step.end) & np.isin(edges.src, step.exchanges)
            for source, target in zip(edges.src[inside].tolist(), edges.dst[inside].tolist(), strict=True):
                after = next((int(p.body[0]) for p in step.pieces if p.body[0] > source), step.end)
                waits[source] |= target <= after
    rows = np.concatenate([step.exchanges for own in steps.values() for step in own])
    return bool(waits[rows].mean() < 0.5)
