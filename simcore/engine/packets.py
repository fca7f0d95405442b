"""A job on the packet network: segments of one size for all its flows, and whether it can be afforded."""

from __future__ import annotations

from collections import Counter
from typing import Final

from simcore.collectives.plan import CollectivePlan
from simcore.engine.items import Call, Communication
from simcore.engine.rank import Rank
from simcore.errors import InputError
from simcore.network.packet import PacketNetwork
from simcore.units import KIB

#: Links that a job's segments may cross before segments grow, and what they grow to: an eighth of the slice
#: that NCCL's Simple passes on, so that pipelining stays what it is.
_MAX_HOPS: Final = 5_000_000
_MOST_BYTES: Final = 64 * KIB
#: Events per second of one core, for the message; measured on the fidelity study.
_EVENTS_PER_S: Final = 250_000


def fit_packets(network: PacketNetwork, ranks: list[Rank]) -> int:
    """Choose the size of segments for all that ``ranks`` will communicate; about how many events that costs.

    Errors: InputError with the estimate when that is more than :attr:`PacketSettings.max_events`; GraphError
    when a rank calls a group that it is not in.
    """
    times: Counter[CollectivePlan] = Counter()
    for rank in ranks:
        for call, number in _calls(rank).items():
            _, plan = rank.bound(call)
            times[plan] += number
    # Every member counts a flow once.
    flows = [(plan, number / max(1, len(plan.ranks))) for plan, number in times.items()]
    events = round(network.fit(flows, _MAX_HOPS, _MOST_BYTES))
    most = network.settings.max_events
    if events > most:
        raise InputError(
            f"as packets the step would be about {events:.2g} events (more than the {most:.2g} allowed, some"
            f" {events / _EVENTS_PER_S / 60:.0f} minutes); use --network fluid, a smaller job, or"
            f" --set network.max_events={_rounded_up(events)}"
        )
    return events


def _calls(rank: Rank) -> Counter[Call]:
    found: Counter[Call] = Counter()
    for stream in rank.tape.streams:
        for item in stream:
            if isinstance(item.work, Communication):
                found.update(item.work.calls)
    return found


def _rounded_up(events: int) -> int:
    step: int = 10 ** max(0, len(str(events)) - 2)
    return -(-events // step) * step
