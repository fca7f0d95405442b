"""Places that shards cut alike are one kind."""

from __future__ import annotations

from workloads.tracing.drive.rank_search import RankSearch
from workloads.tracing.record.cut_shards import CutTensors
from workloads.tracing.record.world_axes import nested_axes


def test_places_with_pieces_of_equal_sizes_are_one_kind() -> None:
    """Four tensors and what fills up, over 64 places."""
    cut = CutTensors((1000, 30, 5000, 45, 5), (4,), 95, 64)
    assert cut.pieces(0) == (95,) and cut.pieces(10) == (50, 30, 15) and cut.pieces(63) == (45, 45)
    kinds = {place: str(cut.pieces(place)) for place in range(64)}
    run: list[int] = []
    search = RankSearch(
        lambda ranks: run.extend(ranks) or {rank: kinds[rank] for rank in ranks},
        32,
        pieces=lambda _size, place: (cut.pieces(place),),
    )
    search.ends(64)
    assert search.classes(nested_axes((), 64)) == kinds and search.assumed == 0
    assert len(run) <= 2 * len(set(kinds.values())) + 1
    # Where the first and the last of a kind differ all the same, all of the kind are run.
    kinds |= {7: "odd", 62: "odd", 63: "odd"}
    other = RankSearch(
        lambda ranks: {rank: kinds[rank] for rank in ranks}, 64, pieces=lambda _, place: ((0,),) * (place > 5)
    )
    other.ends(64)
    assert other.classes(nested_axes((), 64)) == kinds
