"""HugeCTR's placements against what MLPerf's logs say of them: tables by heat, popular rows on every GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.graph import Graph
from workloads.jobs import complete
from workloads.models.tables import TableSpec
from workloads.models.zoo.recommenders import _CRITEO, _CRITEO_MULTI, _LOOKUPS, POPULARITY
from workloads.parallel.by_heat import Warm, dealt_out
from workloads.parallel.placement import placed
from workloads.parallel.table_views import views

#: Tables that are on every GPU where copies are below 7,812 rows (DP_SHARDING_THRESHOLD=0.008).
SMALL = 7_812


@pytest.mark.parametrize(
    ("gpus", "copied", "heat"),
    [
        # mlcommons/training_results_v3.1, logs of dlrm_dcnv2 on 8 and 4 H100: "hotness cost is:".
        (8, SMALL, [26.0, 26.0, 24.5, 23.5, 23.5, 23.5, 22.5, 21.5]),
        (4, SMALL, [54.25, 54.25, 41.75, 40.75]),
        # v3.0, four GPUs, no copies: shard_matrix has tables 0, 5, 9, 16, 20, 24 on the first.
        (4, 0, [57.25, 57.25, 50.75, 48.75]),
    ],
)
def test_tables_lie_where_published_logs_have_them(gpus: int, copied: int, heat: list[float]) -> None:
    tables = [
        TableSpec(rows=rows, pooling=pooling) for rows, pooling in zip(_CRITEO_MULTI, _LOOKUPS, strict=True)
    ]
    found = placed(tables, gpus, "hierarchical", local=gpus, copied_rows=copied, room=30e9)
    loads = [0.0] * gpus
    for one in found:
        for rank in one.ranks:
            loads[rank] += tables[one.table].pooling / len(one.ranks)
    assert loads == heat
    # The hottest table's rows are on all eight, the next hottest's on two; of four, on two and one.
    hottest = next(one for one in found if tables[one.table].pooling == 100)
    assert (hottest.how, len(hottest.ranks)) == ("rows", 8 if gpus == 8 else 2)


@given(
    lookups=st.lists(st.integers(1, 40), min_size=1, max_size=8), buckets=st.integers(1, 6),
    room=st.sampled_from([0.0, 1.0, 2.5]),
)  # fmt: skip
def test_every_table_is_somewhere_and_buckets_have_room(
    lookups: list[int], buckets: int, room: float
) -> None:
    tables = {k: Warm(float(heat), 1.0) for k, heat in enumerate(lookups)}
    plan = dealt_out(tables, buckets, sum_cost=2.0, room_bytes=room)
    assert set(plan) == set(tables)
    held = [sum(1 / len(where) for where in plan.values() if b in where) for b in range(buckets)]
    everywhere = all(len(where) == buckets for where in plan.values())
    # What finds no room lies on all buckets alike.
    assert not room or max(held) <= room + 1e-9 or everywhere
    costs = [
        sum(lookups[k] / len(where) + 2.0 for k, where in plan.items() if b in where) for b in range(buckets)
    ]
    assert max(costs) <= sum(heat / buckets + 2.0 for heat in lookups) + 1e-9


@pytest.mark.parametrize(
    ("gpus", "samples", "rows", "share"),
    [
        # mlcommons/training_results_v2.0, dlrm: "Initialized hybrid model with 33096 frequent categories,
        # probability of being frequent is 0.894836", and on four GPUs with p_dup_max of 0.03 and 0.02.
        (8, 6912, 33_096, 0.894836),
        (4, 13_824, 53_964, 0.914957),
        (4, 13_824, 60_428, 0.918789),
    ],
)
def test_popular_rows_on_every_gpu_are_as_many_as_logs_say(
    gpus: int, samples: int, rows: int, share: float
) -> None:
    tables = [TableSpec(rows=count) for count in _CRITEO]
    groups = ("world", "intra", "inter")
    plan = placed(tables, gpus, "hybrid", local=gpus)
    view = views(tables, plan, gpus, local=gpus, groups=groups, samples=samples, popularity=POPULARITY)[0]
    near = [one for one in view.held if one.ways == 1]
    assert sum(one.rows * one.count for one in near) == pytest.approx(rows, rel=0.06)
    assert sum(one.lookups * one.count for one in near) / 26 == pytest.approx(share, abs=0.004)
    # On several nodes a row stays that is asked for less than once for each node: fewer rows, by the rule's
    # 1.9 / 1.3 lookups times n * n / (n - 1) nodes.
    far = views(tables, plan, gpus, local=1, groups=groups, samples=samples, popularity=POPULARITY)[0]
    assert sum(one.rows * one.count for one in far.copied) < rows / 2


def test_gradients_are_added_up_when_those_of_copied_tables_are_there() -> None:
    blocks = [
        {"block": "features", "width": 16},
        {"block": "tables", "tables": [{"rows": 100, "dim": 16}, {"rows": 10_000_000, "dim": 16}]},
        {"block": "mlp", "widths": [64, 16], "name": "bottom"}, {"block": "dot"},
        {"block": "mlp", "widths": [64, 32], "name": "top"}, {"block": "click"},
    ]  # fmt: skip
    said = {
        "model": {"blocks": blocks}, "software": {"preset": "hugectr"},
        "parallel": {"strategy": {"embedding": "mp", "tables": "row_wise", "copied_rows": 1000}},
    }  # fmt: skip
    graph: Graph = complete(said, "here", num_gpus=4).graph()
    names = [str(name) for name in graph.ops.name]
    summed = names.index("nccl::all_reduce")
    copies = next(k for k, name in enumerate(names) if name.startswith("table_update.atomic"))
    updates = next(k for k, name in enumerate(names) if name.startswith("table_update.sgd"))
    products = [k for k, name in enumerate(names) if name == "aten::mm"]
    # Networks' gradients, those of the table of 100 rows that all have, their sum, the split table's rows.
    assert max(products) < copies < summed < updates
