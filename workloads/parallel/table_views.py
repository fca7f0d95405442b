"""What each rank looks up of its tables, and what it exchanges with others; see Note [Placements]."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from simcore.collectives.kinds.all_to_all import uneven
from simcore.popularity import distinct_rows, rows_above, share_of_first
from workloads.models.tables import Exchange, HeldTable, TableSpec, TablesView, merged
from workloads.parallel.placement import PlacedTable

#: "hybrid" on several nodes: a row that a step asks for more often than this, for each of them, is on every
#: rank: sums of its gradient take less than its journeys (HugeCTR's HybridEmbeddingParam: 190 and 130 GB/s).
_OFTEN: Final = 1.9 / 1.3
#: "hybrid" within a node: rows that a rank is likelier than this to be asked for twice in a step are on every
#: rank (HugeCTR's p_dup_max: 0.01 in MLPerf v1.0, 0.02 or 0.03 later).
_TWICE: Final = 0.02


def views(
    tables: Sequence[TableSpec], plan: Sequence[PlacedTable], num_ranks: int, *, local: int,
    groups: tuple[str, str, str], samples: int = 1, popularity: float = 0.0,
) -> list[TablesView]:  # fmt: skip
    """What each of ``num_ranks`` holds and exchanges, where each has ``samples`` at once.

    ``groups``: names of the groups of all these ranks, of an inner group, and of ranks at the same place of
    each inner group.
    """
    dealt = _Dealt(num_ranks, local, samples, popularity)
    for one in plan:
        dealt.take(tables[one.table], one)
    common: list[Exchange] = []  # what all ranks say alike, behind what groups say
    if dealt.alone and num_ranks > local > 1:  # by rank within groups, then between them (IB_NVLink_Hier)
        common += [Exchange("all_to_all", group, dealt.alone) for group in groups[1:]]
    elif dealt.alone:
        common.append(Exchange("all_to_all", groups[0], dealt.alone))
    sent, keys, inner, scattered = dealt.sent, dealt.keys, dealt.inner, dealt.scattered
    if any(sent):
        common.append(Exchange(uneven("from", sent), groups[0], float(sum(sent))))
    between = Exchange(uneven("from", inner), groups[2], float(sum(inner))) if any(inner) else None
    asked = (Exchange(uneven("to", _whole(keys)), groups[0], sum(keys)),) if any(keys) else ()
    everywhere = merged(dealt.copied)
    if num_ranks == 1:
        return [TablesView(merged(dealt.held[0]), everywhere)]
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
        out.append(TablesView(merged(dealt.held[rank]), everywhere, asked, (*rows_out, *common)))
    return out


class _Dealt:
    """What each rank holds, and what of it is exchanged, table by table.

    ``keys``: what each rank is asked for; ``sent``: columns that it hands out whole; ``alone``: columns of
    rows that leave one by one; ``scattered``: columns of tables whose rows lie on all, ``inner``: on an inner
    group; ``copied``: what everybody has.
    """

    def __init__(self, num_ranks: int, local: int, samples: int, popularity: float) -> None:
        self.held: list[list[HeldTable]] = [[] for _ in range(num_ranks)]
        self.keys, self.sent = [0.0] * num_ranks, [0] * num_ranks
        self.alone = 0.0
        self.scattered = 0
        self.inner = [0] * max(1, num_ranks // local)
        self.copied: list[HeldTable] = []
        self._num_ranks, self._local, self._samples, self._popularity = num_ranks, local, samples, popularity

    def take(self, table: TableSpec, placed: PlacedTable) -> None:
        """Deal out one table more, as it is placed."""
        if placed.how == "data_parallel":
            self.copied.append(HeldTable(table.rows, table.dim, table.pooling))
        elif placed.how == "hybrid":
            self._hybrid(table)
        elif placed.how == "rows":
            lookups = table.pooling / len(placed.ranks)
            rows = -(-table.rows // len(placed.ranks))
            for rank in placed.ranks:
                self._hold(rank, HeldTable(rows, table.dim, lookups, self._num_ranks, partial=True))
                self.sent[rank] += table.dim
        elif placed.how in ("table_wise", "column_wise"):
            dim = -(-table.dim // len(placed.ranks))
            for rank in placed.ranks:
                self._hold(rank, HeldTable(table.rows, dim, table.pooling, self._num_ranks))
                self.sent[rank] += dim
        else:
            self._in_grid(table, placed)

    def _hold(self, rank: int, held: HeldTable) -> None:
        self.held[rank].append(held)
        self.keys[rank] += held.lookups

    def _hybrid(self, table: TableSpec) -> None:
        ranks = self._num_ranks
        often = popular_rows(table, ranks, self._local, self._samples, self._popularity)
        share = share_of_first(often, table.rows, self._popularity) if often else 0.0
        near = HeldTable(often, table.dim, table.pooling * share, alone=ranks <= self._local)
        if often and near.alone:
            # Copies that this step reads are brought up to date, and their gradients fetched, one by one.
            met = distinct_rows(near.lookups * self._samples, often, self._popularity)
            self.alone += table.dim * met / self._samples
            for own in self.held:
                own.append(near)
        elif often:
            self.copied.append(near)
        if often < table.rows:
            far = table.pooling * (1 - share)
            self.alone += far * table.dim
            rows = -(-(table.rows - often) // ranks)
            for rank in range(ranks):
                self._hold(rank, HeldTable(rows, table.dim, far / ranks, ranks, alone=True))

    def _in_grid(self, table: TableSpec, placed: PlacedTable) -> None:
        columns = len(placed.ranks) // self._local if placed.how == "grid_shard" else 1
        dim = -(-table.dim // columns)
        parts = len(placed.ranks) // columns
        rows = -(-table.rows // parts)
        for rank in placed.ranks:
            self._hold(rank, HeldTable(rows, dim, table.pooling / parts, self._num_ranks, partial=True))
        if placed.how == "row_wise":
            self.scattered += dim
        else:
            for group in sorted({rank // self._local for rank in placed.ranks}):
                self.inner[group] += dim


def popular_rows(table: TableSpec, num_ranks: int, local: int, samples: int, popularity: float) -> int:
    """Rows of a "hybrid" table that all of ``num_ranks`` have, each with ``samples`` at once."""
    lookups = table.pooling * samples * num_ranks
    return rows_above(_often(num_ranks, local), lookups, table.rows, popularity)


def _often(num_ranks: int, local: int) -> float:
    """Lookups of a row in a step above which "hybrid" has it on every rank.

    HugeCTR/src/embeddings/hybrid_embedding/calibration_data.cu, calculate_threshold: on n nodes what
    journeys to n - 1 of n cost against a sum over them; on one, a row that a rank asks for m times on average
    is met twice with a probability of ``m ** 2 / 2``.
    """
    nodes = num_ranks // local
    if nodes > 1:
        return _OFTEN * nodes * nodes / (nodes - 1)
    return num_ranks * sqrt(2 * _TWICE)


def _whole(shares: Sequence[float]) -> list[int]:
    """Shares in whole numbers, to a ten-thousandth of the largest."""
    most = max(shares)
    return [round(share * 1e4 / most) for share in shares]
