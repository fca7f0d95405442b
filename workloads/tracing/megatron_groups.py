"""Megatron's lists of ranks by axis, made once per process and, mostly, handed out as far as they concern a
rank.

Every rank of a job goes through all groups of the world and joins those that it is in: at 131,072 ranks
that is 370,000 groups per rank.  Skipping the groups of others changes nothing for a rank; one rank of the
job still sees all of them, so that families are what the program made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state

#: Hand out every group, not only those of the rank being run.
every_group = True

#: Megatron 0.16.1 strings these groups together to those of an instance of the distributed optimizer.
_STRUNG_TOGETHER = ("tp-ep-pp",)

Groups = list[list[int]]


def install() -> None:
    """Wrap Megatron's generator of rank groups, once per process."""
    generator = parallel_state.RankGenerator
    generator.get_ranks = _remembered(generator.get_ranks)


def _remembered(original: Callable[[Any, str], Groups]) -> Callable[[Any, str], Groups]:
    known: dict[tuple[object, ...], tuple[Groups, dict[int, int]]] = {}

    @functools.wraps(original)
    def get_ranks(self: Any, token: str) -> Groups:
        sizes = tuple(self.name_to_size.items())
        key = (sizes, self.order, self.rank_offset, token)
        found = known.get(key)
        if found is None:
            groups = original(self, token)
            number = {rank: index for index, group in enumerate(groups) for rank in group}
            found = known[key] = (groups, number)
        groups, number = found
        if every_group or token in _STRUNG_TOGETHER:
            return groups
        mine = number.get(dist.get_rank())
        return [] if mine is None else [groups[mine]]

    return get_ranks
