"""Plays a schedule on symbolic data: every rank's buffer is a set of contributions per byte range."""

from collections import defaultdict
from collections.abc import Iterable

from simcore.collectives import Transfer

#: rank -> (channel, offset) -> (bytes, contributions)
Buffers = dict[int, dict[tuple[int, int], frozenset[int]]]


def play(transfers: Iterable[Transfer], start: Buffers) -> Buffers:
    """Buffers after all transfers; within a step every sender sends what it had before the step."""
    by_step: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        by_step[transfer.step].append(transfer)
    buffers: Buffers = {rank: dict(held) for rank, held in start.items()}
    for step in sorted(by_step):
        before = {rank: dict(held) for rank, held in buffers.items()}
        for t in by_step[step]:
            key = (t.channel, t.offset)
            sent = before[t.src].get(key, frozenset())
            assert sent, f"step {step}: rank {t.src} sends {key} before it has anything"
            if t.reduce:
                own = buffers[t.dst].get(key, frozenset())
                assert not own & sent, f"step {step}: rank {t.dst} would add a contribution twice"
                buffers[t.dst][key] = own | sent
            else:
                buffers[t.dst][key] = sent
    return buffers


def pieces(transfers: Iterable[Transfer]) -> dict[tuple[int, int], tuple[int, int]]:
    """(channel, offset) -> (chunk, bytes) of every piece that a schedule moves."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for t in transfers:
        assert found.setdefault((t.channel, t.offset), (t.chunk, t.num_bytes)) == (t.chunk, t.num_bytes)
    return found
