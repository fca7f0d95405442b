"""Which GPU runs which rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.hardware import Topology
from tests.hardware.clusters import cluster, topology


def gpus(where: Topology, ranks: int) -> list[int]:
    found = [where.gpu_of_rank(rank) for rank in range(ranks)]
    assert where.gpus_of_ranks(ranks).tolist() == found
    return found


def test_named_placements() -> None:
    assert gpus(topology(), 4) == [0, 1, 2, 3]
    assert gpus(topology("h800-24", placement="round_robin"), 7) == [0, 8, 16, 1, 9, 17, 2]
    assert sorted(gpus(topology("h800-24", placement="round_robin"), 24)) == list(range(24))


def test_nodes_and_lists(tmp_path: Path) -> None:
    where = topology("h800-24", placement="nodes:2,0")
    assert gpus(where, 16) == [*range(16, 24), *range(8)]
    assert gpus(topology(placement="3, 1,15"), 3) == [3, 1, 15]
    assert gpus(topology(placement="5"), 1) == [5]
    path = tmp_path / "places.txt"
    path.write_text("# first node\n3 1\n\n15,4 # the rest\n")
    assert gpus(topology(placement=str(path)), 4) == [3, 1, 15, 4]


def test_a_rank_that_is_not_placed_is_named() -> None:
    where = topology(placement="3,1,15")
    assert where.cluster.num_placed == 3
    for ask in (lambda: where.gpu_of_rank(3), lambda: where.gpus_of_ranks(4)):
        with pytest.raises(InputError, match=r"rank 3 is not placed: .* 'h800-16' has ranks 0 to 2"):
            ask()
    with pytest.raises(InputError, match="rank 24 is not placed"):
        topology("h800-24", placement="round_robin").gpu_of_rank(24)


@pytest.mark.parametrize(
    ("placement", "complaint"),
    [
        ("lineer", "placement cannot be 'lineer'; did you mean 'linear'?"),
        ("1,16", "placement puts rank 1 on GPU 16, but cluster 'h800-16' has GPUs 0 to 15"),
        ("1,2,1", "placement puts both rank 0 and rank 2 on GPU 1"),
        ("nodes:0,2", "node 2 does not exist; the cluster has nodes 0 to 1"),
        ("nodes:1,1", "node 1 is listed twice"),
        ("nodes:a", "nodes must be numbers with commas"),
        ("nowhere/places.txt", "cannot read placement 'nowhere/places.txt'"),
        ("9999999999", "is no GPU or node number"),
    ],
)
def test_placements_that_cannot_be(placement: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster(placement=placement)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"), [("0 1\n2 x", ":2: 'x' is no GPU"), ("# none\n", "no GPU numbers")]
)
def test_a_malformed_file_names_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "places.txt"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        cluster(placement=str(path))
    assert f"{path}" in str(caught.value)
    assert complaint in str(caught.value)


def test_a_smaller_cluster_does_not_hold_a_placement() -> None:
    with pytest.raises(InputError, match="placement puts rank 1 on GPU 9"):
        cluster(placement="0,9", num_nodes="1")
