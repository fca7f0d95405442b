"""Tables dealt out by how often they are looked up: the rule of HugeCTR's planner for MLPerf's DCN-v2.

Note [Dealing out by heat]
    A bucket (a GPU, or a node) costs the lookups of a sample that it answers, and for every table or part of
    one what its sum costs on its way: HBM's rate over that of links, over four (NVIDIA's dlrm_dcnv2 in
    mlcommons/training_results_v3.1, sharding/planner.py: hotness and table cost).  The hottest part
    goes first, each to the cheapest bucket that has no part of that table and has room.  Then the rows of the
    hottest table that can be split once more lie on twice as many buckets, and all are dealt out again; of
    twenty rounds the plan whose dearest bucket is cheapest counts.  A table without a bucket that has room is
    split first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.records import dataclass

_ROUNDS: Final = 20


@dataclass(frozen=True)
class Warm:
    """A table by what dealing it out takes: lookups of a sample, and bytes of all its rows."""

    lookups: float
    num_bytes: float


def dealt_out(
    tables: Mapping[int, Warm], buckets: int, *, sum_cost: float, room_bytes: float
) -> dict[int, tuple[int, ...]]:
    """Buckets on which each table lies, its rows shared out evenly; see Note [Dealing out by heat].

    ``sum_cost``: of a table's sum, in lookups; ``room_bytes``: of a bucket (0: no limit).
    """
    best = dict.fromkeys(tables, tuple(range(buckets)))
    least = sum(one.lookups / buckets + sum_cost for one in tables.values())
    parts = dict.fromkeys(tables, 1)
    for _ in range(_ROUNDS):
        plan, costs, stuck = _round(tables, parts, buckets, sum_cost, room_bytes)
        if stuck is None and max(costs) < least:
            best, least = plan, max(costs)
        hotter = [k for k in _by_heat(tables, parts) if 2 * parts[k] <= buckets]
        split = stuck if stuck is not None else hotter[0] if hotter else None
        if split is None or 2 * parts[split] > buckets:
            break
        parts[split] *= 2
    return best


def _by_heat(tables: Mapping[int, Warm], parts: Mapping[int, int]) -> list[int]:
    return sorted(tables, key=lambda k: (-tables[k].lookups / parts[k], -k))


def _round(
    tables: Mapping[int, Warm], parts: Mapping[int, int], buckets: int, sum_cost: float, room_bytes: float
) -> tuple[dict[int, tuple[int, ...]], list[float], int | None]:
    """All parts dealt out once: where, what buckets cost, and the table that found no room."""
    costs, held = [0.0] * buckets, [0.0] * buckets
    found: dict[int, list[int]] = {k: [] for k in tables}
    for k in _by_heat(tables, parts):
        size = tables[k].num_bytes / parts[k]
        for _ in range(parts[k]):
            open_to = [
                b for b in range(buckets)
                if b not in found[k] and (not room_bytes or held[b] + size <= room_bytes)
            ]  # fmt: skip
            if not open_to:
                return {}, costs, k
            chosen = min(open_to, key=lambda b: (costs[b], b))
            found[k].append(chosen)
            held[chosen] += size
            costs[chosen] += tables[k].lookups / parts[k] + sum_cost
    return {k: tuple(sorted(where)) for k, where in found.items()}, costs, None
