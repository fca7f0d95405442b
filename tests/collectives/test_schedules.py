"""Schedules are right: played out, every rank ends with the data that the collective promises."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import Transfer, collective_named
from simcore.collectives.tree import double_binary_tree
from simcore.errors import InputError
from tests.collectives.play import pieces, play

RANKS = st.integers(2, 12)
CHANNELS = st.integers(1, 4)
CHUNKS = st.integers(1, 3)


def schedule(
    algorithm: str, collective: str, n: int, num_bytes: int, channels: int = 1, chunks: int = 1
) -> list[Transfer]:
    return list(collective_named(collective).steps(algorithm, n, num_bytes, channels, chunks))


def sent_per_rank(transfers: list[Transfer]) -> Counter[int]:
    sent: Counter[int] = Counter()
    for t in transfers:
        sent[t.src] += t.num_bytes
    return sent


@settings(max_examples=60, deadline=None)
@given(n=RANKS, channels=CHANNELS, chunks=CHUNKS, unit=st.integers(1, 50), data=st.data())
def test_all_reduce_leaves_every_contribution_on_every_rank(
    n: int, channels: int, chunks: int, unit: int, data: st.DataObject
) -> None:
    algorithm = data.draw(st.sampled_from(["ring", "tree", "nvls"]))
    # Enough bytes that no piece is empty: n ranks x channels x chunks x at least one byte.
    num_bytes = n * channels * chunks * unit + data.draw(st.integers(0, 7))
    transfers = schedule(algorithm, "all_reduce", n, num_bytes, channels, chunks)
    parts = pieces(transfers)
    assert sum(size for _, size in parts.values()) == num_bytes
    end = play(transfers, {rank: dict.fromkeys(parts, frozenset([rank])) for rank in range(n)})
    everyone = frozenset(range(n))
    assert all(end[rank][piece] == everyone for rank in range(n) for piece in parts)


@settings(max_examples=60, deadline=None)
@given(n=RANKS, channels=CHANNELS, unit=st.integers(1, 50), rest=st.integers(0, 7), data=st.data())
def test_reduce_scatter_leaves_chunk_r_complete_on_rank_r(
    n: int, channels: int, unit: int, rest: int, data: st.DataObject
) -> None:
    algorithm = data.draw(st.sampled_from(collective_named("reduce_scatter").algorithms))
    transfers = schedule(algorithm, "reduce_scatter", n, n * channels * unit + rest, channels)
    parts = pieces(transfers)
    end = play(transfers, {rank: dict.fromkeys(parts, frozenset([rank])) for rank in range(n)})
    for piece, (chunk, _) in parts.items():
        assert end[chunk][piece] == frozenset(range(n))


@settings(max_examples=60, deadline=None)
@given(n=RANKS, channels=CHANNELS, unit=st.integers(1, 50), rest=st.integers(0, 7), data=st.data())
def test_all_gather_brings_chunk_r_of_rank_r_to_all(
    n: int, channels: int, unit: int, rest: int, data: st.DataObject
) -> None:
    algorithm = data.draw(st.sampled_from(collective_named("all_gather").algorithms))
    transfers = schedule(algorithm, "all_gather", n, n * channels * unit + rest, channels)
    parts = pieces(transfers)
    start = {
        rank: {piece: frozenset([rank]) for piece, (chunk, _) in parts.items() if chunk == rank}
        for rank in range(n)
    }
    end = play(transfers, start)
    for piece, (chunk, _) in parts.items():
        assert all(end[rank][piece] == frozenset([chunk]) for rank in range(n))


@settings(max_examples=40, deadline=None)
@given(n=RANKS, channels=CHANNELS, chunks=st.integers(1, 5), unit=st.integers(1, 20))
def test_broadcast_and_reduce_are_chains_from_and_to_rank_0(
    n: int, channels: int, chunks: int, unit: int
) -> None:
    num_bytes = channels * chunks * unit
    down = schedule("ring", "broadcast", n, num_bytes, channels, chunks)
    parts = pieces(down)
    end = play(down, {0: dict.fromkeys(parts, frozenset([0])), **{rank: {} for rank in range(1, n)}})
    assert all(end[rank][piece] == frozenset([0]) for rank in range(n) for piece in parts)
    up = schedule("ring", "reduce", n, num_bytes, channels, chunks)
    end = play(up, {rank: dict.fromkeys(pieces(up), frozenset([rank])) for rank in range(n)})
    assert all(end[0][piece] == frozenset(range(n)) for piece in pieces(up))


@given(n=RANKS, channels=CHANNELS, num_bytes=st.integers(0, 10_000))
def test_all_to_all_sends_every_piece_once_to_the_rank_it_is_meant_for(
    n: int, channels: int, num_bytes: int
) -> None:
    transfers = schedule("pairwise", "all_to_all", n, num_bytes, channels)
    between: Counter[tuple[int, int]] = Counter()
    for t in transfers:
        assert t.src != t.dst
        assert t.chunk == t.dst
        between[t.src, t.dst] += t.num_bytes
    # Piece d of n is bytes [B d / n, B (d + 1) / n).
    for src in range(n):
        for dst in range(n):
            if src != dst:
                assert between[src, dst] == num_bytes * (dst + 1) // n - num_bytes * dst // n
    # In each step everyone sends to one rank and receives from one.
    for step in range(n - 1):
        assert len({(t.src, t.dst) for t in transfers if t.step == step}) == n
        assert len({t.dst for t in transfers if t.step == step}) == n


@pytest.mark.parametrize("n", [2, 3, 4, 8, 96])
def test_ring_all_reduce_sends_2_n_minus_1_over_n_to_the_byte(n: int) -> None:
    # B = 960 n bytes in 3 channels: chunks of 320 bytes; 2 (n - 1) sends of 3 chunks = 1920 (n - 1) bytes.
    transfers = schedule("ring", "all_reduce", n, 960 * n, 3)
    assert set(sent_per_rank(transfers).values()) == {1920 * (n - 1)}
    assert set(sent_per_rank(transfers).values()) == {
        round(collective_named("all_reduce").sent_share(n) * 960 * n)
    }
    assert max(t.step for t in transfers) + 1 == 2 * (n - 1)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("algorithm", ["ring", "pat", "nvls"])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_gather_and_scatter_send_n_minus_1_over_n(collective: str, algorithm: str, n: int) -> None:
    # Chunks of 100 bytes; every chunk goes n - 1 ways, and every rank sends as many as any other.
    transfers = schedule(algorithm, collective, n, 100 * n)
    assert set(sent_per_rank(transfers).values()) == {100 * (n - 1)}
    assert collective_named(collective).sent_share(n) * 100 * n == pytest.approx(100 * (n - 1))


@pytest.mark.parametrize(("n", "steps"), [(2, 1), (3, 2), (8, 3), (9, 4), (64, 6)])
def test_parallel_aggregated_trees_take_log2_n_steps_each_to_one_peer(n: int, steps: int) -> None:
    for collective, order in (("all_gather", -1), ("reduce_scatter", 1)):
        transfers = schedule("pat", collective, n, 10 * n)
        distances = []
        for step in range(steps):
            now = [t for t in transfers if t.step == step]
            assert len({(t.src, t.dst) for t in now}) == n
            distances.append((now[0].dst - now[0].src) * -order % n)
        assert max(t.step for t in transfers) + 1 == steps
        # Far hops carry few chunks: an all_gather begins with them, a reduce_scatter ends with them.
        assert distances[::order] == [1 << k for k in range(steps)]


@settings(max_examples=30, deadline=None)
@given(n=RANKS, num_bytes=st.integers(1, 5000))
def test_tree_and_switch_send_on_average_what_a_ring_sends(n: int, num_bytes: int) -> None:
    for algorithm in ("ring", "tree", "nvls"):
        total = sum(t.num_bytes for t in schedule(algorithm, "all_reduce", n, num_bytes, 2))
        # n - 1 members send each byte once up and the others once down: 2 (n - 1) B in all.
        assert total == 2 * (n - 1) * num_bytes


@pytest.mark.parametrize("size", range(1, 70))
def test_double_binary_tree_spans_all_and_swaps_leaves_and_inner_nodes(size: int) -> None:
    first, second = double_binary_tree(size)
    for tree in (first, second):
        assert tree.parent.count(-1) == 1
        assert min(tree.level) == 0  # every member reaches the root: level is set for all
        assert all(len(kids) <= 2 for kids in tree.children)
        assert tree.depth <= size.bit_length()
    if size % 2 == 0:
        # The mirrored tree: who has two children in one has none in the other.
        for member in range(size):
            assert len(first.children[member]) < 2 or not second.children[member]


def test_the_tree_of_14_is_the_one_drawn_in_nccls_trees_cc() -> None:
    # 0 -> 8 -> {4, 12}, 4 -> {2, 6}, 12 -> {10, 13}, 2 -> {1, 3}, 6 -> {5, 7}, 10 -> {9, 11}
    tree = double_binary_tree(14)[0]
    assert tree.children[0] == (8,)
    assert tree.children[8] == (4, 12)
    assert tree.children[12] == (10, 13)
    assert tree.children[2] == (1, 3)
    assert tree.level[13] == 3


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'all_reduce'"):
        schedule("ring", "allreduce", 4, 8)
    with pytest.raises(InputError, match="all_gather has no algorithm 'tree'"):
        schedule("tree", "all_gather", 4, 8)
