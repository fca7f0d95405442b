"""Collectives of several recorded ranks: which calls belong together, and how the ranks' clocks differ."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from simcore.units import PS_PER_MS, PS_PER_US
from workloads.imports.rank_ops import RankOps
from workloads.imports.recording import CollectiveMeta

#: Words in the names of NCCL's kernels and of torch's calls, the more special first.
_KINDS = (
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("send_recv", re.compile(r"send|recv", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
)
_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "int": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8,
    "long": 8, "long int": 8, "byte": 1, "unsigned char": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1,
}  # fmt: skip
#: Kernels of one collective end together; ends that differ by more, clocks aligned, are of different calls.
_TOGETHER_PS = PS_PER_MS // 2


@dataclass(frozen=True)
class Member:
    """One rank's kernel of a collective: index of the rank in the set, op of its :class:`RankOps`."""

    index: int
    op: int


@dataclass(frozen=True)
class Meeting:
    """A collective of the present ranks of a group; they end ``transfer_ps`` after the last has arrived."""

    group: str
    collective: str
    num_bytes: int
    members: tuple[Member, ...]
    transfer_ps: int


@dataclass(frozen=True)
class Coupling:
    """``meetings`` of several ranks; ``alone`` counts communication kernels that stand for themselves.

    ``shift_ps[i]`` added to rank ``i``'s times puts them on the clock of the first; ``refused`` says which
    groups could not be coupled, and why.
    """

    meetings: list[Meeting] = field(default_factory=list)
    alone: int = 0
    shift_ps: tuple[int, ...] = ()
    refused: tuple[str, ...] = ()


def collective_kind(name: str, meta: CollectiveMeta | None) -> str:
    """The collective that a communication kernel carries out; "send_recv" where nothing tells."""
    for text in (meta.collective if meta is not None else "", name):
        for kind, pattern in _KINDS:
            if pattern.search(text):
                return kind
    return "send_recv"


def collective_bytes(kind: str, meta: CollectiveMeta | None) -> int:
    """Size in nccl-tests' convention; 0 where the recording does not say."""
    if meta is None:
        return 0
    elements = meta.out_elements if kind == "all_gather" else meta.in_elements
    return max(0, elements) * _ELEMENT_BYTES.get(meta.dtype.lower().removeprefix("c10::"), 0)


def couple(ranks: list[RankOps], base_ps: list[int]) -> Coupling:
    """Find which communication kernels of several ranks are one collective.

    ``base_ps[i]`` is rank ``i``'s origin relative to the first rank's, as the traces tell.  The n-th call of
    a group meets the n-th of the other ranks, if all present ranks of the group issued the same sequence and
    ended together; clocks are aligned by the ends first.
    """
    calls = [_calls_by_group(ops) for ops in ranks]
    groups: dict[str, list[int]] = defaultdict(list)
    for index, by_group in enumerate(calls):
        for group in by_group:
            groups[group].append(index)
    refused = []
    candidates: list[tuple[str, str, int, tuple[Member, ...]]] = []
    for group, members in groups.items():
        if len(members) < 2:
            continue
        kinds = {tuple(kind for kind, _, _ in calls[index][group]) for index in members}
        if len(kinds) > 1:
            refused.append(f"group {group or 'unnamed'}: ranks issued different sequences of collectives")
            continue
        for calls_of_all in zip(*(calls[index][group] for index in members), strict=True):
            joined = tuple(Member(i, call[2]) for i, call in zip(members, calls_of_all, strict=True))
            kind = calls_of_all[0][0]
            candidates.append((group, kind, max(call[1] for call in calls_of_all), joined))
    shift = _shifts(ranks, base_ps, candidates)
    meetings, apart = [], 0
    for group, kind, num_bytes, joined in candidates:
        starts = [int(ranks[m.index].start_ps[m.op]) + shift[m.index] for m in joined]
        ends = [int(ranks[m.index].end_ps[m.op]) + shift[m.index] for m in joined]
        # A kernel that only sends may end before its peers do, but none ends before the last has come.
        if max(ends) - min(ends) > _TOGETHER_PS or max(starts) > min(ends) + 5 * PS_PER_US:
            apart += 1
            continue
        shortest = min(end - start for start, end in zip(starts, ends, strict=True))
        meetings.append(Meeting(group, kind, num_bytes, joined, shortest))
    if apart:
        refused.append(f"{apart} collectives whose kernels did not end together on all ranks")
    total = sum(int(ops.is_comm.sum()) for ops in ranks)
    return Coupling(meetings, total - sum(len(m.members) for m in meetings), tuple(shift), tuple(refused))


def _calls_by_group(ops: RankOps) -> dict[str, list[tuple[str, int, int]]]:
    """(collective, bytes, op) of a rank's communication kernels in order, by group.

    Without recorded groups each communication stream is one, numbered in order of its first use.
    """
    trace = ops.trace
    found: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    unnamed: dict[int, str] = {}
    for op in np.flatnonzero(ops.is_comm).tolist():
        row = int(ops.row[op])
        number = int(trace.gpu.meta[row])
        meta = trace.meta[number] if number >= 0 else None
        kind = collective_kind(trace.names[int(trace.gpu.name[row])], meta)
        if meta is not None and (meta.group or meta.group_ranks):
            group = f"{meta.group} {meta.group_ranks}".strip()
        else:
            group = unnamed.setdefault(int(ops.lane[op]), f"stream {len(unnamed)}")
        found[group].append((kind, collective_bytes(kind, meta), op))
    return found


def _shifts(
    ranks: list[RankOps], base_ps: list[int], candidates: list[tuple[str, str, int, tuple[Member, ...]]]
) -> list[int]:
    """What to add to each rank's times so that collectives end together: medians against the first rank."""
    shift = list(base_ps)
    differences: dict[int, list[int]] = defaultdict(list)
    for _, kind, _, members in candidates:
        if members[0].index != 0 or kind == "send_recv":
            continue
        reference = int(ranks[0].end_ps[members[0].op]) + base_ps[0]
        for member in members[1:]:
            differences[member.index].append(reference - int(ranks[member.index].end_ps[member.op]))
    for index, found in differences.items():
        shift[index] = int(np.median(np.array(found, dtype=np.float64)))
    return shift
