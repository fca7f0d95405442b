"""A recording's graph with its collectives to be simulated, and ranks that were not recorded stood in for.

A rank that was not recorded, but is a member of a group that a recorded rank communicates in, issues the
calls of that group and nothing else.  It is always there first, so a collective starts with the last arrival
of the recorded ranks: the others are assumed to arrive together with them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simcore.collectives.kinds import COLLECTIVES
from simcore.errors import InputError
from simcore.graph import Graph, OpKind, OpRows, OpTable, ProcessGroup, Program
from simcore.graph.ops import OP_COLUMNS, IntArray, Strings
from simcore.records import dataclass
from workloads.imports import ImportedJob
from workloads.imports.recorded import MAX_RANKS
from workloads.imports.recording.graph import ends_late
from workloads.imports.shapes import collective_by_shapes

_ALONE_SIZE = 1


@dataclass(frozen=True)
class StagedJob:
    """A graph whose rank numbers are those of the recorded job.

    ``rank_of[i]`` is the number of rank ``i`` of the import, ``absent`` are the ranks that are stood in for.
    ``simulated_ps`` and ``kept_ps`` are the recorded times of the communication kernels that the network
    decides about and of those that last as recorded (their size or group is not known).
    """

    graph: Graph
    rank_of: tuple[int, ...]
    absent: tuple[int, ...]
    simulated_ps: int
    kept_ps: int


@dataclass(frozen=True)
class _GroupCall:
    """One collective of one recorded rank, in the order of issue: its op-table row, kind, size and group."""

    rank: int
    row: int
    kind: str
    num_bytes: int
    symbol: str
    members: tuple[int, ...]


def stage(job: ImportedJob) -> StagedJob:
    """The graph of ``job`` for a simulated network."""
    graph = job.graph
    numbers = tuple(rank.number for rank in job.ranks)
    calls, simulated_ps, kept_ps = _calls(job)
    groups = {name: _renumbered(group, numbers) for name, group in graph.groups.items()}
    by_symbol: dict[str, list[_GroupCall]] = {}
    for call in calls:
        by_symbol.setdefault(call.symbol, []).append(call)
    for symbol, found in by_symbol.items():
        members = found[0].members
        groups[symbol] = ProcessGroup(symbol, ((len(members), 1),), explicit=(members,))
    ops = _with_calls(graph.ops, calls)
    absent = sorted({member for call in calls for member in call.members} - set(numbers))
    world = max((*numbers, *absent)) + 1
    if world > MAX_RANKS:
        raise InputError(
            f"a collective names rank {world - 1:,}: more than {MAX_RANKS:,} ranks cannot be played"
        )
    idle = sorted(set(range(world)) - set(numbers) - set(absent))
    programs = [
        replace(program, ranks=tuple((numbers[r], numbers[r] + 1, 1) for r in program.rank_list()))
        for program in graph.programs
    ]
    starts = graph.template_start.tolist()
    names = list(graph.template_names)
    extra = OpRows()
    for symbols, ranks in _alike(absent, by_symbol).items():
        _add_calls(extra, symbols, by_symbol, numbers)
        starts.append(len(graph.ops) + len(extra))
        names.append("stand-in")
        programs.append(_program(f"stand-in for {len(ranks)} ranks", ranks, len(names) - 1))
    if idle:
        programs.append(_program("not recorded", idle, None))
    staged = Graph(
        replace(graph.workload, world_size=world, options=_options(graph)), groups, tuple(programs),
        _concatenated(ops, extra.table()) if len(extra) else ops, graph.edges, graph.frees,
        np.array(starts, dtype=np.int64), tuple(names),
    )  # fmt: skip
    return StagedJob(staged, numbers, tuple(absent), simulated_ps, kept_ps)


def _options(graph: Graph) -> dict[str, object]:
    """Rank numbers need no translation any more."""
    return {key: value for key, value in graph.workload.options.items() if key != "recorded_ranks"}


def _renumbered(group: ProcessGroup, numbers: tuple[int, ...]) -> ProcessGroup:
    """A group of the import's ranks, in the job's numbers."""
    if group.explicit:
        explicit = tuple(tuple(numbers[rank] for rank in members) for members in group.explicit)
    else:
        instances = {group.ranks_of(rank): None for rank in range(len(numbers)) if group.contains(rank)}
        explicit = tuple(tuple(numbers[rank] for rank in members) for members in instances)
    return ProcessGroup(group.name, ((len(explicit[0]), 1),), explicit=explicit) if explicit else group


def _calls(job: ImportedJob) -> tuple[list[_GroupCall], int, int]:
    """The collectives that a network can decide about, and recorded time of those and of all others."""
    graph, world = job.graph, job.report.world_size
    numbers = {rank.number for rank in job.ranks}
    calls: list[_GroupCall] = []
    simulated = kept = 0
    meetings: dict[str, set[tuple[int, ...]]] = {}
    for index, rank in enumerate(job.ranks):
        known = rank.recorded.collectives
        program = graph.programs[graph.program_of_rank[index]]
        row_of = graph.flat_ops(program).row[rank.flat]
        for op in np.flatnonzero(rank.recorded.is_comm).tolist():
            row = int(row_of[op])
            lasted = int(rank.recorded.end_ps[op] - rank.recorded.start_ps[op])
            group = graph.groups[graph.ops.group[row]] if graph.ops.group[row] else None
            present = tuple(job.ranks[i].number for i in group.ranks_of(index)) if group is not None else ()
            members = known.members[op] if known is not None else ()
            kind = known.collective[op] if known is not None else graph.ops.collective[row]
            size = int(known.num_bytes[op]) if known is not None else int(graph.ops.num_bytes[row])
            if not members and world > 0:
                members = tuple(range(world))
            if size <= 0:
                kind, size = collective_by_shapes(rank.recorded, op, kind, len(members))
            # Recorded ranks that are members but do not meet here would have to be two ranks at once.
            meets = set(present) == numbers & set(members)
            if kind not in COLLECTIVES or not meets or (size <= 0 and not COLLECTIVES[kind].fixed_bytes):
                kept += lasted
                continue
            simulated += lasted
            lane = rank.recorded.stream[op]
            symbol = graph.ops.group[row] if len(present) > _ALONE_SIZE else f"{list(members)} on {lane}"
            meetings.setdefault(symbol, set()).add(members)
            calls.append(_GroupCall(rank.number, row, kind, size, f"{symbol} as recorded", members))
    # Ranks that name the members of a group differently do not agree: keep what they recorded.
    unsure = {f"{symbol} as recorded" for symbol, found in meetings.items() if len(found) > 1}
    return _agreed([call for call in calls if call.symbol not in unsure]), simulated, kept


def _agreed(calls: list[_GroupCall]) -> list[_GroupCall]:
    """Members of an uneven exchange name different sizes: the largest decides when it ends."""
    places: list[tuple[str, int]] = []
    seen: dict[tuple[int, str], int] = {}
    largest: dict[tuple[str, int], int] = {}
    for call in calls:
        number = seen[call.rank, call.symbol] = seen.get((call.rank, call.symbol), -1) + 1
        place = call.symbol, number
        places.append(place)
        largest[place] = max(largest.get(place, 0), call.num_bytes)
    return [replace(call, num_bytes=largest[place]) for call, place in zip(calls, places, strict=True)]


def _with_calls(ops: OpTable, calls: list[_GroupCall]) -> OpTable:
    group, collective = ops.group.tolist(), ops.collective.tolist()
    num_bytes, recorded = ops.num_bytes.copy(), ops.recorded_ps.copy()
    for call in calls:
        group[call.row], collective[call.row] = call.symbol, call.kind
        num_bytes[call.row], recorded[call.row] = call.num_bytes, -1
    rows = np.array([call.row for call in calls], dtype=np.int64)
    recorded[rows[ends_late(ops, rows)] + 1] = 0  # all members of a simulated collective end at once
    return replace(
        ops, group=Strings.encode(group), collective=Strings.encode(collective), num_bytes=num_bytes,
        recorded_ps=recorded,
    )  # fmt: skip


def _alike(absent: list[int], by_symbol: dict[str, list[_GroupCall]]) -> dict[tuple[str, ...], list[int]]:
    """Absent ranks by the groups that they are in: those in the same ones do the same."""
    found: dict[tuple[str, ...], list[int]] = {}
    for rank in absent:
        symbols = tuple(symbol for symbol, calls in by_symbol.items() if rank in calls[0].members)
        found.setdefault(symbols, []).append(rank)
    return found


def _add_calls(
    rows: OpRows, symbols: tuple[str, ...], by_symbol: dict[str, list[_GroupCall]], numbers: tuple[int, ...]
) -> None:
    """The calls of some groups, each group a stream, in the order in which a recorded rank issued them."""
    chosen: list[_GroupCall] = []
    for symbol in symbols:
        calls = by_symbol[symbol]
        meeting = sum(member in numbers for member in calls[0].members)
        # Each recorded member issued all of them: those of the first.
        chosen += calls[: len(calls) // meeting]
    for call in sorted(chosen, key=lambda call: call.row):
        rows.append(
            name=call.kind, kind=int(OpKind.COLLECTIVE), stream=call.symbol, group=call.symbol,
            collective=call.kind, num_bytes=call.num_bytes,
        )  # fmt: skip


def _program(name: str, ranks: list[int], template: int | None) -> Program:
    played = [] if template is None else [template]
    none = np.array([-1] * len(played), dtype=np.int32)
    return Program(
        name, tuple((rank, rank + 1, 1) for rank in ranks), 0, np.array(played, dtype=np.int32), none,
        np.zeros(len(played), dtype=np.int32),
    )  # fmt: skip


def _concatenated(first: OpTable, second: OpTable) -> OpTable:
    columns: dict[str, Strings | IntArray] = {}
    for name, (kind, _) in OP_COLUMNS.items():
        a, b = getattr(first, name), getattr(second, name)
        if kind == "str":
            values = {value: code for code, value in enumerate(a.values)}
            recode = np.array([values.setdefault(value, len(values)) for value in b.values], dtype=np.int32)
            columns[name] = Strings(np.concatenate([a.codes, recode[b.codes]]), tuple(values))
        else:
            columns[name] = np.concatenate([a, b])
    return OpTable(**columns)  # type: ignore[arg-type]
