"""What the packet network assumes about wires, switches and senders."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Final

from simcore.errors import InputError, nearest
from simcore.network.packet.roce import RoceSettings
from simcore.records import dataclass
from simcore.units import KIB

#: Largest InfiniBand MTU, and the unit that a data-centre switch schedules (InfiniBand spec. 1.5, 4.2.4).
_MTU_BYTES: Final = 4 * KIB
TRANSPORTS: Final = ("infiniband", "roce")
ROUTINGS: Final = ("spread", "ecmp")


@dataclass(frozen=True)
class PacketSettings:
    """Assumptions of the packet network.

    ``segment_bytes``: payload that ports schedule as one unit.  ``max_segments``: hops of segments that one
    collective may cost; beyond, its segments grow.  Ports take turns by segment, so jobs that share links
    must have segments of one size to share fairly.  ``header_bytes``: what headers add on the wire to each
    ``packet_bytes`` of payload.  ``cut_through``: a switch passes a segment on while it still arrives, where
    the next link is not faster.  ``buffer_bytes``: room at the far end of each cable into a switch, beyond
    what the wire holds; at least four segments.  ``slices``: messages per chunk, None for NCCL's number.
    ``send_overhead_ps``: from the moment a message may leave to its first byte on the wire (proxy thread,
    doorbell).  ``ack_bytes``: a message counts as delivered once an acknowledgement of this size is back at
    its sender; 0: once its last byte has arrived.  ``pair_per_message``: each message has a queue pair of its
    own, and a source serves queue pairs in the order in which they were made, again and again.
    ``transport`` between nodes: "infiniband" (credits, input ports take turns) or "roce" (pause frames, one
    queue per output, DCQCN, as ``roce`` says), None: the cluster's; NVLink always has credits.
    ``routing`` over the cables between two switches: "spread" (adaptive routing: a link of n cables is one of
    n times the rate), "ecmp" (a connection stays on the cable that a hash with ``seed`` picks); None: the
    default of NCCL's NCCL_IB_ADAPTIVE_ROUTING, which is spread on InfiniBand and ecmp on RoCE.
    ``max_events``: what a whole job may cost before it is refused.
    ``software``: also spend what a plan has beyond wires (kernel start, flags, channels' copy rate).

    Errors: InputError for a number that is not positive (headers, overhead, acknowledgements: negative), an
    unknown name.
    """

    segment_bytes: int = _MTU_BYTES
    packet_bytes: int = _MTU_BYTES
    header_bytes: int = 0
    max_segments: int = 200_000
    cut_through: bool = True
    buffer_bytes: int = 256 * KIB
    slices: int | None = None
    send_overhead_ps: int = 0
    ack_bytes: int = 0
    pair_per_message: bool = False
    transport: str | None = None
    routing: str | None = None
    roce: RoceSettings = field(default_factory=RoceSettings)
    seed: int = 0
    max_events: int = 50_000_000
    software: bool = False

    def __post_init__(self) -> None:
        for name in ("segment_bytes", "packet_bytes", "max_segments", "buffer_bytes", "slices", "max_events"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise InputError(f"packet network: {name} must be at least 1, not {value}")
        for name in ("header_bytes", "send_overhead_ps", "ack_bytes"):
            if not getattr(self, name) >= 0:
                raise InputError(f"packet network: {name} must not be negative, not {getattr(self, name)}")

        for name, known in (("transport", TRANSPORTS), ("routing", ROUTINGS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InputError(f"packet network: {name} cannot be {value!r}{nearest(str(value), known)}")

    @property
    def hashes_paths(self) -> bool:
        """Whether connections stay on one of several cables."""
        if self.routing is None:
            return self.transport == "roce"
        return self.routing == "ecmp"

    @property
    def wire_overhead(self) -> float:
        """Wire bytes per byte of payload (>= 1)."""
        return 1.0 + self.header_bytes / self.packet_bytes

    def segment_for(self, link_bytes: int) -> int:
        """Segment of a collective whose bytes on all links add up to ``link_bytes``."""
        return max(self.segment_bytes, math.ceil(link_bytes / self.max_segments))
