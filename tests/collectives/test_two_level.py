"""all_to_all in two levels: every piece arrives, links carry what rails need, levels take turns."""

import pytest

from simcore.collectives import NcclPlanner
from simcore.collectives.kinds.all_to_all import hierarchical_all_to_all
from simcore.collectives.layout import layout_of
from simcore.collectives.two_level import two_level_shares
from simcore.hardware import Topology, load_cluster
from simcore.units import GIB, KIB, PS_PER_S

H800 = Topology(load_cluster("h800-96", {}))
FORCED = NcclPlanner(H800, algorithm="alltoall:hierarchical")
RANKS = tuple(range(32))


@pytest.mark.parametrize(("nodes", "local"), [(1, 4), (4, 1), (2, 2), (3, 4), (4, 8)])
def test_every_piece_reaches_the_rank_it_is_meant_for(nodes: int, local: int) -> None:
    n = nodes * local
    held = {(rank, rank * n + to): True for rank in range(n) for to in range(n)}
    transfers = list(hierarchical_all_to_all(n, 10 * n, ranks_per_node=local))
    for t in sorted(transfers, key=lambda t: t.step):
        assert held.pop((t.src, t.chunk)), "sent before it was there"
        held[t.dst, t.chunk] = True
        assert (
            t.src // local == t.dst // local or t.src % local == t.dst % local
        )  # in the node or on the rail
    assert set(held) == {(to, origin * n + to) for origin in range(n) for to in range(n)}
    # K - 1 messages of N pieces, then N - 1 of K.
    assert len(transfers) == n * ((local - 1) * nodes + (nodes - 1) * local)
    assert max(t.step for t in transfers) + 1 == local - 1 + nodes - 1


def test_links_carry_both_levels() -> None:
    # 32 ranks of 320 bytes, pieces of 10: NVLink 7 x 4 pieces, a NIC 3 x 8.
    plan = FORCED.plan("all_to_all", 320, RANKS)
    assert plan.algorithm == "hierarchical"
    overhead = {"LL": 2, "Simple": 1}[plan.protocol]
    carried = {H800.links.names[u.link]: u.weight * plan.volume_bytes / overhead for u in plan.links}
    assert {round(b) for name, b in carried.items() if name.startswith("nvlink")} == {280}
    assert {round(b) for name, b in carried.items() if name.startswith("nic")} == {240}


def test_levels_take_turns() -> None:
    # Large: the time of NVLink, then that of the NICs, over all_to_all's efficiency.
    plan = FORCED.plan("all_to_all", 16 * GIB, RANKS)
    pair = NcclPlanner(H800).plan("all_to_all", 16 * GIB, RANKS)
    inner, outer = two_level_shares(layout_of(H800, RANKS))
    spec = H800.cluster
    data = 16 * GIB * 31 / 32
    within_s = inner * data / (spec.gpu.nvlink_bytes_per_s * spec.gpu.nvlink_efficiency)
    between_s = outer * data / (spec.nic_bytes_per_s * spec.nic_efficiency)
    assert pair.alone_ps < plan.alone_ps
    assert plan.alone_ps / PS_PER_S > within_s + between_s
    assert plan.alone_ps / PS_PER_S == pytest.approx(within_s + between_s, rel=0.2)
    # Small: ten messages instead of 31, but two starts.
    assert FORCED.plan("all_to_all", 32 * KIB, RANKS).num_steps == 10


def test_groups_that_do_not_fit_stay_pairwise() -> None:
    for ranks in (range(8), range(0, 32, 8), range(12)):
        assert FORCED.plan("all_to_all", KIB, tuple(ranks)).algorithm == "pairwise"
    assert NcclPlanner(H800).plan("all_to_all", KIB, RANKS).algorithm == "pairwise"
    assert FORCED.plan("all_reduce", KIB, RANKS).algorithm != "hierarchical"
