"""Wrong input is refused with a message that says what is wrong."""

import dataclasses
import math

import pytest

from simcore.collectives import NcclPlanner
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster

H800 = Topology(load_cluster("h800-96", {}))
PLANNER = NcclPlanner(H800)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "rng"}, "unknown NCCL algorithm 'rng'; did you mean 'ring'"),
        ({"protocol": "simpel"}, "unknown NCCL protocol 'simpel'; did you mean 'Simple'"),
        ({"max_channels": 0}, "max_channels must be between 1 and 64, not 0"),
        ({"min_channels": 65}, "min_channels must be between 1 and 64, not 65"),
        ({"min_channels": 8, "max_channels": 4}, "min_channels 8 is above max_channels 4"),
        ({"buffer_bytes": 100}, "buffer_bytes must be at least 4096, not 100"),
    ],
)
def test_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NcclPlanner(H800, **options)  # type: ignore[arg-type]


def test_a_switch_reduction_needs_simple() -> None:
    planner = NcclPlanner(H800, algorithm="NVLS", protocol="LL")
    with pytest.raises(InputError, match="'nvls' does not run under protocol 'LL'"):
        planner.plan("all_reduce", 1024, range(8))


def test_unknown_collective() -> None:
    with pytest.raises(InputError, match="unknown collective 'allreduce'; did you mean 'all_reduce'"):
        PLANNER.plan("allreduce", 8, (0, 1))


@pytest.mark.parametrize("size", [-1, math.nan, math.inf, 0.5])
def test_sizes(size: float) -> None:
    with pytest.raises(InputError, match="whole number of bytes >= 0"):
        PLANNER.plan("all_reduce", size, (0, 1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole number of bytes >= 0"):
        PLANNER.plan_p2p(size, 0, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((), "at least one rank"),
        ((0, 3, 3), "rank 3 appears twice in a group of 3"),
        ((0, 96), "rank 96 is outside cluster 'h800.*', which has 96 GPUs"),
        ((-1, 4), "rank -1 is outside cluster"),
    ],
)
def test_groups(ranks: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PLANNER.plan("all_reduce", 8, ranks)


def test_a_rank_cannot_send_to_itself() -> None:
    with pytest.raises(InputError, match="rank 4 cannot send to itself"):
        PLANNER.plan_p2p(8, 4, 4)


def test_an_nccl_version_that_is_none() -> None:
    with pytest.raises(InputError, match=r"nccl_version 'newest' does not read like 2\.22\.3"):
        NcclPlanner(Topology(load_cluster("h800-96", {"cluster.nccl_version": "newest"})))
    with pytest.raises(InputError, match=r"nccl_version '9{40}' does not read like 2\.22\.3"):
        NcclPlanner(Topology(load_cluster("h800-96", {"cluster.nccl_version": f"{'9' * 5000}.1"})))


def test_a_dead_link() -> None:
    fabric = Topology(load_cluster("h800-96", {}))
    rates = fabric.links.bytes_per_s.copy()
    rates[fabric.nic_out(3)] = 0.0
    fabric.links = dataclasses.replace(fabric.links, bytes_per_s=rates)
    planner = NcclPlanner(fabric, algorithm="ring")
    with pytest.raises(InputError, match=r"link 'nic\.0\.3\.out' has no bandwidth, but ring needs it"):
        planner.plan("all_reduce", 1024, range(16))
    assert planner.plan("all_reduce", 1024, range(8)).alone_ps > 0


def test_a_collective_of_days_is_refused() -> None:
    # 1 MiB through ports of 1 B/s: a million seconds and more, and a day has 86,400.
    planner = NcclPlanner(Topology(load_cluster("h800-96", {"gpu.nvlink_bytes_per_s": "1"}, force=True)))
    with pytest.raises(InputError, match=r"all_reduce of 1048576 bytes among 8 .* bandwidths"):
        planner.plan("all_reduce", 2**20, range(8))
