"""The packet network: collectives as segments that queue at ports, the reference of the fidelity ladder.

Under :attr:`PacketSettings.software` a flow also spends what its plan has beyond wires, see
:mod:`simcore.network.packet.software`.

Note [HBM]
    While its data moves, a flow draws from its members' HBM what it would at the rate that it has alone,
    since packets have no rate; a member whose HBM is short slows the flow's connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.errors import InputError
from simcore.hardware.topology import Topology
from simcore.network.packet.lanes import Lane, MessageProgram
from simcore.network.packet.program import program_of
from simcore.network.packet.settings import TRANSPORTS, PacketSettings
from simcore.network.packet.software import Software, with_wires_alone
from simcore.network.packet.wiring import Channel, Wiring

if TYPE_CHECKING:
    from simcore.network.flow import Endpoint, Flow
    from simcore.network.packet.port import Port


class PacketNetwork:
    """Carries flows as packets; :class:`simcore.network.Network` of the finest grain.

    Errors: InputError for a link without bandwidth on a route, and for an algorithm that it has no messages
    of.
    """

    def __init__(self, clock: Clock, topology: Topology, settings: PacketSettings | None = None) -> None:
        settings = settings or PacketSettings()
        self.settings = replace(settings, transport=settings.transport or _transport_of(topology))
        self._clock = clock
        self._topology = with_wires_alone(topology) if self.settings.software else topology
        self._wiring = Wiring(clock, self._topology, self.settings)
        self._works: dict[CollectivePlan, _Work] = {}
        self._runs: dict[Flow, _FlowRun] = {}
        self._segment_bytes: int | None = None

    @property
    def ports(self) -> dict[tuple[int, int], Port]:
        """Ports used so far by (link index, cable)."""
        return self._wiring.ports

    def link_bytes(self) -> dict[int, int]:
        """Wire bytes that have crossed each link."""
        total: dict[int, int] = {}
        for (link, _), port in self.ports.items():
            total[link] = total.get(link, 0) + port.sent_bytes
        return total

    def program(self, plan: CollectivePlan) -> MessageProgram:
        """The messages of ``plan``."""
        return self._work(plan).program

    def carry_as(self, plan: CollectivePlan, program: MessageProgram) -> None:
        """Have ``plan`` carried out as the messages of ``program`` instead of NCCL's."""
        self._works[plan] = _Work(self._topology, plan, self.settings, program)

    def fit(self, plans: Iterable[tuple[CollectivePlan, float]], max_hops: int, most_bytes: int) -> float:
        """Choose one size of segments for a whole job, and say about how many events that costs.

        ``plans``: each with how often it is carried out.  Segments stay at ``segment_bytes`` while those of
        the job cross at most ``max_hops`` links, and grow to ``most_bytes`` at most; ports take turns by
        segment, so all flows must have the same.
        """
        moved = messages = 0.0
        for plan, times in plans:
            program = self.program(plan)
            moved += times * sum(program.link_bytes.values())
            messages += times * program.message_hops
        finest = self.settings.segment_bytes
        self._segment_bytes = max(finest, min(most_bytes, round(moved / max_hops)))
        # A message costs its last segment on each link and its arrival, whatever its size.
        return moved / self._segment_bytes + 1.5 * messages

    def remarks(self) -> tuple[str, ...]:
        """What a job's record must say: how coarse its segments were."""
        used = self._segment_bytes
        if used is None or used == self.settings.segment_bytes:
            return ()
        return (
            f"packets: segments of {used:,} bytes instead of {self.settings.segment_bytes:,}, to save events",
        )

    def start(self, flow: Flow) -> None:
        """Let the plan's first messages leave now, or when its software is ready."""
        now = self._clock.now
        plan = flow.plan
        if not plan.links or not plan.volume_bytes > 0.0:
            flow.then = _fire  # nothing on wires: over after its time alone
            flow.set(now + plan.alone_ps if self.settings.software else now)
            return
        before_ps = self._work(plan).before_ps
        if before_ps:
            flow.then = self._begin  # when its software is ready
            flow.set(now + before_ps)
        else:
            self._begin(flow)

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        """See :class:`simcore.network.flow.Network`."""
        if cap is None:
            flow.hbm_caps.pop(member, None)
        else:
            flow.hbm_caps[member] = cap
        work = self._work(flow.plan)
        rate = min(work.rate, *flow.hbm_caps.values(), work.rate)
        if rate != flow.rate:
            flow.rate = rate
            work.limit(rate)
            self._draw(flow)

    def finish(self, flow: Flow) -> None:
        """The last message of the flow has arrived."""
        del self._runs[flow]
        for member in flow.members:
            member.draw_ended(flow)
        flow.fire()
        for member in flow.members:
            member.refresh()

    def _begin(self, flow: Flow) -> None:
        work = self._work(flow.plan)
        work.connect(self._wiring, self._segment_for(work.program))
        flow.rate = flow.desired = work.rate
        work.limit(work.rate)
        self._draw(flow)
        run = self._runs[flow] = _FlowRun(self, flow, work)
        run.begin()

    def _draw(self, flow: Flow) -> None:
        hbm = flow.plan.hbm_bytes_per_byte
        for member in flow.members:
            member.draw_changed(flow, flow.rate * hbm, flow.desired * hbm)

    def _segment_for(self, program: MessageProgram) -> int:
        if self._segment_bytes is not None:
            return self._segment_bytes
        return self.settings.segment_for(sum(program.link_bytes.values()))

    def _work(self, plan: CollectivePlan) -> _Work:
        work = self._works.get(plan)
        if work is None:
            work = self._works[plan] = _Work(self._topology, plan, self.settings)
        return work


def _fire(flow: Flow) -> None:
    flow.fire()


def _transport_of(topology: Topology) -> str:
    """The cluster's transport.  InputError for one whose ports nobody described."""
    transport = topology.cluster.transport
    if transport not in TRANSPORTS:
        raise InputError(
            f"packets know the ports of {' and '.join(TRANSPORTS)}, not of {transport!r} (cluster"
            f" {topology.cluster.name!r}): use the fluid network, or say network.transport"
        )
    return transport


class _Work:
    """What is known of a plan: its messages and the connections that carry them.

    ``rate`` is plan progress in bytes/ps when nobody else is there, ``before_ps`` what passes before the
    first message.
    """

    def __init__(
        self,
        topology: Topology,
        plan: CollectivePlan,
        settings: PacketSettings,
        program: MessageProgram | None = None,
    ) -> None:
        self.plan = plan  # kept alive: works are found by its id
        self.program = program or program_of(topology, plan, settings.slices)
        self.channels: list[Channel] = []
        software = Software(topology, plan, self.program)
        self.rate = software.rate
        self.before_ps = software.before_ps if settings.software else 0
        self._is_limited = software.is_limited and settings.software
        self._stretch = software.stretch if settings.software else 1.0

    def connect(self, wiring: Wiring, segment_bytes: int) -> None:
        """Have connections; a plan's stay from one time to the next, as NCCL's queue pairs do."""
        if not self.channels:
            pairs = self.program.queue_pairs
            self.channels = [
                wiring.channel(lane, segment_bytes, pairs, self._stretch) for lane in self.program.lanes
            ]

    def limit(self, rate: float) -> None:
        """Let the plan progress at ``rate`` bytes/ps at most."""
        free = rate >= self.rate and not self._is_limited
        for channel, lane in zip(self.channels, self.program.lanes, strict=True):
            # Of a few bytes among many some get none; their messages still are one byte.
            share = max(lane.num_bytes, len(lane.sends)) / self.plan.volume_bytes
            wire = share * lane.wire_overhead * self._stretch
            channel.limit(None if free else rate * wire)


class _FlowRun:
    """One program being carried out."""

    def __init__(self, network: PacketNetwork, flow: Flow, work: _Work) -> None:
        self._network = network
        self._flow = flow
        self._arrived: dict[int, int] = {}
        self._waiting: dict[int, list[_Sender]] = {}
        self._left = work.program.num_messages
        lanes = zip(work.program.lanes, work.channels, strict=True)
        self._senders = [_Sender(self, lane, channel) for lane, channel in lanes]

    def begin(self) -> None:
        """Send what depends on nothing."""
        for sender in self._senders:
            sender.go_on()

    def has(self, key: int, count: int, sender: _Sender) -> bool:
        """Whether ``count`` messages have arrived under ``key``; if not, ``sender`` hears of the next."""
        if self._arrived.get(key, 0) >= count:
            return True
        self._waiting.setdefault(key, []).append(sender)
        return False

    def landed(self, sender: _Sender, key: int) -> None:
        """A message of ``sender`` has arrived."""
        self._arrived[key] = self._arrived.get(key, 0) + 1
        self._left -= 1
        for waiting in self._waiting.pop(key, ()):
            waiting.waits = False
            waiting.go_on()
        sender.in_flight -= 1
        sender.go_on()
        if not self._left:
            self._network.finish(self._flow)


class _Sender:
    """A lane at work: sends as far as data and the receiver's slots allow."""

    __slots__ = ("_channel", "_position", "_run", "_sends", "_window", "in_flight", "waits")

    def __init__(self, run: _FlowRun, lane: Lane, channel: Channel) -> None:
        self._run = run
        self._channel = channel
        self._sends = lane.sends
        self._window = lane.window
        self._position = 0
        self.in_flight = 0
        self.waits = False

    def go_on(self) -> None:
        """Send whatever may leave now."""
        while not self.waits and self.in_flight < self._window and self._position < len(self._sends):
            send = self._sends[self._position]
            if send.after_count and not self._run.has(send.after, send.after_count, self):
                self.waits = True
                return
            self._position += 1
            self.in_flight += 1
            self._channel.send(send.num_bytes, partial(self._run.landed, self, send.key))
