"""NCCL's three wire protocols: what a data byte costs on the wire, and how data is cut into chunks.

Facts are NCCL's (src/include/device.h, src/init.cc and src/enqueue.cc of 2.2x):

* LL stores 4 B of data beside a 4 B flag, so the receiver polls data itself: lowest latency, half the wire.
* LL128 stores 120 B of data beside 8 B of flag in a 128 B line that NVLink and GPUDirect deliver whole.
* Simple moves raw data and signals each slice through a counter: full bandwidth, highest latency.
"""

from __future__ import annotations

from typing import Final

from simcore.collectives.kinds import Collective
from simcore.errors import InputError, nearest
from simcore.records import dataclass
from simcore.units import KIB, MIB

#: Slots of a connection's buffer; a rank may run this many steps ahead of its receiver.
NCCL_STEPS: Final = 8

_LL_THREADS: Final = 512
_LL_LINES_PER_THREAD: Final = 8
_LL_LINE_BYTES: Final = 16
_LL128_THREADS: Final = 640
_LL128_ELEMENTS_PER_THREAD: Final = 120
_WORD_BYTES: Final = 8


@dataclass(frozen=True)
class Protocol:
    """One wire protocol.

    ``payload_bytes`` of every ``line_bytes`` on the wire are payload.  ``buffer_bytes`` is the buffer of one
    connection and channel, wire bytes.  ``max_threads`` of a thread block each want at least
    ``thread_threshold_bytes`` of the message before NCCL adds a channel.
    """

    name: str
    payload_bytes: int
    line_bytes: int
    buffer_bytes: int
    max_threads: int
    thread_threshold_bytes: int

    @property
    def wire_overhead(self) -> float:
        """Wire bytes per data byte (>= 1)."""
        return self.line_bytes / self.payload_bytes

    def step_bytes(self, buffer_bytes: int | None = None) -> int:
        """Data bytes in one buffer slot; ``buffer_bytes`` replaces Simple's buffer.

        NCCL_BUFFSIZE speaks of Simple alone (src/init.cc, computeBuffSizes).
        """
        wire = (buffer_bytes if buffer_bytes and self.name == "Simple" else self.buffer_bytes) // NCCL_STEPS
        return wire // self.line_bytes * self.payload_bytes


LL: Final = Protocol(
    "LL",
    payload_bytes=8,
    line_bytes=_LL_LINE_BYTES,
    buffer_bytes=_LL_LINES_PER_THREAD * _LL_THREADS * NCCL_STEPS * _LL_LINE_BYTES,  # 512 KiB
    max_threads=_LL_THREADS,
    thread_threshold_bytes=8,
)
LL128: Final = Protocol(
    "LL128",
    payload_bytes=120,
    line_bytes=128,
    buffer_bytes=_LL128_ELEMENTS_PER_THREAD * _LL128_THREADS * NCCL_STEPS * _WORD_BYTES,  # 4.69 MiB
    max_threads=_LL128_THREADS,
    thread_threshold_bytes=8,
)
SIMPLE: Final = Protocol(
    "Simple", payload_bytes=1, line_bytes=1, buffer_bytes=4 * MIB, max_threads=512, thread_threshold_bytes=64
)

#: By NCCL_PROTO's spelling, in NCCL's order.
PROTOCOLS: Final[dict[str, Protocol]] = {p.name: p for p in (LL, LL128, SIMPLE)}


def protocol_named(name: str) -> Protocol:
    """The protocol called ``name`` (any case).  InputError with the nearest name otherwise."""
    for known, protocol in PROTOCOLS.items():
        if known.lower() == name.lower():
            return protocol
    raise InputError(f"unknown NCCL protocol {name!r}{nearest(name, PROTOCOLS)}")


@dataclass(frozen=True)
class Chunking:
    """How one channel's share is cut: ``num_loops`` rounds of chunks, each sent as ``slices`` slices.

    ``chunk_bytes`` is data (no flags).  ``num_chunks`` counts the chunks that one channel handles.
    """

    chunk_bytes: int
    num_loops: int
    num_chunks: int
    slices: int


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


#: A tree halves its chunks until there are enough of them to fill its depth: (chunks per level, floor).
#: Up to release 2.19: the planner of 2.20 leaves a tree under Simple whole slots (src/enqueue.cc of v2.19.3
#: has these three loops in computeColl, that of v2.20.3 has none in calcCollChunking).
_TREE_SIMPLE_FLOORS: Final = ((8, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB))
_TREE_SIMPLE_WHOLE_FROM: Final = (2, 20)


def ring_chunking(
    kind: Collective,
    protocol: Protocol,
    num_bytes: int,
    num_ranks: int,
    channels: int,
    buffer_bytes: int | None = None,
) -> Chunking:
    """Chunks of a ring, per channel (src/enqueue.cc, calcCollChunking).

    A ring handles one chunk per rank and loop, a chain to or from a root one per loop.  A last, smaller loop
    spreads evenly: chunks shrink rather than go missing.
    """
    chunk_slots, slice_slots = (1, 1)
    if protocol is SIMPLE:
        chunk_slots, slice_slots = kind.chunk_slots, kind.slice_slots
    per_loop = 1 if kind.root_chain else num_ranks
    limit = protocol.step_bytes(buffer_bytes) * chunk_slots
    share = max(1, _ceil_div(num_bytes, channels))
    loops = max(1, _ceil_div(share, limit * per_loop))
    chunk = max(1, _ceil_div(share, loops * per_loop))
    return Chunking(chunk, loops, loops * per_loop, chunk_slots // slice_slots)


def tree_chunking(
    protocol: Protocol,
    num_bytes: int,
    num_ranks: int,
    num_nodes: int,
    channels: int,
    depth: int,
    buffer_bytes: int | None = None,
    release: tuple[int, int] = (2, 19),
) -> Chunking:
    """Chunks of a tree, per channel: small enough that every level of the tree has one to work on.

    ``depth`` counts the levels, within nodes and between them (src/enqueue.cc, calcCollChunking);
    ``release`` of NCCL: from 2.20 on chunks under Simple are never cut.
    """
    chunk = protocol.step_bytes(buffer_bytes)
    share = max(1, _ceil_div(num_bytes, channels))
    if protocol is SIMPLE:
        for per_level, floor in _TREE_SIMPLE_FLOORS if release < _TREE_SIMPLE_WHOLE_FROM else ():
            while share // chunk < depth * per_level and chunk > floor:
                chunk //= 2
    elif protocol is LL128:
        per_node = num_ranks / num_nodes
        steps = 1 + (num_nodes.bit_length() - 1) + 0.1 * per_node
        for factor, floor in ((64, 128 * KIB), (16, 32 * KIB)):
            while share // chunk < steps * factor / per_node and chunk > floor:
                chunk //= 2
    loops = max(1, _ceil_div(share, chunk))
    return Chunking(min(chunk, share), loops, loops, 1)


#: NVLS works through its buffers in pieces of this size per slice (src/init.cc), less for small messages:
#: (loops that the message must fill, smaller piece), for one node and for several (src/enqueue.cc).
_NVLS_CHUNK_BYTES: Final = 128 * KIB
_NVLS_FLOORS: Final = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
_NVLS_TREE_FLOORS: Final = ((4, 64 * KIB), (1, 32 * KIB))
_NVLS_TREE_MANY_NODES_CHUNK_BYTES: Final = 64 * KIB


def nvls_chunking(num_bytes: int, heads: int, channels: int, num_nodes: int) -> Chunking:
    """Chunks of a switch reduction, per channel, over ``heads`` slices (src/enqueue.cc, calcCollChunking)."""
    chunk = _NVLS_CHUNK_BYTES if num_nodes < 4 else _NVLS_TREE_MANY_NODES_CHUNK_BYTES
    for loops, smaller in _NVLS_FLOORS if num_nodes == 1 else _NVLS_TREE_FLOORS:
        if num_bytes < loops * channels * heads * chunk and chunk > smaller:
            chunk = smaller
    share = max(1, _ceil_div(num_bytes, channels * heads))
    loops = max(1, _ceil_div(share, chunk))
    return Chunking(min(chunk, share), loops, loops * heads, 1)


#: Largest piece of a send/recv that travels as one unit (src/init.cc: P2P_NET_CHUNKSIZE, P2P_NVL_CHUNKSIZE).
P2P_NETWORK_CHUNK_BYTES: Final = 128 * KIB
P2P_NVLINK_CHUNK_BYTES: Final = 512 * KIB
#: Messages up to this size use LL (src/enqueue.cc: NCCL_P2P_LL_THRESHOLD).
P2P_LL_THRESHOLD_BYTES: Final = 16 * KIB


def p2p_chunking(
    protocol: Protocol, num_bytes: int, channels: int, crosses_nodes: bool, buffer_bytes: int | None = None
) -> Chunking:
    """Chunks of one send/recv, per channel; never larger than a slot of the connection's buffer."""
    limit = P2P_NETWORK_CHUNK_BYTES if crosses_nodes else P2P_NVLINK_CHUNK_BYTES
    limit = min(limit, protocol.step_bytes(buffer_bytes))
    share = max(1, _ceil_div(num_bytes, channels))
    loops = _ceil_div(share, limit)
    return Chunking(min(share, limit), loops, loops, 1)
