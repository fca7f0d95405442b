"""How long the pieces of a collective take: kernel start, one hop, one channel's copy rate.

Note [Time of a collective]
    A channel is one thread block that walks through the steps of its schedule in order.  Each step costs a
    hop latency (the flag's way, polling, a fence under Simple); the first of all pays the kernel's start.
    Hops add up once, along the longest chain of dependent messages: later chunks follow while earlier ones
    travel.  Bytes then flow at the rate of the slowest of: the channels' copy loops, the links, and, for a
    ring, a channel whose first step also copies its own share and whose last receives without sending.
    They keep the wire idle for a part (``tail_step``) of a step, so of S sending steps NVLink sees
    S / (S + tail_step).  A reduce_scatter has nothing to copy first and adds in its last step, which is
    another part (``scatter_tail_step``).  A NIC goes on sending from its buffer meanwhile.
    Where every stage stores a whole chunk before it passes it on (trees, chains, NVLS), the pipeline must
    fill first: one chunk time per further stage.  See Note [Chains].
    Channels start in lockstep and contend for the same moments of the wire; as they drift apart and
    translations are cached, the rate approaches its limit.  What this costs in all grows with the logarithm
    of the bytes, ``warm_up_s * ln(1 + bytes / warm_up_bytes)``, under Simple.

Note [Chains]
    A broadcast or a reduce sends everything the same way round a ring (src/device/broadcast.h, reduce.h).
    Under Simple a chunk is one slot of the buffer, 512 KiB, however small the message (BROADCAST_CHUNKSTEPS
    and BROADCAST_SLICESTEPS are 1, src/include/collectives.h; calcCollChunking cuts no chunk of a ring), and
    a rank passes it on when it has all of it: 8 MiB in 16 channels are one chunk each, which crosses 7 hops
    one after the other.  Under LL and LL128 threads forward line by line and only a proxy, between nodes,
    waits for a chunk.  Ranks never send at the same moment, so nothing has to drift apart (no warm-up, as of
    a send/recv), and the first rank never waits for its neighbour (no idle steps).
    Calls that follow each other overlap: the first rank is done when it has sent, and begins with the next
    call while the others still pass on the last.  So a loop of calls, as nccl-tests runs it, pays hops and
    filling once, and what it reports per call is nearly the bandwidth's time.  ``between_ps`` of a chain's
    plan is what a following call hides (:mod:`simcore.apps.measured.nccl_loop`).

The constants stand in ``hardware_profiles/nccl/<generation>.toml``; ``scripts/calibrate.py GENERATION --nccl
CSV`` fits them over all healthy rows of a generation at once.  docs/validation-nccl.md says which rows those
are, what error is left, and what it is on a source that the fit has not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from simcore.collectives.protocols import PROTOCOLS
from simcore.records import dataclass
from simcore.tables import Positive, PositiveShare, Sourced, keys_of, load_named, read


@dataclass(frozen=True)
class ProtocolTiming:
    """One protocol on one GPU generation.

    ``base_s``: kernel start until the first data moves.  ``nvlink_hop_s``: one hop within a node, wire
    included.  ``network_hop_s``: one hop between nodes beyond the wire's latency: proxy thread, NIC
    doorbell, flag polling.  ``channel_bytes_per_s``: data that one channel's copy loop sustains.
    ``tail_step``, ``scatter_tail_step``: what a ring's first and last step leave the wire idle, in sending
    steps; the latter of a reduce_scatter.
    """

    base_s: float
    nvlink_hop_s: float
    network_hop_s: float
    channel_bytes_per_s: Positive
    tail_step: float
    scatter_tail_step: float


@dataclass(frozen=True)
class GenerationTiming:
    """All protocols of one GPU generation, and what its algorithms add.

    ``block_skew_s``: how much later than one alone the last of many thread blocks starts; of c blocks that
    start evenly spread, the last one is late by (c-1)/(c+1) of it.
    ``tree_efficiency``: what a tree that sends up and down at once keeps of the rate.
    ``tree_ll128_share``: what a channel's copy loop sustains under LL128 in a tree, where its threads are
    split between sums on their way up and results on their way down, of what it does in a ring.
    ``p2p_ll_base_s``, ``p2p_simple_base_s``: start of a send/recv or all_to_all kernel; ``peer_s``: each
    further peer that it serves.  ``own_copy_step``: an all_to_all's copy to itself, as a share of a message.
    ``all_to_all_efficiency``: what is left when unsynchronised peers collide.
    ``warm_up_s``, ``warm_up_bytes``: see the note above; bytes that an average rank sends.
    ``nvls_*``: start, share of an NVLink port that in-switch reads and multicast reach, rate of one channel
    in bytes of ring progress, warm-up; zero where the switch cannot add.
    """

    protocols: Mapping[str, ProtocolTiming]
    block_skew_s: float
    tree_efficiency: PositiveShare
    tree_ll128_share: PositiveShare
    p2p_ll_base_s: float
    p2p_simple_base_s: float
    peer_s: float
    own_copy_step: float
    all_to_all_efficiency: PositiveShare
    warm_up_s: float
    warm_up_bytes: Positive
    nvls_base_s: float
    nvls_efficiency: PositiveShare
    nvls_channel_bytes_per_s: float
    nvls_warm_up_s: float


_SCHEMA: Final = {
    "protocol": {name: Sourced(ProtocolTiming) for name in PROTOCOLS},
    "collectives": Sourced({k: rule for k, rule in keys_of(GenerationTiming).items() if k != "protocols"}),
}


@cache
def timing_of(generation: str) -> GenerationTiming:
    """Timing of a GPU generation.

    Errors: InputError with the nearest name for one that nothing is known about, and as
    :func:`parse_timing`.
    """
    return _timing(load_named(_SCHEMA, "nccl", generation, "no NCCL timing for GPU generation"))


def parse_timing(text: str, where: str) -> GenerationTiming:
    """Timing from the text of a profile; ``where`` names it in messages.

    Tables ``[protocol.LL]``, ``[protocol.LL128]``, ``[protocol.Simple]`` and ``[collectives]``, each with a
    ``source``; seconds, bytes, bytes/s and shares of 1 as their keys say.  Errors: InputError as
    :func:`simcore.tables.read`.
    """
    return _timing(read(_SCHEMA, text, where))


def _timing(table: Mapping[str, Any]) -> GenerationTiming:
    return GenerationTiming(protocols=table["protocol"], **table["collectives"])
