"""all_to_all: every rank has a piece for every other.  The size is one rank's input.

NCCL has no kernel for it: frameworks group sends and receives.  Pieces may differ (:class:`Uneven`).
Libraries for mixtures of experts exchange in two levels (:mod:`simcore.collectives.two_level`), or by
kernels of their own (:class:`TokenExchange`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from simcore.collectives.kinds.collective import Collective, register
from simcore.collectives.kinds.own_kernel import Flow, OwnKernel
from simcore.collectives.kinds.schedule import Generator, Schedule, Transfer, split
from simcore.errors import InputError
from simcore.records import dataclass


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


class _Rates(NamedTuple):
    """Rate of an SM over NVLink, and the shares of NICs and of NVLink that are reached."""

    sm_bytes_per_s: float
    network_share: float
    nvlink_share: float


#: Bytes that one SM moves over NVLink for such a kernel between nodes, per second.  Source: DeepEP's on one
#: node of H100, 4 to 16 SMs held, fp8 dispatch and bf16 combine of 13 shapes (ai-dynamo/aiconfigurator at
#: 095f58a51c, systems/data/h100_sxm/comm/sglang/0.5.12/wideep_deepep_normal_perf.parquet): 14 to 17 GB/s
#: where NVLink is not what limits.
SM_BYTES_PER_S: Final = 16e9
#: Shares of the rate of NICs and of NVLink that the kernels reach.  Source: deepseek-ai/DeepEP README.md of
#: its first release (February 2025), H800: 46 and 45 GB/s for 64 GPUs on 8 nodes with the sender's own node
#: counted, 7/8 of it over a NIC of 47 GB/s (51 and 50 since April 2025: docs/legacy.md); 153 and 158 of
#: 165 GB/s over NVLink.
NETWORK_SHARE: Final = 0.85
NVLINK_SHARE: Final = 0.94
DEEPEP: Final = "deepep"
#: Whose kernels exchange tokens.
#: HybridEP: deepseek-ai/DeepEP docs/README_Hybrid-EP.md at 41cad944, time of kernels alone, 4,096 tokens of
#: 7,168 for 8 of the experts, own GPU or node counted.  16 SMs of a B200 bring 735 (dispatch) and 674 GB/s
#: (combine) to 8 ranks, 7/8 of it over NVLink; 16 SMs of a GB200 528 GB/s over it to 36 ranks (combine);
#: 32 SMs 668 and 645 of its 722 GB/s to 8, 615 and 580 to 36.  64 H100: 50 GB/s, 7/8 over a NIC of 47.
EXCHANGE_KERNELS: Final = {
    DEEPEP: _Rates(SM_BYTES_PER_S, NETWORK_SHARE, NVLINK_SHARE),
    "hybridep": _Rates(40e9, 0.93, 0.88),
}


class _Channels(NamedTuple):
    """What a channel of DeepEP's within a node spends: seconds to look at a token; bytes/s of copies.

    Of both as of links :data:`NVLINK_SHARE` is reached.
    """

    look_s: float
    bytes_per_s: float


#: See Note [Channels within a node].  Fitted to 52 rows of 1,024 tokens and more on 8 H100, B200 and GB200
#: with 4 to 24 SMs and 1 to 22 experts a token (ai-dynamo/aiconfigurator at 095f58a51c,
#: systems/data/*/comm/sglang/0.5.12/wideep_deepep_normal_perf.parquet): 9.0% (rows) and 10.1% (sums) off on
#: average; each GPU by a fit to the two others 9 to 12 and 9 to 14%.
CHANNELS: Final = {"rows": _Channels(0.226e-6, 48.6e9), "sums": _Channels(0.451e-6, 63.1e9)}
_SMS_OF_CHANNEL: Final = 2  # one sends, one receives (DeepEP csrc/kernels/intranode.cu)

_NAME: Final = re.compile(
    r"all_to_all:sms=(\d{1,9}),gpus=(\d{1,9}(?:\.\d{1,9})?)(?:,(rows|sums)=(\d{1,9}))?"
    r"(?:,by=(" + "|".join(EXCHANGE_KERNELS) + "))?"
)


@dataclass(frozen=True)
class TokenExchange(OwnKernel):
    """Experts' tokens exchanged by a kernel of its own: over NICs to a node once, over NVLink from there.

    ``sms`` that the kernel holds; ``gpus`` of a node that a token which reaches it goes to, on average;
    ``by``: whose kernel it is, of :data:`EXCHANGE_KERNELS`.
    ``token_bytes`` of a token, where known, and whether it comes home as one of the ``sums``: what DeepEP's
    channels spend on it.
    As the name of a collective: ``all_to_all:sms=20,gpus=1.875`` (DeepEP's), ``...,by=hybridep``; dispatch
    ``...,rows=7392``, combination ``...,sums=14336``.  Its size is what a rank has for all nodes, its own
    included: tokens x nodes of a token x bytes of a token.

    Note [Routed exchange]
        DeepSeek's kernels (arXiv 2412.19437, section 3.2.2; DeepEP) send a token once to each node that has
        one of its experts, to the GPU with the sender's place in the node, which hands it on over NVLink to
        those GPUs of the node that need it; sums come back the same way.  All of it runs in one kernel on a
        number of SMs that the program sets, NICs and NVLink at the same time, chunk by chunk.
        Of n nodes (n-1)/n of the size crosses NICs; of k GPUs of the group on a node, NVLink carries
        ``gpus`` (k-1)/k times the size.  HBM: the token is read; what crosses is written for the NIC and read
        by it, written by the other NIC and read by who hands it on; each GPU that it is for writes it.
        Buffers of the NVLink hop are chunks, which L2 keeps.

    Note [Channels within a node]
        DeepEP's kernels within a node split tokens over channels of two SMs, one to send and one to receive.
        A few warps of the sender stand for each rank; they look at every token of the channel, one after
        the other, and copy those for their rank: ``look_s`` a token, whether it goes there or not, and the
        copies of all ranks' warps, the own rank's too, at the channel's rate.  So tokens for one expert take
        40% of the time of tokens for eight, which are five times as many bytes.
    """

    sms: int
    gpus: float
    by: str = DEEPEP
    token_bytes: int = 0
    sums: bool = False

    def __post_init__(self) -> None:
        for name, rate in EXCHANGE_KERNELS[self.by]._asdict().items():
            object.__setattr__(self, name, rate)

    def __str__(self) -> str:
        by = "" if self.by == DEEPEP else f",by={self.by}"
        token = f",{self._way}={self.token_bytes}" if self.token_bytes else ""
        return f"all_to_all:sms={self.sms},gpus={self.gpus:.4g}{token}{by}"

    @property
    def _way(self) -> str:
        return "sums" if self.sums else "rows"

    def flows(self, nodes: Sequence[int]) -> Iterator[Flow]:
        """See Note [Routed exchange]."""
        of_node = [[member for member, node in enumerate(nodes) if node == one] for one in sorted(set(nodes))]
        for members in of_node:
            for place, src in enumerate(members):
                for dst in members:
                    if src != dst:
                        yield src, dst, self.gpus / len(members)
                for other in of_node:
                    if other is not members:
                        yield src, other[place % len(other)], 1.0 / len(of_node)

    def busiest(self, nodes: Sequence[int]) -> float:
        """In closed form."""
        most, crossing = max(Counter(nodes).values()), _crossing(nodes)
        return max(self.gpus * (most - 1) / most, crossing)

    def sms_bytes_per_s(self, nodes: Sequence[int]) -> float:
        """See Note [Channels within a node]; between nodes and for others' kernels by the rate of an SM."""
        if len(set(nodes)) > 1 or not self.token_bytes or self.by != DEEPEP:
            return super().sms_bytes_per_s(nodes)
        channel = CHANNELS[self._way]
        each_s = channel.look_s / self.token_bytes + self.gpus / channel.bytes_per_s
        return self.sms / _SMS_OF_CHANNEL / each_s

    def hbm_bytes(self, nodes: Sequence[int]) -> float:
        """See Note [Routed exchange]."""
        return 1.0 + 4.0 * _crossing(nodes) + self.gpus

    @classmethod
    def parse(cls, collective: str) -> TokenExchange | None:
        """From a collective's name; None for NCCL's.  InputError for one that is misspelt."""
        if not collective.startswith("all_to_all:"):
            return None
        found = _NAME.fullmatch(collective)
        if found is None or not int(found[1]) or not float(found[2]):
            raise InputError(
                f"collective {collective[:80]!r}: an exchange of tokens is called"
                " all_to_all:sms=COUNT,gpus=NUMBER, an uneven one all_to_all:from=SHARE,..."
            )
        token = int(found[4] or 0)
        return cls(int(found[1]), float(found[2]), found[5] or DEEPEP, token, found[3] == "sums")


def _crossing(nodes: Sequence[int]) -> float:
    """Of what a rank has for all nodes, what is for others."""
    number = len(set(nodes))
    return (number - 1) / number


@dataclass(frozen=True)
class Uneven:
    """An exchange whose pieces differ: ``shares`` of ranks, by who sends ("from"), who gets ("to") or for
    each pair, senders first ("pairs").

    As the name of a collective: ``all_to_all:from=26,13,13``.  Its size is what an average rank puts in; a
    piece is its share of all that is put in.
    """

    side: str
    shares: tuple[int, ...]

    def __str__(self) -> str:
        return f"all_to_all:{self.side}={','.join(map(str, self.shares))}"

    @classmethod
    def parse(cls, collective: str) -> Uneven | None:
        """From a collective's name; None for another.  InputError for shares that cannot be."""
        found = _UNEVEN.fullmatch(collective)
        if found is None:
            return None
        shares = tuple(int(share) for share in found[2].split(","))
        if not any(shares):
            raise InputError(f"collective {collective[:80]!r}: no rank has anything to send")
        return cls(found[1], shares)

    def piece(self, src: int, dst: int, num_ranks: int) -> float:
        """What ``src`` has for ``dst``, in parts of the size that an equal piece has 1 of."""
        if self.side == "pairs":
            share = self.shares[src * num_ranks + dst] * num_ranks
        else:
            share = self.shares[src if self.side == "from" else dst]
        return share * num_ranks / sum(self.shares)

    def check(self, num_ranks: int) -> None:
        """InputError where there are not as many shares as ranks (or pairs)."""
        wanted = num_ranks**2 if self.side == "pairs" else num_ranks
        if len(self.shares) != wanted:
            raise InputError(f"{str(self)[:80]!r} has {len(self.shares)} shares for {num_ranks} ranks")


_UNEVEN: Final = re.compile(r"all_to_all:(from|to|pairs)=(\d{1,12}(?:,\d{1,12})*)")


def uneven(side: str, shares: Sequence[int]) -> str:
    """The name of an exchange of such shares, in smallest numbers; of equal ones that of the usual one."""
    if len(set(shares)) <= 1:
        return "all_to_all"
    common = math.gcd(*shares) or 1
    return str(Uneven(side, tuple(share // common for share in shares)))


def _uneven_schedule(how: Uneven) -> Generator:
    def steps(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
        del chunks
        how.check(num_ranks)
        sizes = [
            [round(how.piece(src, dst, num_ranks) * num_bytes / num_ranks) for dst in range(num_ranks)]
            for src in range(num_ranks)
        ]
        for step in range(1, num_ranks):
            for src in range(num_ranks):
                dst = (src + step) % num_ranks
                offset = sum(sizes[src][:dst])
                for channel, (low, length) in enumerate(split(sizes[src][dst], channels)):
                    yield Transfer(step - 1, channel, src, dst, dst, offset + low, length, False)

    return steps


def _pieces(how: Uneven) -> Callable[[int, int, int], float]:
    def piece(src: int, dst: int, num_ranks: int) -> float:
        how.check(num_ranks)
        return how.piece(src, dst, num_ranks)

    return piece


@lru_cache(maxsize=256)
def _variant(name: str) -> Collective:
    how = Uneven.parse(name)
    if how is None:
        return replace(ALL_TO_ALL, name=name, kernel=TokenExchange.parse(name))
    schedules = {"pairwise": _uneven_schedule(how)}
    return replace(ALL_TO_ALL, name=name, schedules=schedules, pieces=_pieces(how))


ALL_TO_ALL = register(
    Collective(
        "all_to_all",
        {"pairwise": _pairwise, "hierarchical": hierarchical_all_to_all},
        grouped=True,
        variant=_variant,
    )
)
