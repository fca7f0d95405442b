"""Cases that the packet network and ns-3 carry out with one transport: no loss, no congestion control."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from simcore.apps.studies.ns3.runner import Ns3, describe
from simcore.apps.studies.references import carried_ps, leaf_spine, rails_case
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.planner import NcclPlanner
from simcore.files import whole_text
from simcore.hardware.load import load_cluster
from simcore.hardware.topology import Topology
from simcore.network.packet import Lane, MessageProgram, PacketSettings, Send, program_of
from simcore.records import dataclass
from simcore.units import MIB, PS_PER_US

#: What a real ns-3 said, with its version; written by :func:`record`.
RECORDED: Final = Path(__file__).with_name("recorded.json")
_SETTINGS: Final = PacketSettings(
    header_bytes=48, cut_through=False, buffer_bytes=64 * MIB, max_segments=100_000_000, routing="spread"
)


@dataclass(frozen=True)
class Ns3Case:
    """Messages on wires, for both."""

    name: str
    topology: Topology
    plan: CollectivePlan
    program: MessageProgram
    settings: PacketSettings

    def packet_us(self) -> float:
        """Time on the packet network."""
        return carried_ps(self.topology, self.plan, self.program, self.settings) / PS_PER_US

    def description(self) -> str:
        """The same for ns-3."""
        return describe(self.topology, self.program, self.settings)


@dataclass(frozen=True)
class Ns3Row:
    """One case; ``source``: the version of ns-3, and whether it ran now or is recorded."""

    name: str
    ns3_us: float
    packet_us: float
    source: str

    @property
    def percent(self) -> float:
        """100 (packets - ns-3) / ns-3."""
        return 100.0 * (self.packet_us / self.ns3_us - 1.0)

    def as_dict(self) -> dict[str, object]:
        """The row as ``--json`` prints it."""
        return {
            "name": self.name,
            "ns3_us": self.ns3_us,
            "packet_us": self.packet_us,
            "percent": self.percent,
            "source": self.source,
        }


def check_ns3(ns3: Ns3 | None) -> Iterator[Ns3Row]:
    """Every case on the packet network and on ``ns3``, or against what was recorded if None."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    for case in ns3_cases():
        if ns3 is None:
            us, source = float(recorded["cases"][case.name]), f"recorded, ns-3 {recorded['version']}"
        else:
            us, source = ns3.time_us(case.description()), f"ns-3 {ns3.version}"
        yield Ns3Row(case.name, us, case.packet_us(), source)


def record(ns3: Ns3) -> None:
    """Write what ``ns3`` says of every case to :data:`RECORDED`."""
    found = {
        "version": ns3.version,
        "command": "scripts/fidelity_study.py --ns3 --record",
        "unit": "us",
        "cases": {case.name: round(ns3.time_us(case.description()), 3) for case in ns3_cases()},
    }
    whole_text(RECORDED, json.dumps(found, indent=1) + "\n")


def ns3_cases() -> Iterator[Ns3Case]:
    """Point to point, incast, rings over a leaf-spine and in a node, and SimAI's transport on rails."""
    hosts = Topology(leaf_spine(16))
    planner = NcclPlanner(hosts, algorithm="ring", protocol="Simple")
    for dst, where in ((1, "one leaf"), (4, "two leaves")):
        plan = planner.plan_p2p(16 * MIB, 0, dst)
        yield _case(f"point to point 16 MiB, {where}", hosts, plan, program_of(hosts, plan))
    for senders, where in ((3, "one leaf"), (12, "four leaves")):
        plan = planner.plan_p2p(4 * MIB, 0, 1)
        yield _case(f"incast 4 MiB from {senders}, {where}", hosts, plan, _incast(hosts, senders, 4 * MIB))
    for mib in (1, 16):
        plan = planner.plan("all_reduce", mib * MIB, range(16))
        yield _case(f"ring all_reduce {mib} MiB x16, leaf-spine", hosts, plan, program_of(hosts, plan))
    node = Topology(replace(load_cluster("h800-96"), num_nodes=1))
    plan = NcclPlanner(node, algorithm="ring", protocol="Simple").plan("all_reduce", 16 * MIB, range(8))
    yield _case("ring all_reduce 16 MiB x8, NVSwitch", node, plan, program_of(node, plan))
    for ranks, mib in ((8, 64), (16, 4), (16, 64)):
        topology, plan, program, settings = rails_case(ranks, mib * MIB)
        yield Ns3Case(f"SimAI's transport {mib} MiB x{ranks}, rails", topology, plan, program, settings)


def _case(name: str, topology: Topology, plan: CollectivePlan, program: MessageProgram) -> Ns3Case:
    return Ns3Case(name, topology, plan, program, _SETTINGS)


def _incast(topology: Topology, senders: int, num_bytes: int) -> MessageProgram:
    """One message from each of GPUs 1 to ``senders`` to GPU 0, all at once."""
    lanes = [
        Lane(topology.route(src, 0), 1, (0, src, 0), sends=[Send(num_bytes, 0, 0, src)])
        for src in range(1, senders + 1)
    ]
    return MessageProgram(tuple(lanes))
