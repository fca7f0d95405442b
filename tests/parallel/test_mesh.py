"""Groups are the ranks that agree in all other coordinates, whatever the order of axes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.graph import GraphBuilder
from simcore.graph.verify import group_matrix
from workloads.parallel.mesh import Mesh
from workloads.parallel.spec import ParallelSpec

AXES = ("tp", "cp", "dp", "pp")
SIZES = st.sampled_from([1, 2, 3])


def coordinates(sizes: dict[str, int], order: list[str]) -> dict[int, dict[str, int]]:
    """Rank -> its place on every axis; the first axis of ``order`` varies fastest."""
    found = {}
    for rank, places in enumerate(itertools.product(*(range(sizes[a]) for a in reversed(order)))):
        found[rank] = dict(zip(reversed(order), places, strict=True))
    return found


def together(places: dict[int, dict[str, int]], axes: tuple[str, ...]) -> set[frozenset[int]]:
    """Ranks that differ on ``axes`` alone."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for rank, place in places.items():
        groups.setdefault(tuple(v for a, v in place.items() if a not in axes), set()).add(rank)
    return {frozenset(group) for group in groups.values()}


def declared(parallel: ParallelSpec) -> dict[str, set[frozenset[int]]]:
    build = GraphBuilder(parallel.world_size)
    Mesh(parallel).declare(build)
    return {
        name: {frozenset(row.tolist()) for row in np.asarray(group_matrix(group))}
        for name, group in build._groups.items()
    }


@given(st.tuples(SIZES, SIZES, SIZES, SIZES), st.permutations(["tp", "cp", "ep", "dp", "pp"]))
def test_dense_groups(sizes, order):
    degrees = dict(zip(AXES, sizes, strict=True))
    parallel = ParallelSpec(**degrees, order="-".join(order))
    places = coordinates(degrees, [axis for axis in order if axis != "ep"])
    groups = declared(parallel)
    wanted = {"tp": ("tp",), "cp": ("cp",), "pp": ("pp",), "dp": ("cp", "dp"), "mp": ("tp", "pp")}
    for name, axes in wanted.items():
        if any(degrees[axis] > 1 for axis in axes):
            assert groups[name] == together(places, axes), name
        else:
            assert name not in groups
    for stage in range(degrees["pp"]):
        members = [rank for rank, place in places.items() if place["pp"] == stage]
        assert Mesh(parallel).stage_ranks(stage) == members


@pytest.mark.parametrize("etp", [1, 2, 4])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_experts_fold_independently_of_tensor_parallelism(ep, etp):
    # 2 x 2 x 4 ranks of each of two stages (arXiv 2504.14960): etp inside ep inside expert data parallel.
    parallel = ParallelSpec(tp=2, cp=2, dp=4, pp=2, ep=ep, etp=etp)
    groups = declared(parallel)
    places = coordinates({"tp": etp, "ep": ep, "dp": 16 // (ep * etp), "pp": 2}, ["tp", "ep", "dp", "pp"])
    for name, axis, size in (("etp", "tp", etp), ("ep", "ep", ep), ("expert_dp", "dp", 16 // (ep * etp))):
        if size > 1:
            assert groups[name] == together(places, (axis,))


def test_shards_are_neighbours_and_replicas_far_apart():
    groups = declared(ParallelSpec(tp=2, dp=4, dp_shard=2))
    assert groups["dp_shard"] == {frozenset(g) for g in ((0, 2), (1, 3), (4, 6), (5, 7))}
    assert groups["dp_replicate"] == {frozenset(g) for g in ((0, 4), (1, 5), (2, 6), (3, 7))}


def test_first_and_last_stage_share_the_embedding():
    assert declared(ParallelSpec(tp=2, pp=3))["embd"] == {frozenset({0, 4}), frozenset({1, 5})}
