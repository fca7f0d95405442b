"""Loads of many hops at once are those of hops one by one, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.collectives.loads import LinkLoad, load_of_hops
from simcore.hardware import Topology, load_cluster

#: Rails over three leaves, a tree of switches, nodes without NVSwitches.
PLACES = {
    "rail": Topology(load_cluster("h100-64", {"cluster.nodes_per_leaf": "3"})),
    "tree": Topology(load_cluster("h800-96", {"cluster.nodes_per_leaf": "2", "cluster.fabric": "fat_tree"})),
    "wires": Topology(load_cluster("v100-16")),
}


@pytest.mark.parametrize("name", PLACES)
@given(
    hops=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=40),
    size=st.floats(1e-3, 1e3),
)
def test_many_hops_load_links_as_one_by_one(name: str, hops: list[tuple[int, int]], size: float) -> None:
    fabric = PLACES[name]
    spread = fabric.num_gpus // 16
    pairs = [(src * spread, dst * spread) for src, dst in hops]
    expected = LinkLoad(fabric)
    for src, dst in pairs:
        expected.add(fabric.route(src, dst), size)
    found = load_of_hops(fabric, np.array(pairs, dtype=np.int64).reshape(-1, 2), size, 3.0)
    for one, other in zip(found, expected.per_byte(3.0), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", PLACES)
def test_routes_of_many_pairs(name: str) -> None:
    fabric = PLACES[name]
    gpus = np.arange(fabric.num_gpus)
    src, dst = (side.ravel() for side in np.meshgrid(gpus, gpus))
    for row, *pair in zip(fabric.routes(src, dst).tolist(), src.tolist(), dst.tolist(), strict=True):
        assert tuple(link for link in row if link >= 0) == fabric.route(*pair)
