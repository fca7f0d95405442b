"""all_reduce: every rank ends with the sum of everybody's buffer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from simcore.collectives.kinds.collective import Collective, register
from simcore.collectives.kinds.own_kernel import Flow, OwnKernel
from simcore.collectives.kinds.schedule import Schedule, Transfer, channel_chunks, owners_and_peers, ring
from simcore.collectives.tree import Tree, double_binary_tree
from simcore.errors import InputError
from simcore.records import dataclass


def _ring(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Reduces for n - 1 steps, gathers for n - 1; each rank sends 2 (n - 1) / n of the bytes."""
    del chunks  # one per rank
    return ring(num_ranks, num_bytes, channels, 2 * (num_ranks - 1), num_ranks - 1, 0)


def _tree_channel(tree: Tree, channel: int, pieces: Sequence[tuple[int, int]]) -> Schedule:
    """Up with sums, down with results; chunk k starts k steps later, as soon as the leaves are free."""
    depth = tree.depth
    level, parent = tree.level, tree.parent
    for chunk, (offset, size) in enumerate(pieces):
        for member in sorted(range(len(parent)), key=lambda m: -level[m]):
            if parent[member] >= 0:
                step = depth - level[member] + chunk
                yield Transfer(step, channel, member, parent[member], chunk, offset, size, True)
        for member in sorted(range(len(parent)), key=lambda m: level[m]):
            if parent[member] >= 0:
                step = depth + level[member] - 1 + chunk
                yield Transfer(step, channel, parent[member], member, chunk, offset, size, False)


def _tree(num_ranks: int, num_bytes: int, channels: int = 2, chunks: int = 1) -> Schedule:
    """Double binary tree: even channels use the first tree, odd channels the second."""
    trees = double_binary_tree(num_ranks)
    for channel, pieces in channel_chunks(num_bytes, channels, chunks):
        yield from _tree_channel(trees[channel % 2], channel, pieces)


def _switch(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """NVLS: rank r fetches slice r already added up, then stores it to all; adding and copying in the switch.

    A transfer to the owner stands for the switch's read of one member, one from the owner for a multicast
    copy.  Every port carries the buffer once and its own slice once more, each way; the schedule leaves out
    what a rank exchanges with itself.
    """
    del chunks
    for channel, slices in channel_chunks(num_bytes, channels, num_ranks):
        for owner, peer, offset, size in owners_and_peers(slices):
            yield Transfer(0, channel, peer, owner, owner, offset, size, True)
        for owner, peer, offset, size in owners_and_peers(slices):
            yield Transfer(1, channel, owner, peer, owner, offset, size, False)


_ONE_SHOT: Final = re.compile(r"all_reduce:(oneshot|inside),sms=([1-9]\d{0,8})")


@dataclass(frozen=True)
class OneShot(OwnKernel):
    """One kernel of ``sms`` blocks: each GPU reads its slice of all others of its node and adds.

    Between nodes a slice goes up to the switches and its sum comes down, which add on the way (SHARP): once
    each way over the slice's NIC.  Then all read all sums.  HugeCTR's AllReduceAlgo.OneShot
    (NVIDIA-Merlin/HugeCTR HugeCTR/src/collectives/ib_comm_ar.cu, ib_proxy.cpp).  As the name of a collective:
    ``all_reduce:oneshot,sms=16``.  ``all_reduce:inside,sms=16``: by blocks of a kernel that runs anyway and
    has started, with flags beside the data.
    """

    sms: int
    #: What a block of 1,024 threads reads over NVLink, as one of NCCL's channels on A100.
    sm_bytes_per_s: float = 20e9
    start_s: float | None = None
    flagged: bool = False

    def flows(self, nodes: Sequence[int]) -> Iterator[Flow]:
        """Slices to their owners and back; a sum in the switches as a message to the next node's owner."""
        of_node = [[member for member, node in enumerate(nodes) if node == one] for one in sorted(set(nodes))]
        for number, members in enumerate(of_node):
            share = 1.0 / len(members)
            following = of_node[(number + 1) % len(of_node)]
            for place, src in enumerate(members):
                for dst in members:
                    if src != dst:
                        yield src, dst, 2.0 * share
                if following is not members:
                    yield src, following[place % len(following)], share


@lru_cache(maxsize=64)
def _variant(name: str) -> Collective:
    found = _ONE_SHOT.fullmatch(name)
    if found is None:
        raise InputError(
            f"collective {name[:80]!r}: a kernel of its own is called all_reduce:oneshot,sms=COUNT"
        )
    sms = int(found[2])
    kernel = OneShot(sms, start_s=0.0, flagged=True) if found[1] == "inside" else OneShot(sms)
    return replace(ALL_REDUCE, name=name, kernel=kernel)


ALL_REDUCE = register(
    Collective(
        "all_reduce",
        # Over nodes each slice of nvls_tree continues on a double binary tree of its rail.
        {"ring": _ring, "tree": _tree, "nvls": _switch, "nvls_tree": _tree},
        reduces=True,
        passes=2,
        variant=_variant,
    )
)
