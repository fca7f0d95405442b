"""Arrows: which send meets which recv."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from simcore.report.arrows import Arrows
from simcore.timeline.reader import RankRows

RANKS = 3
#: (kind, group, peer) of a row, in issue order.
Row = tuple[str, str, int]


def rank_rows(rank: int, rows: list[Row]) -> RankRows:
    kind, group, peer = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {
        "kind": pa.array(kind, pa.string()).dictionary_encode(),
        "group": pa.array(group, pa.string()).dictionary_encode(),
        "peer": pa.array(peer, pa.int32()),
    }
    return RankRows(rank, 1, pa.table(columns))


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["send", "recv", "compute"]),
                st.sampled_from(["pp", "loop"]),
                st.integers(0, RANKS - 1),
            ),
            min_size=1,
            max_size=12,
        ),
        min_size=RANKS,
        max_size=RANKS,
    )
)
def test_the_nth_send_meets_the_nth_recv(job: list[list[Row]]) -> None:
    arrows = Arrows()
    sends: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    recvs: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for rank, rows in enumerate(job):
        # Row i of rank r runs from 1000 r + 10 i to 10 i + 5, ns.
        start = 1000 * rank + 10 * np.arange(len(rows))
        p2p = np.array([i for i, row in enumerate(rows) if row[0] != "compute"], dtype=np.int64)
        arrows.add(rank_rows(rank, rows), p2p, rank, np.full(len(rows), 100 * (rank + 1)), start, start + 5)
        for i, (kind, group, peer) in enumerate(rows):
            if kind == "send":
                sends[group, rank, peer].append(1000 * rank + 10 * i)
            elif kind == "recv":
                recvs[group, peer, rank].append(1000 * rank + 10 * i + 4)  # just before its end
    expected = sorted(
        (leaves, arrives)
        for way in sends
        for leaves, arrives in zip(sends[way], recvs.get(way, []), strict=False)
    )
    pieces = list(arrows.events())
    events = [event for piece in pieces for event in json.loads(piece.listed())]
    found = {event["id"]: [0, 0] for event in events}
    for event in events:
        found[event["id"]][event["ph"] == "f"] = round(1000 * event["ts"])
        assert event["pid"] == event["tid"] // 100 - 1 and ("bp" in event) == (event["ph"] == "f")
    assert sorted(map(tuple, found.values())) == expected
    assert sum(piece.count for piece in pieces) == len(events) == 2 * len(expected)


def test_no_ranks_have_no_arrows() -> None:
    assert not list(Arrows().events())
