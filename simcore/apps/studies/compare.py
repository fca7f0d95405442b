"""Each case on the fluid and on the packet network, why they differ, and what larger segments cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from simcore.apps.studies.cases import PlanSequence, TrafficCase, traffic_cases
from simcore.apps.studies.explain import EXPLAIN_ABOVE_PERCENT, explanation
from simcore.apps.studies.wire import wire_plan
from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.network.flow import Flow, Network
from simcore.network.fluid import fluid_network
from simcore.network.packet import PacketNetwork, PacketSettings, program_of
from simcore.records import dataclass
from simcore.units import MIB, PS_PER_US

#: A message is at least so many segments, unless they are the smallest there are.
_SEGMENTS: Final = 4
#: Hops of segments that a collective may cost, the finest last; the study runs with the default.
_BUDGETS: Final = (50_000, 200_000, 800_000)
_CONVERGING: Final = (
    "all_reduce ring 64 MiB x8 nvswitch",
    "all_reduce ring 64 MiB x32 rail",
    "all_to_all pairwise 64 MiB x32 oversubscribed",
    "collide all_to_all 16 MiB",
    "sends under all_reduce whole node 16 MiB",
)


@dataclass(frozen=True)
class CaseResult:
    """One job of one case on both networks; ``percent`` is fluid against packet, signed."""

    name: str
    collective: str
    num_bytes: int
    ranks: int
    topology: str
    fluid_us: float
    packet_us: float
    explanation: str | None = None

    @property
    def percent(self) -> float:
        """100 (fluid - packet) / packet."""
        return 100.0 * (self.fluid_us / self.packet_us - 1.0)

    def as_dict(self) -> dict[str, object]:
        """The case as ``--json`` prints it."""
        row: dict[str, object] = {
            "name": self.name,
            "collective": self.collective,
            "bytes": self.num_bytes,
            "ranks": self.ranks,
            "topology": self.topology,
            "fluid_us": self.fluid_us,
            "packet_us": self.packet_us,
            "percent": self.percent,
        }
        if self.explanation is not None:
            row["explanation"] = self.explanation
        return row


@dataclass(frozen=True)
class NetworkComparison:
    """All cases, and the processor time that each network took for them."""

    cases: tuple[CaseResult, ...]
    fluid_cpu_s: float
    packet_cpu_s: float
    packet_events: int

    @property
    def speedup(self) -> float:
        """Processor time of packets over that of fluid."""
        return self.packet_cpu_s / max(self.fluid_cpu_s, 1e-9)

    def percents(self, from_bytes: int = 0) -> list[float]:
        """Absolute differences of the cases from ``from_bytes`` up, in percent."""
        return [abs(case.percent) for case in self.cases if case.num_bytes >= from_bytes]

    def by_topology(self, from_bytes: int = 0) -> dict[str, dict[str, float]]:
        """Number, mean and worst of the absolute differences of each topology."""
        found: dict[str, list[float]] = {}
        for case in self.cases:
            if case.num_bytes >= from_bytes:
                found.setdefault(case.topology, []).append(abs(case.percent))
        return {
            name: {"n": len(values), "mean_percent": sum(values) / len(values), "worst_percent": max(values)}
            for name, values in found.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """The object that ``--json`` prints; the mean and worst are of the cases from 1 MiB up."""
        large, everything = self.percents(MIB), self.percents()
        return {
            "mean_percent": sum(large) / max(1, len(large)),
            "worst_percent": max(large, default=0.0),
            "mean_percent_all_sizes": sum(everything) / max(1, len(everything)),
            "worst_percent_all_sizes": max(everything, default=0.0),
            "above_5_percent": sum(percent > EXPLAIN_ABOVE_PERCENT for percent in large),
            "by_topology": self.by_topology(MIB),
            "speedup": self.speedup,
            "fluid_cpu_s": self.fluid_cpu_s,
            "packet_cpu_s": self.packet_cpu_s,
            "packet_events": self.packet_events,
            "cases": [case.as_dict() for case in self.cases],
        }


def compare(
    chosen: Iterable[TrafficCase],
    settings: PacketSettings | None = None,
    progress: Callable[[CaseResult], None] | None = None,
) -> NetworkComparison:
    """Run every case on both networks.  InputError as the networks raise it."""
    cases: list[CaseResult] = []
    fluid_cpu = packet_cpu = 0.0
    events = 0
    for traffic in chosen:
        began = time.process_time()
        fluid, _ = run_fluid(traffic)
        split = time.process_time()
        packet, packet_events = run_packet(traffic, settings)
        packet_cpu += time.process_time() - split
        fluid_cpu += split - began
        events += packet_events
        for number, job in enumerate(traffic.jobs):
            if job.reported:
                case = _case(traffic, job, fluid[number], packet[number])
                cases.append(case)
                if progress is not None:
                    progress(case)
    return NetworkComparison(tuple(cases), fluid_cpu, packet_cpu, events)


def run_fluid(traffic: TrafficCase) -> tuple[list[int], int]:
    """(duration of each job in ps, events) on the fluid network, wires only."""
    topology = traffic.topology
    clock = Clock()
    network = fluid_network(clock, topology)
    known: dict[CollectivePlan, CollectivePlan] = {}

    def on_wires(plan: CollectivePlan) -> CollectivePlan:
        if plan not in known:
            known[plan] = wire_plan(topology, plan)
        return known[plan]

    jobs = [replace(job, plans=tuple(on_wires(plan) for plan in job.plans)) for job in traffic.jobs]
    return _run(clock, network, jobs)


def run_packet(traffic: TrafficCase, settings: PacketSettings | None = None) -> tuple[list[int], int]:
    """(duration of each job in ps, events) on the packet network, all jobs with the same segments."""
    clock = Clock()
    settings = settings or PacketSettings()
    settings = replace(settings, segment_bytes=segment_bytes(traffic, settings), max_segments=sys.maxsize)
    return _run(clock, PacketNetwork(clock, traffic.topology, settings), traffic.jobs)


def segment_bytes(traffic: TrafficCase, settings: PacketSettings) -> int:
    """Segment with which the largest job of the case stays within ``settings.max_segments``."""
    largest = 0
    for plan in {plan for job in traffic.jobs for plan in job.plans}:
        program = program_of(traffic.topology, plan, settings.slices)
        segment = settings.segment_for(sum(program.link_bytes.values()))
        # Whole messages would follow one another where segments take turns.
        message = max((send.num_bytes for lane in program.lanes for send in lane.sends[:1]), default=0)
        largest = max(largest, min(segment, max(settings.segment_bytes, -(-message // _SEGMENTS))))
    return largest


def _run(clock: Clock, network: Network, jobs: Iterable[PlanSequence]) -> tuple[list[int], int]:
    players = [_Player(clock, network, job) for job in jobs]
    events = clock.drain()
    return [player.end_ps - player.start_ps for player in players], events


class _Player:
    """Starts a job's plans one after another."""

    def __init__(self, clock: Clock, network: Network, job: PlanSequence) -> None:
        self.start_ps = self.end_ps = job.start_ps
        self._clock, self._network = clock, network
        self._plans = iter(job.plans)
        clock.timeout(job.start_ps).callbacks.append(self._next)

    def _next(self, _: object) -> None:
        self.end_ps = self._clock.now
        plan = next(self._plans, None)
        if plan is not None:
            flow = Flow(self._clock, plan, ())
            flow.callbacks.append(self._next)
            self._network.start(flow)


def _case(traffic: TrafficCase, job: PlanSequence, fluid_ps: int, packet_ps: int) -> CaseResult:
    plan = job.plans[0]
    name = traffic.name if len(traffic.jobs) == 1 else f"{traffic.name}: {job.name}"
    case = CaseResult(
        name=name,
        collective=plan.collective,
        num_bytes=plan.num_bytes,
        ranks=len(plan.ranks),
        topology=traffic.topology_name,
        fluid_us=fluid_ps / PS_PER_US,
        packet_us=packet_ps / PS_PER_US,
    )
    if abs(case.percent) <= EXPLAIN_ABOVE_PERCENT:
        return case
    return replace(case, explanation=explanation(traffic, job, fluid_ps, packet_ps))


@dataclass(frozen=True)
class Convergence:
    """One case with segments of ``segment_bytes``; ``percent`` against the finest segments."""

    name: str
    segment_bytes: int
    packet_us: float
    percent: float


def check_convergence(quick: bool = False) -> Iterator[Convergence]:
    """Every chosen case with every budget; ``quick``: the first case only."""
    wanted = _CONVERGING[:1] if quick else _CONVERGING
    for traffic in traffic_cases():
        if traffic.name in wanted:
            yield from _converge(traffic)


def _converge(traffic: TrafficCase) -> Iterator[Convergence]:
    longest = []
    for budget in _BUDGETS:
        durations, _ = run_packet(traffic, PacketSettings(max_segments=budget))
        longest.append(max(durations))
    for budget, duration in zip(_BUDGETS, longest, strict=True):
        segment = segment_bytes(traffic, PacketSettings(max_segments=budget))
        percent = 100.0 * (duration / longest[-1] - 1.0)
        yield Convergence(traffic.name, segment, duration / PS_PER_US, percent)
