"""What larger segments cost: the same case with ever finer segments, down to the finest affordable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from simcore.apps.studies.cases import Scenario, scenarios
from simcore.apps.studies.compare import run_packet, segment_bytes
from simcore.network.packet import PacketSettings
from simcore.units import PS_PER_US

#: Hops of segments that a collective may cost, the finest last; the study runs with the default.
_BUDGETS: Final = (50_000, 200_000, 800_000)
_NAMES: Final = (
    "all_reduce ring 64 MiB x8 nvswitch",
    "all_reduce ring 64 MiB x32 rail",
    "all_to_all pairwise 64 MiB x32 oversubscribed",
    "collide all_to_all 16 MiB",
    "sends under all_reduce whole node 16 MiB",
)


@dataclass(frozen=True)
class Convergence:
    """One case with segments of ``segment_bytes``; ``percent`` against the finest segments."""

    name: str
    segment_bytes: int
    packet_us: float
    percent: float

    def as_dict(self) -> dict[str, object]:
        """The row as ``--json`` prints it."""
        return {
            "name": self.name,
            "segment_bytes": self.segment_bytes,
            "packet_us": self.packet_us,
            "percent": self.percent,
        }


def check_convergence(quick: bool = False) -> Iterator[Convergence]:
    """Every chosen case with every budget; ``quick``: the first case only."""
    wanted = _NAMES[:1] if quick else _NAMES
    for scenario in scenarios():
        if scenario.name in wanted:
            yield from _converge(scenario)


def _converge(scenario: Scenario) -> Iterator[Convergence]:
    longest = []
    for budget in _BUDGETS:
        durations, _ = run_packet(scenario, PacketSettings(max_segments=budget))
        longest.append(max(durations))
    for budget, duration in zip(_BUDGETS, longest, strict=True):
        segment = segment_bytes(scenario, PacketSettings(max_segments=budget))
        percent = 100.0 * (duration / longest[-1] - 1.0)
        yield Convergence(scenario.name, segment, duration / PS_PER_US, percent)
