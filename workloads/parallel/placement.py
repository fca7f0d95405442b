"""Which rank holds which tables, and what each looks up and exchanges.

Note [Placements]
    Over n ranks, as TorchRec calls them: "table_wise" (a table on one rank), "column_wise" (its columns on
    several), "row_wise" (its rows on all; each adds up what it has, and sums are scattered), "table_row_wise"
    (rows on all ranks of an inner group, or of several), "grid_shard" (columns over groups, rows within
    each), "data_parallel" (on all).  "hybrid": popular rows on all, the others dealt out row by row
    (HugeCTR's HybridSparseEmbedding).  "balanced": tables too dear for one rank are split by columns, those
    too large for that by rows; the rest is dealt out, the dearest first, to the rank with the least to do
    that has room.  "hierarchical": each table is "table_row_wise" on as many inner groups as it is dear, so
    that ranks of a group do as much and only its sums leave it (HugeCTR's hier_auto).  "auto": of these two
    the one whose busiest rank has less to do.  A table costs what is read of it and what it hands out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from simcore.collectives.kinds.all_to_all import uneven
from simcore.errors import InputError
from simcore.popularity import rows_above, share_of_first
from simcore.records import dataclass
from workloads.models.tables import Exchange, HeldTable, TableSpec, TablesView, merged

#: "hybrid": a row that a step asks for more often than this, for each rank, is on every rank: sums of its
#: gradient take less than its journeys (HugeCTR's HybridEmbeddingParam: 130 and 190 GB/s).
_OFTEN: Final = 1.9 / 1.3
#: Columns below which a table is split no further.
_FEWEST_COLUMNS: Final = 32
#: What a column that is handed out costs more than one that is read: exchanges are slower than HBM.
_HANDED_OUT: Final = 8.0
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
    several = local > 1 and groups > 1
    found = (
        []
        if how == "hierarchical" and several
        else [_balanced(tables, rest, num_ranks, how, row_bytes, room)]
    )
    if several and how in ("auto", "hierarchical"):
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
        splits = how in ("auto", "balanced", "hierarchical", "column_wise") and num_ranks > 1
        while (
            splits
            and 2 * pieces <= min(most, num_ranks)
            and (costs[k] / pieces > fair or (room and size / pieces > room / 2) or how == "column_wise")
        ):
            pieces *= 2
        if (
            how in ("auto", "balanced", "hierarchical")
            and room
            and size / pieces > room / 2
            and num_ranks > 1
        ):
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


def views(
    tables: Sequence[TableSpec], plan: Sequence[PlacedTable], num_ranks: int, *, local: int,
    groups: tuple[str, str, str], samples: int = 1, popularity: float = 0.0,
) -> list[TablesView]:  # fmt: skip
    """What each of ``num_ranks`` holds and exchanges, where each has ``samples`` at once.

    ``groups``: names of the groups of all these ranks, of an inner group, and of ranks at the same place of
    each inner group.
    """
    held: list[list[HeldTable]] = [[] for _ in range(num_ranks)]
    keys, sent = [0.0] * num_ranks, [0] * num_ranks  # what each rank is asked for, and hands out whole
    alone = 0.0  # columns of rows that leave one by one
    scattered = 0  # columns of tables whose rows lie on all
    inner = [0] * max(1, num_ranks // local)  # columns of tables whose rows lie on an inner group
    copied: list[HeldTable] = []
    for one in plan:
        table = tables[one.table]
        if one.how == "data_parallel":
            copied.append(HeldTable(table.rows, table.dim, table.pooling))
        elif one.how == "hybrid":
            lookups = table.pooling * samples * num_ranks
            often = rows_above(_OFTEN * num_ranks, lookups, table.rows, popularity)
            share = share_of_first(often, table.rows, popularity) if often else 0.0
            if often:
                copied.append(HeldTable(often, table.dim, table.pooling * share))
            if often < table.rows:
                far = table.pooling * (1 - share)
                alone += far * table.dim
                for rank in range(num_ranks):
                    rows = -(-(table.rows - often) // num_ranks)
                    held[rank].append(HeldTable(rows, table.dim, far / num_ranks, num_ranks, alone=True))
                    keys[rank] += far / num_ranks
        elif one.how in ("table_wise", "column_wise"):
            dim = -(-table.dim // len(one.ranks))
            for rank in one.ranks:
                held[rank].append(HeldTable(table.rows, dim, table.pooling, num_ranks))
                keys[rank] += table.pooling
                sent[rank] += dim
        else:
            columns = len(one.ranks) // local if one.how == "grid_shard" else 1
            dim = -(-table.dim // columns)
            parts = len(one.ranks) // columns
            for rank in one.ranks:
                rows = -(-table.rows // parts)
                held[rank].append(HeldTable(rows, dim, table.pooling / parts, num_ranks, partial=True))
                keys[rank] += table.pooling / parts
            if one.how == "row_wise":
                scattered += dim
            else:
                for group in sorted({rank // local for rank in one.ranks}):
                    inner[group] += dim
    common: list[Exchange] = []  # what all ranks say alike, behind what groups say
    if alone and num_ranks > local > 1:  # by rank within groups, then between them (IB_NVLink_Hier)
        common += [Exchange("all_to_all", group, alone) for group in groups[1:]]
    elif alone:
        common.append(Exchange("all_to_all", groups[0], alone))
    if any(sent):
        common.append(Exchange(uneven("from", sent), groups[0], float(sum(sent))))
    between = Exchange(uneven("from", inner), groups[2], float(sum(inner))) if any(inner) else None
    asked = (Exchange(uneven("to", _whole(keys)), groups[0], sum(keys)),) if any(keys) else ()
    everywhere = merged(copied)
    if num_ranks == 1:
        return [TablesView(merged(held[0]), everywhere)]
    out = []
    for rank in range(num_ranks):
        rows_out: list[Exchange] = []
        if scattered:
            rows_out.append(Exchange("reduce_scatter", groups[0], float(num_ranks * scattered)))
        if between is not None:
            mine = inner[rank // local]
            if mine and local > 1:
                rows_out.append(Exchange("reduce_scatter", groups[1], float(num_ranks * mine)))
            if len(inner) > 1:
                rows_out.append(between)
        out.append(TablesView(merged(held[rank]), everywhere, asked, (*rows_out, *common)))
    return out


def _whole(shares: Sequence[float]) -> list[int]:
    """Shares in whole numbers, to a ten-thousandth of the largest."""
    most = max(shares)
    return [round(share * 1e4 / most) for share in shares]


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
