"""Tables on ranks: what each holds, looks up and exchanges; plans; balance against brute force."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from workloads.jobs import Description, complete
from workloads.models.tables import TableSpec, TablesView
from workloads.parallel.job import Job
from workloads.parallel.members import members_of
from workloads.parallel.placement import PlacedTable, check_plan, placed
from workloads.parallel.table_plans import read_plan
from workloads.parallel.table_views import views

GROUPS = ("world", "intra", "inter")
WAYS = (
    "auto",
    "balanced",
    "hierarchical",
    "hybrid",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "grid_shard",
    "data_parallel",
)


def _views(tables: Sequence[TableSpec], how: str, ranks: int, local: int) -> list[TablesView]:
    plan = placed(tables, ranks, how, local=local)
    check_plan(tables, plan, ranks, local)
    return views(tables, plan, ranks, local=local, groups=GROUPS, samples=64, popularity=1.05)


def _sent(view: TablesView) -> list[tuple[str, str, float]]:
    return [(one.collective, one.group, one.elements) for one in view.rows_out]


TWO = [TableSpec(rows=1000, dim=64, pooling=10), TableSpec(rows=4000, dim=128, pooling=1)]


def test_two_tables_on_two_ranks_by_hand() -> None:
    first, second = _views(TWO, "table_wise", 2, 2)
    # 64 columns looked up ten times, and 128 once: the first costs 64 (10 + 8), the second 128 (1 + 8).
    (one,), (other,) = first.held, second.held
    assert (one.rows, one.dim, one.lookups, one.ways) == (4000, 128, 1.0, 2) or one.rows == 1000
    assert {one.rows, other.rows} == {1000, 4000}
    # Of one sample for each of two ranks: 64 columns come from one, 128 from the other; 192 for an average
    # rank's batch of one (2 x 96).  Keys: ten to the first, one to the second.
    small_first = one.rows == 1000
    shares = "1,2" if small_first else "2,1"
    assert _sent(first) == [(f"all_to_all:from={shares}", "world", 192.0)]
    assert first.keys[0].elements == 11.0


def test_rows_on_all_ranks_are_scattered_sums() -> None:
    view = _views(TWO, "row_wise", 4, 4)[0]
    # Each rank adds up what it has of every rank's sample: 4 x 192 sums go into the reduce_scatter.
    assert _sent(view) == [("reduce_scatter", "world", 768.0)]
    assert [(one.rows, one.lookups, one.partial) for one in view.held] == [
        (250, 2.5, True),
        (1000, 0.25, True),
    ]


def test_columns_on_several_ranks_need_every_key_on_each() -> None:
    view = _views([TWO[1]], "column_wise", 4, 4)[0]
    assert [(one.rows, one.dim, one.lookups) for one in view.held] == [(4000, 32, 1.0)]
    assert (view.keys[0].elements, view.rows_out[0].elements) == (4.0, 128.0)


def test_within_nodes_rows_are_scattered_and_sums_leave_once() -> None:
    many = _views(TWO, "table_row_wise", 16, 8)
    (own,) = many[0].held
    assert (own.rows, own.lookups, own.ways) == (125, 1.25, 16)
    # 16 samples of 64 columns within the first node; one eighth of them to each of two nodes, of which the
    # other has 128 columns.
    assert _sent(many[0]) == [("reduce_scatter", "intra", 16 * 64.0), ("all_to_all:from=1,2", "inter", 192.0)]
    grid = _views([TWO[1]], "grid_shard", 16, 8)
    assert [(one.rows, one.dim) for one in grid[0].held] == [(500, 64)]
    assert _sent(grid[15]) == [("reduce_scatter", "intra", 16 * 64.0), ("all_to_all", "inter", 128.0)]


@given(
    tables=st.lists(
        st.builds(
            TableSpec, rows=st.integers(64, 10**6), dim=st.sampled_from([32, 64, 128]),
            pooling=st.sampled_from([1.0, 3.0, 20.0]),
        ), min_size=1, max_size=12,
    ),
    how=st.sampled_from(WAYS), nodes=st.sampled_from([1, 2, 4]), local=st.sampled_from([1, 2, 8]),
)  # fmt: skip
def test_lookups_in_are_vectors_out(tables: list[TableSpec], how: str, nodes: int, local: int) -> None:
    ranks = nodes * local
    found = _views(tables, how, ranks, local)
    # Every lookup of every sample happens once for each column, on some rank.
    asked = sum(one.pooling * one.dim for one in tables) * ranks
    held = sum(one.count * one.lookups * one.dim * one.ways for view in found for one in view.held)
    copied = sum(one.count * one.lookups * one.dim for view in found for one in view.copied)
    assert held + copied == pytest.approx(asked)
    # All of a table is somewhere (rows and columns rounded up), and of copied ones everywhere.
    elements = sum(one.numel for view in found for one in view.held)
    elements += sum(one.numel for one in found[0].copied)
    assert elements >= sum(one.rows * one.dim for one in tables)
    # Members of a group say the same collectives on it, of as many elements.
    for group in GROUPS:
        for rank, view in enumerate(found):
            first = found[
                rank - rank % local if group == "intra" else rank % local if group == "inter" else 0
            ]
            on = [[one for one in each.rows_out if one.group == group] for each in (view, first)]
            assert on[0] == on[1]


@given(costs=st.lists(st.integers(1, 40), min_size=1, max_size=7), ranks=st.integers(1, 3))
def test_balance_is_within_what_is_known_of_the_greedy_rule(costs: list[int], ranks: int) -> None:
    # Longest first: at most 4/3 - 1/3n of the best (Graham, 1969).
    tables = [TableSpec(rows=100, dim=32, pooling=float(cost)) for cost in costs]
    dear = [32 * (cost + 8.0) for cost in costs]
    loads = [0.0] * ranks
    for one in placed(tables, ranks, "table_wise", local=ranks):
        loads[one.ranks[0]] += dear[one.table]
    best = min(
        max(sum(cost for cost, at in zip(dear, where, strict=True) if at == rank) for rank in range(ranks))
        for where in product(range(ranks), repeat=len(dear))
    )
    assert max(loads) <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-6


def test_a_rank_without_room_is_passed_over() -> None:
    tables = [TableSpec(rows=1000, dim=32, pooling=1.0), TableSpec(rows=1000, dim=32, pooling=1.0),
              TableSpec(rows=10, dim=32, pooling=30.0)]  # fmt: skip
    found = placed(tables, 2, "table_wise", local=2, room=130_000.0)
    # The popular one comes first, then both large ones would go to the other rank, which has room for one.
    assert sorted(one.ranks[0] for one in found[:2]) == [0, 1]


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ([PlacedTable(0, "table_wise", (0,)), PlacedTable(0, "table_wise", (1,))], "users is placed twice"),
        ([PlacedTable(0, "table_wise", (0,))], "table 1 is placed nowhere"),
        ([PlacedTable(0, "table_wise", (4,)), PlacedTable(1, "table_wise", (1,))],
         "users is on rank 4; nearest: 3"),
        ([PlacedTable(0, "table_row_wise", (0, 1, 2)), PlacedTable(1, "table_wise", (1,))],
         "over 3 ranks, no whole groups of 2; nearest: 4"),
        ([PlacedTable(0, "column_wise", (0, 1, 2, 3)), PlacedTable(1, "table_wise", (1,))],
         "users has 2 columns for 4 ranks; nearest: 2"),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_are_refused(plan: list[PlacedTable], told: str) -> None:
    tables = [TableSpec(rows=100, dim=2, name="users"), TableSpec(rows=100, dim=32)]
    with pytest.raises(InputError, match=told):
        check_plan(tables, plan, 4, 2)


def test_where_nobody_has_room_each_holds_as_much() -> None:
    # Sixteen tables of 1 MB on four ranks of 1 kB: four each, not all on the last.
    tables = [TableSpec(rows=1000, dim=250)] * 16
    plan = placed(tables, 4, "table_wise", local=4, row_bytes=4, room=1000)
    assert sorted(rank for one in plan for rank in one.ranks) == sorted(4 * [0, 1, 2, 3])


PRINTED = """module: sparse_arch.embedding_bag_collection

 param     | sharding type  | compute kernel | ranks
 --------- | -------------- | -------------- | ------
 rows.0    | table_wise     | fused          | [1]
 rows.1    | row_wise       | fused          | [0, 1]

 param     | shard offsets  | shard sizes    | placement
 --------- | -------------- | -------------- | ---------
 rows.0    | [0, 0]         | [1000, 64]     | rank:1/cuda:1
"""


def test_a_plan_of_torchrec_is_read_as_printed_or_as_json(tmp_path: Path) -> None:
    printed, as_json = tmp_path / "plan.txt", tmp_path / "plan.json"
    printed.write_text(PRINTED)
    as_json.write_text(
        json.dumps({"sparse_arch": {"rows.0": {"sharding_type": "table_wise", "ranks": [1]},
                                    "rows.1": {"sharding_type": "row_wise", "ranks": [0, 1]}}})
    )  # fmt: skip
    expected = (("rows.0", "table_wise", (1,)), ("rows.1", "row_wise", (0, 1)))
    assert read_plan(printed) == read_plan(as_json) == expected
    # Rank 1 has the first table and half of the second's rows, rank 0 the other half.
    first, second = members_of(Job.of(_described(str(printed))))
    assert [held.rows for held in dict(first[1].views)["rows"].held] == [2000]
    assert sorted(held.rows for held in dict(second[1].views)["rows"].held) == [1000, 2000]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rows.1  ", "rows.0  ", "rows.0 is placed twice|table 0 is placed twice"),
        ("[0, 1]", "[0, 9]", "on rank 9; nearest: 1, the last"),
        ("rows.", "other.", "has 'other.0' and no table of rows"),
        ("| fused ", "| fused_uvm ", "nearest: memory: uvm"),
        ("rows.1    | row_wise ", "rows.1    | rows_wise", "table 1 is placed nowhere"),
    ],
)
def test_printed_plans_that_cannot_be_are_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "plan.txt"
    path.write_text(PRINTED.replace(old, new))
    with pytest.raises(InputError, match=told):
        members_of(Job.of(_described(str(path))))


def _described(plan: str) -> Description:
    tables = [one.model_dump() for one in TWO]
    blocks = [
        {"block": "features", "width": 16}, {"block": "tables", "tables": tables, "name": "rows"},
        {"block": "concat"}, {"block": "mlp", "widths": [32]}, {"block": "click"},
    ]  # fmt: skip
    said = {"model": {"blocks": blocks}, "parallel": {"strategy": {"plan": plan}}}
    return complete(said, "here", num_gpus=2)
