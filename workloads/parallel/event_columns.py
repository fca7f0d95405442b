"""Events of a stage's memory as columns: those that a piece's pass has, and those that stand alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from simcore.memory.lifetimes import IntArray

#: Columns that events of one action in one layer do not have in common.
_OWN: Final = 4
#: An event by itself: its storage, bytes, holder, owner, action, layer, microbatch and stream.
StorageEvent = tuple[int, int, int, int, int, int, int, int]


class PassEvents(NamedTuple):
    """Events of one action in one layer: columns, and what they have in common."""

    storage: IntArray
    num_bytes: IntArray
    holder: IntArray
    owner: IntArray
    action: int
    layer: int
    microbatch: int
    stream: int


def columns_of(events: Sequence[PassEvents | StorageEvent]) -> Iterator[IntArray]:
    """All columns of events, in the order of :class:`PassEvents`."""
    parts: list[tuple[IntArray, ...]] = [(np.zeros(0, dtype=np.int64),) * _OWN]
    alone: list[tuple[int, ...]] = []
    common: list[tuple[int, ...]] = []
    counts: list[int] = []
    for one in events:
        if isinstance(one, PassEvents):
            if alone:
                parts.append(tuple(np.array(alone, dtype=np.int64).T))
                alone = []
            parts.append((one.storage, one.num_bytes, one.holder, one.owner))
            common.append((one.action, one.layer, one.microbatch, one.stream))
            counts.append(len(one.storage))
        else:
            alone.append(one[:_OWN])
            common.append(one[_OWN:])
            counts.append(1)
    parts += [tuple(np.array(alone, dtype=np.int64).T)] if alone else []
    for columns in zip(*parts, strict=True):
        yield np.concatenate(columns)
    yield from np.array(common, dtype=np.int64).reshape(-1, _OWN).T.repeat(counts, axis=1)
