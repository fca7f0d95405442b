"""Exchanges whose pieces differ: played out, loads on links, the slowest rank, folded and not."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.collectives import NcclPlanner, collective_named
from simcore.collectives.kinds.all_to_all import Uneven, uneven
from simcore.errors import InputError
from simcore.graph import GraphBuilder, verify
from simcore.hardware import Topology, load_cluster
from simcore.run import Setup, run
from simcore.units import GIB

CLUSTER = load_cluster("h100-8")
TOPOLOGY = Topology(CLUSTER)


def _seconds(name: str, size: int = GIB, *, fold: bool = True) -> float:
    build = GraphBuilder(4, name="exchange")
    build.group("rows", ((4, 1),))
    template = build.template("rows")
    template.collective(name, "rows", size)
    build.program(range(4), [(template, -1, 0)])
    graph = build.build()
    verify(graph)
    return run(graph, CLUSTER, Setup(fold=fold)).result.step_ps / 1e12


def test_names_say_shares_and_equal_ones_are_the_usual_exchange() -> None:
    assert uneven("from", [6, 6, 6]) == "all_to_all"
    assert uneven("to", [26, 13, 13]) == "all_to_all:to=2,1,1"
    assert Uneven.parse("all_to_all:to=2,1,1") == Uneven("to", (2, 1, 1))
    assert Uneven.parse("all_to_all:sms=4,gpus=2") is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("all_to_all:from=0,0,0,0", "no rank has anything to send"),
        ("all_to_all:from=1,2", "2 shares for 4 ranks"),
        ("all_to_all:pairs=1,2,3,4", "4 shares for 4 ranks"),
        ("all_to_all:of=1,2", "an uneven one all_to_all:from=SHARE"),
    ],
)
def test_shares_that_cannot_be_are_refused(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        NcclPlanner(TOPOLOGY).plan(name, GIB, range(4))


@given(
    side=st.sampled_from(["from", "to", "pairs"]), n=st.integers(2, 6), unit=st.integers(1, 1000),
    data=st.data(), channels=st.integers(1, 3),
)  # fmt: skip
def test_every_pair_gets_its_share(side: str, n: int, unit: int, data: st.DataObject, channels: int) -> None:
    count = n * n if side == "pairs" else n
    shares = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any))
    kind = collective_named(str(Uneven(side, tuple(shares))))
    # An average rank puts in n times the sum of a unit for each share: every piece is a whole number.
    size = unit * sum(shares)
    sent: Counter[tuple[int, int]] = Counter()
    for one in kind.steps("pairwise", n, size, channels, 1):
        sent[one.src, one.dst] += one.num_bytes
    for src in range(n):
        for dst in range(n):
            share = shares[{"pairs": src * n + dst, "from": src, "to": dst}[side]] * (
                n if side == "pairs" else 1
            )
            expected = share * unit if src != dst else 0
            assert sent[src, dst] == pytest.approx(expected, abs=1)


def test_the_rank_with_most_to_send_sets_the_time() -> None:
    even = _seconds("all_to_all")
    # Of 4 GiB rank 0 has 5/8 to send, 2.5 times an even share; as much is received where it has to arrive.
    for name in ("all_to_all:from=5,1,1,1", "all_to_all:to=5,1,1,1"):
        assert _seconds(name) == pytest.approx(2.5 * even, rel=0.03)
    # One pair has it all: 4 GiB from one GPU to another, where the even exchange sends 0.75 each.
    pair = "all_to_all:pairs=0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0"
    assert _seconds(pair) == pytest.approx(4 / 0.75 * even, rel=0.03)


@pytest.mark.parametrize("name", ["all_to_all:from=5,1,1,1", "all_to_all:to=3,3,1,1"])
def test_folded_and_not_it_is_the_same(name: str) -> None:
    assert _seconds(name) == _seconds(name, fold=False)
