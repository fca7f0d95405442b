"""Which rank holds which tables.

Note [Placements]
    Over n ranks, as TorchRec calls them: "table_wise" (a table on one rank), "column_wise" (its columns on
    several), "row_wise" (its rows on all; each adds up what it has, and sums are scattered), "table_row_wise"
    (rows on all ranks of an inner group, or of several), "grid_shard" (columns over groups, rows within
    each), "data_parallel" (on all).  "hybrid": popular rows on all, the others dealt out row by row
    (HugeCTR's HybridSparseEmbedding).  "balanced": tables too dear for one rank are split by columns, those
    too large for that by rows; the rest is dealt out, the dearest first, to the rank with the least to do
    that has room.  "hierarchical": tables dealt out to inner groups by heat, rows of each over all ranks of
    its groups, so that only sums of a group leave it; within one group rows over ranks (HugeCTR's hier_auto
    and auto, Note [Dealing out by heat]; "rows": on some ranks, whose sums all travel).  "auto": "balanced",
    or each table "table_row_wise" on as many inner groups as it is dear, whichever leaves the busiest rank
    less to do.  A table costs what is read of it and what it hands out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from simcore.errors import InputError
from simcore.records import dataclass
from workloads.models.tables import TableSpec
from workloads.parallel.by_heat import Warm, dealt_out

#: Columns below which a table is split no further.
_FEWEST_COLUMNS: Final = 32
#: What a column that is handed out costs more than one that is read: exchanges are slower than HBM.
_HANDED_OUT: Final = 8.0
#: What a table's sum costs, in lookups, within a node and between nodes, by "hierarchical": HBM's rate over
#: that of links, by NVIDIA's configs for H100 7 and 67 (MEM_COMM_BW_RATIO), over its 4.
_SUM_WITHIN: Final = 7 / 4
_SUM_BETWEEN: Final = 67 / 4
#: The same of a column that leaves an inner group: HBM against a network port, fp32 against fp16 (H100 and
#: NDR).
_SENT_OFF: Final = 24.0


@dataclass(frozen=True)
class PlacedTable:
    """A table of a block and the ``ranks`` that hold it ("data_parallel": none in particular)."""

    table: int
    how: str
    ranks: tuple[int, ...] = ()


def expanded(tables: Sequence[TableSpec]) -> list[TableSpec]:
    """Each of several tables alike by itself."""
    return [one for one in tables for _ in range(one.count)]


def placed(
    tables: Sequence[TableSpec],
    num_ranks: int,
    how: str,
    *,
    local: int,
    copied_rows: int = 0,
    row_bytes: int = 4,
    room: float = 0.0,
) -> list[PlacedTable]:
    """All ``tables`` on ``num_ranks`` by one way, or balanced; ``room``: bytes of a rank (0: no limit)."""
    out: list[PlacedTable] = []
    rest: list[int] = []
    for number, one in enumerate(tables):
        if one.rows < copied_rows:
            out.append(PlacedTable(number, "data_parallel"))
        else:
            rest.append(number)
    everyone = tuple(range(num_ranks))
    groups = max(1, num_ranks // local)
    if how == "data_parallel":
        return out + [PlacedTable(number, how) for number in rest]
    if how == "row_wise" and num_ranks > 1:
        return out + [PlacedTable(number, how, everyone) for number in rest]
    if how == "hybrid" and num_ranks > 1:
        return out + [PlacedTable(number, how, everyone) for number in rest]
    if how == "table_row_wise" and num_ranks > 1:
        return out + [
            PlacedTable(number, how, everyone[k % groups * local :][:local]) for k, number in enumerate(rest)
        ]
    if how == "grid_shard" and num_ranks > 1:
        return out + _by_columns_of_groups(tables, rest, groups, local)
    if how == "hierarchical" and num_ranks > 1:
        return sorted(
            out + _by_heat(tables, rest, num_ranks, local, row_bytes, room), key=lambda one: one.table
        )
    found = [_balanced(tables, rest, num_ranks, how, row_bytes, room)]
    if how == "auto" and local > 1 and groups > 1:
        found.append(_by_groups(tables, rest, groups, local))
    best = min(found, key=lambda plan: _busiest(tables, plan, num_ranks, local))
    return sorted(out + best, key=lambda one: one.table)


def _busiest(tables: Sequence[TableSpec], plan: Sequence[PlacedTable], num_ranks: int, local: int) -> float:
    """What the busiest rank does for a sample of each rank, in columns read."""
    off = _SENT_OFF if num_ranks > local else _HANDED_OUT
    loads = [0.0] * num_ranks
    for one in plan:
        table, parts = tables[one.table], len(one.ranks)
        each = table.dim * (table.pooling + off) / parts
        if one.how == "table_row_wise":  # sums of a group first
            each = table.dim * (table.pooling / parts + _HANDED_OUT + off / local)
        for rank in one.ranks:
            loads[rank] += each
    return max(loads)


def _by_heat(
    tables: Sequence[TableSpec],
    numbers: Sequence[int],
    num_ranks: int,
    local: int,
    row_bytes: int,
    room: float,
) -> list[PlacedTable]:
    """See Note [Dealing out by heat]; over inner groups where there are several, else over ranks."""
    warm = {k: Warm(tables[k].pooling, float(tables[k].rows * tables[k].dim * row_bytes)) for k in numbers}
    several = num_ranks > local > 1
    each = local if several else 1
    found = dealt_out(
        warm, num_ranks // each, sum_cost=_SUM_BETWEEN if several else _SUM_WITHIN, room_bytes=room * each
    )
    out = []
    for k, buckets in found.items():
        ranks = tuple(bucket * each + rank for bucket in buckets for rank in range(each))
        how = "table_row_wise" if several else "rows" if len(ranks) > 1 else "table_wise"
        out.append(PlacedTable(k, how, ranks))
    return out


def _by_groups(
    tables: Sequence[TableSpec], numbers: Sequence[int], groups: int, local: int
) -> list[PlacedTable]:
    """Each table's rows on all ranks of an inner group, of dear ones on several groups: sums of a group
    leave.
    """
    costs = {k: tables[k].dim * (tables[k].pooling + _SENT_OFF) for k in numbers}
    fair = sum(costs.values()) / groups
    parts: list[tuple[float, int, int]] = []
    for k in numbers:
        pieces, one = 1, tables[k]
        while 2 * pieces <= groups and one.dim * one.pooling / pieces > fair:
            pieces *= 2
        parts.append((one.dim * (one.pooling / pieces + _SENT_OFF), k, pieces))
    heap = [(0.0, group) for group in range(groups)]
    out = []
    for cost, k, pieces in sorted(parts, key=lambda part: (-part[0], part[1])):
        chosen = [heapq.heappop(heap) for _ in range(pieces)]
        for load, group in chosen:
            heapq.heappush(heap, (load + cost, group))
        members = sorted(group for _, group in chosen)
        ranks = tuple(group * local + rank for group in members for rank in range(local))
        out.append(PlacedTable(k, "table_row_wise", ranks))
    return out


def _by_columns_of_groups(
    tables: Sequence[TableSpec], numbers: Sequence[int], groups: int, local: int
) -> list[PlacedTable]:
    """Columns of each table dealt out to inner groups, whose ranks share their rows."""
    heap = [(0.0, group) for group in range(groups)]
    out = []
    for k in sorted(numbers, key=lambda k: (-tables[k].dim * (tables[k].pooling + _SENT_OFF), k)):
        pieces = max(1, min(groups, tables[k].dim // _FEWEST_COLUMNS))
        chosen = [heapq.heappop(heap) for _ in range(pieces)]
        for load, group in chosen:
            heapq.heappush(heap, (load + tables[k].dim / pieces * (tables[k].pooling + _SENT_OFF), group))
        members = sorted(group for _, group in chosen)
        ranks = tuple(group * local + rank for group in members for rank in range(local))
        out.append(PlacedTable(k, "grid_shard", ranks))
    return sorted(out, key=lambda one: one.table)


def _balanced(
    tables: Sequence[TableSpec], numbers: Sequence[int], num_ranks: int, how: str, row_bytes: int, room: float
) -> list[PlacedTable]:
    """The dearest first to whoever has least; see Note [Placements]."""
    costs = {k: tables[k].dim * (tables[k].pooling + _HANDED_OUT) for k in numbers}
    fair = sum(costs.values()) / num_ranks
    out: list[PlacedTable] = []
    parts: list[tuple[float, int, int]] = []  # cost, table, how many parts
    for k in numbers:
        one, pieces = tables[k], 1
        most = max(1, one.dim // _FEWEST_COLUMNS)
        size = one.rows * one.dim * row_bytes
        splits = how in ("auto", "balanced", "column_wise") and num_ranks > 1
        while (
            splits
            and 2 * pieces <= min(most, num_ranks)
            and (costs[k] / pieces > fair or (room and size / pieces > room / 2) or how == "column_wise")
        ):
            pieces *= 2
        if how in ("auto", "balanced") and room and size / pieces > room / 2 and num_ranks > 1:
            out.append(PlacedTable(k, "row_wise", tuple(range(num_ranks))))
            continue
        parts.append((costs[k] / pieces, k, pieces))
    held = [
        sum(tables[one.table].rows * tables[one.table].dim * row_bytes / num_ranks for one in out)
    ] * num_ranks
    heap = [(0.0, rank) for rank in range(num_ranks)]
    for cost, k, pieces in sorted(parts, key=lambda part: (-part[0], part[1])):
        each = tables[k].rows * tables[k].dim * row_bytes / pieces
        chosen: list[tuple[float, int]] = []
        aside: list[tuple[float, int]] = []
        while len(chosen) < pieces and heap:
            load, rank = heapq.heappop(heap)
            if room and held[rank] + each > room:
                aside.append((load, rank))
                continue
            chosen.append((load, rank))
        while len(chosen) < pieces:  # nobody has room: the emptiest of those passed over
            aside.sort(key=lambda passed: held[passed[1]])
            chosen.append(aside.pop(0))
        for load, rank in chosen:
            held[rank] += each
            heapq.heappush(heap, (load + cost, rank))
        for passed in aside:
            heapq.heappush(heap, passed)
        ranks = tuple(sorted(rank for _, rank in chosen))
        out.append(PlacedTable(k, "column_wise" if pieces > 1 else "table_wise", ranks))
    return sorted(out, key=lambda one: one.table)


def check_plan(tables: Sequence[TableSpec], plan: Sequence[PlacedTable], num_ranks: int, local: int) -> None:
    """InputError for ranks that there are not, tables that no plan has or has twice, columns too many."""
    seen: set[int] = set()
    for one in plan:
        name = tables[one.table].name or f"table {one.table}"
        if one.table in seen:
            raise InputError(f"plan: {name} is placed twice")
        seen.add(one.table)
        wrong = next((rank for rank in one.ranks if not 0 <= rank < num_ranks), None)
        if wrong is not None:
            raise InputError(f"plan: {name} is on rank {wrong}; nearest: {num_ranks - 1}, the last")
        if one.how == "column_wise" and len(one.ranks) > tables[one.table].dim:
            raise InputError(
                f"plan: {name} has {tables[one.table].dim} columns for {len(one.ranks)} ranks;"
                f" nearest: {tables[one.table].dim}"
            )
        if one.how in ("table_row_wise", "grid_shard") and len(one.ranks) % local:
            near = max(1, round(len(one.ranks) / local)) * local
            raise InputError(
                f"plan: {name} is split over {len(one.ranks)} ranks, no whole groups of {local};"
                f" nearest: {near}"
            )
    missing = next((k for k in range(len(tables)) if k not in seen), None)
    if missing is not None:
        raise InputError(f"plan: {tables[missing].name or f'table {missing}'} is placed nowhere")
