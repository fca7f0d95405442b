"""A program on a topology as text for ``driver.cc``, with the packet network's own assumptions.

Our links are directed and have no ends; ns-3 wants nodes.  Where one link follows another on some route,
they meet at a switch, so the nodes follow from the routes.
"""

from __future__ import annotations

from itertools import pairwise

from simcore.hardware.topology import Topology
from simcore.network.packet import PacketSettings, Program
from simcore.units import ps_from_s


def describe(topology: Topology, program: Program, settings: PacketSettings) -> str:
    """Statements as ``driver.cc`` reads them; segments are packets (``settings.packet_bytes``)."""
    joints = _Joints()
    for lane in program.lanes:
        _, src, dst = lane.ends
        for way, first, last in ((lane.route, src, dst), (topology.route(dst, src), dst, src)):
            joints.join(("gpu", first), ("tail", way[0]))
            joints.join(("gpu", last), ("head", way[-1]))
            for before, after in pairwise(way):
                joints.join(("head", before), ("tail", after))
    lines = [
        f"set payload_bytes {settings.packet_bytes}",
        f"set header_bytes {settings.header_bytes}",
        f"set overhead_ns {settings.send_overhead_ps // 1000}",
        f"set ack_bytes {settings.ack_bytes}",
        f"set queue_pair_per_message {int(settings.pair_per_message)}",
    ]
    links = topology.links
    wired: set[tuple[int, int]] = set()
    lanes: list[str] = []
    for lane in program.lanes:
        _, src, dst = lane.ends
        for link in (*lane.route, *topology.route(dst, src)):
            ends = joints.node(("tail", link)), joints.node(("head", link))
            if ends not in wired:
                wired.update((ends, ends[::-1]))
                rate, latency = float(links.bytes_per_s[link]), ps_from_s(float(links.latency_s[link]))
                lines.append(f"link {ends[0]} {ends[1]} {rate:.1f} {latency}")
        nodes = [joints.node(("tail", link)) for link in lane.route]
        over = " ".join(map(str, (*nodes, joints.node(("head", lane.route[-1])))))
        lanes.append(f"lane {lane.window} {over}")
        lanes += [f"send {send.num_bytes} {send.after} {send.after_count} {send.key}" for send in lane.sends]
    return "\n".join((*lines, *lanes, ""))


class _Joints:
    """Ends of links that are the same node (union-find)."""

    def __init__(self) -> None:
        self._above: dict[tuple[str, int], tuple[str, int]] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def join(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        self._above[self._top(one)] = self._top(other)

    def node(self, end: tuple[str, int]) -> int:
        """Number of the node at this end, from 0 in the order of asking."""
        return self._numbers.setdefault(self._top(end), len(self._numbers))

    def _top(self, end: tuple[str, int]) -> tuple[str, int]:
        while (above := self._above.setdefault(end, end)) != end:
            end = above
        return end
