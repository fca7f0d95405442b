"""What the packet network assumes about wires, switches and senders."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError
from simcore.units import KIB

#: Largest InfiniBand MTU, and the unit that a data-centre switch schedules (InfiniBand spec. 1.5, 4.2.4).
_MTU_BYTES: Final = 4 * KIB


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
    doorbell).

    Errors: InputError for a number that is not positive (headers and overhead: negative).
    """

    segment_bytes: int = _MTU_BYTES
    packet_bytes: int = _MTU_BYTES
    header_bytes: int = 0
    max_segments: int = 200_000
    cut_through: bool = True
    buffer_bytes: int = 256 * KIB
    slices: int | None = None
    send_overhead_ps: int = 0

    def __post_init__(self) -> None:
        for name in ("segment_bytes", "packet_bytes", "max_segments", "buffer_bytes", "slices"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise InputError(f"packet network: {name} must be at least 1, not {value}")
        for name in ("header_bytes", "send_overhead_ps"):
            if not getattr(self, name) >= 0:
                raise InputError(f"packet network: {name} must not be negative, not {getattr(self, name)}")

    @property
    def wire_overhead(self) -> float:
        """Wire bytes per byte of payload (>= 1)."""
        return 1.0 + self.header_bytes / self.packet_bytes

    def segment_for(self, link_bytes: int) -> int:
        """Segment of a collective whose bytes on all links add up to ``link_bytes``."""
        return max(self.segment_bytes, math.ceil(link_bytes / self.max_segments))
