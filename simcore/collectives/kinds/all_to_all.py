"""all_to_all: every rank has a piece for every other.  The size is one rank's input.

NCCL has no kernel for it: frameworks group sends and receives.  Libraries for mixtures of experts exchange in
two levels (:mod:`simcore.collectives.two_level`), or by kernels of their own (:class:`TokenExchange`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from simcore.collectives.kinds.collective import Collective, register
from simcore.collectives.kinds.schedule import Schedule, Transfer, split
from simcore.errors import InputError


def _pairwise(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Step s: rank r sends to rank r + s the piece that is meant for it.

    ``chunk`` is the destination, ``offset`` the place in the sender's input.
    """
    del chunks
    pieces = split(num_bytes, num_ranks)
    for step in range(1, num_ranks):
        for src in range(num_ranks):
            dst = (src + step) % num_ranks
            offset, size = pieces[dst]
            for channel, (low, length) in enumerate(split(size, channels)):
                yield Transfer(step - 1, channel, src, dst, dst, offset + low, length, False)


def hierarchical_all_to_all(
    num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1, ranks_per_node: int = 0
) -> Schedule:
    """Each rank to its neighbours on the node, for their rails; then along the rails.

    ``num_bytes`` is one rank's input, ``ranks_per_node`` 0 all of them.  ``chunk`` is ``origin * n +
    destination``, ``offset`` the place in the origin's input.
    """
    del chunks
    local = ranks_per_node or num_ranks
    pieces = split(num_bytes, num_ranks)
    nodes = num_ranks // local

    def sent(step: int, src: int, dst: int, origin: int, to: int) -> Schedule:
        offset, size = pieces[to]
        for channel, (low, length) in enumerate(split(size, channels)):
            yield Transfer(step, channel, src, dst, origin * num_ranks + to, offset + low, length, False)

    for step in range(1, local):
        for src in range(num_ranks):
            dst = src - src % local + (src + step) % local
            for node in range(nodes):
                yield from sent(step - 1, src, dst, src, node * local + dst % local)
    for step in range(1, nodes):
        for src in range(num_ranks):
            dst = (src + step * local) % num_ranks
            for neighbour in range(local):
                yield from sent(local + step - 2, src, dst, src - src % local + neighbour, dst)


_NAME: Final = re.compile(r"all_to_all:sms=(\d{1,9}),gpus=(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True)
class TokenExchange:
    """Experts' tokens exchanged by a kernel of its own, not by NCCL; planned in ``collectives/routed.py``.

    ``sms`` that the kernel holds; ``gpus`` of a node that a token which reaches it goes to, on average.
    As the name of a collective: ``all_to_all:sms=20,gpus=1.875``.  Its size is what a rank has for all nodes,
    its own included: tokens x nodes that a token goes to x bytes of a token.
    """

    sms: int
    gpus: float

    def __str__(self) -> str:
        return f"all_to_all:sms={self.sms},gpus={self.gpus:.4g}"

    @classmethod
    def parse(cls, collective: str) -> TokenExchange | None:
        """From a collective's name; None for NCCL's.  InputError for one that is misspelt."""
        if not collective.startswith("all_to_all:"):
            return None
        found = _NAME.fullmatch(collective)
        if found is None or not int(found[1]) or not float(found[2]):
            raise InputError(
                f"collective {collective!r}: an exchange of tokens is called all_to_all:sms=COUNT,gpus=NUMBER"
            )
        return cls(int(found[1]), float(found[2]))


def _token_exchange(name: str) -> Collective:
    return replace(ALL_TO_ALL, name=name, kernel=TokenExchange.parse(name))


ALL_TO_ALL = register(
    Collective(
        "all_to_all",
        {"pairwise": _pairwise, "hierarchical": hierarchical_all_to_all},
        grouped=True,
        variant=_token_exchange,
    )
)
