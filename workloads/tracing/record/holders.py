"""Who holds the memory when a step holds most."""

from __future__ import annotations

from collections import defaultdict

from simcore.graph.graph import MemoryProfile
from simcore.records import dataclass
from workloads.tracing.record.recording import MODULE, NAME, PHASE, Recording

_SHOWN = 20


@dataclass(frozen=True)
class Holder:
    """``num_bytes`` in ``count`` storages that ``op`` of ``module`` made in ``phase``; ``stack``: the lines
    of code behind the largest of them, innermost first ((): below 1 MiB, or older than the step).
    """

    num_bytes: int
    count: int
    phase: str
    module: str
    op: str
    stack: tuple[str, ...]


def peak_by_phase(recording: Recording, held: int) -> dict[str, int]:
    """Highest live bytes while ops of each phase run; ``held`` bytes live at the start."""
    peaks: dict[str, int] = {}
    for index, live in _live_bytes(recording, held):
        phase = str(recording.ops[index].columns[PHASE])
        peaks[phase] = max(peaks.get(phase, 0), live)
    return peaks


def largest_holders(recording: Recording, static: MemoryProfile) -> tuple[Holder, ...]:
    """Holders at the peak, largest first: what lives through the step, then storages by op and module."""
    found = [
        Holder(num_bytes, 1, "", "", name, ())
        for name, num_bytes in (
            ("parameters", static.parameters),
            ("gradients and buckets of before", static.gradients),
            ("optimizer states", static.optimizer_states),
        )
        if num_bytes > 0
    ]
    at = max(_live_bytes(recording, 0), key=lambda pair: pair[1], default=(-1, 0))[0]
    alive = {index: op.alloc_bytes for index, op in enumerate(recording.ops[: at + 1]) if op.alloc_bytes}
    for free in recording.frees:
        if free.after < at and free.owner in alive:
            alive[free.owner] -= free.num_bytes
    grouped: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, num_bytes in alive.items():
        if num_bytes > 0:
            columns = recording.ops[index].columns
            grouped[str(columns[PHASE]), str(columns[MODULE]), str(columns[NAME])].append(index)
    for (phase, module, name), owners in grouped.items():
        largest = max(owners, key=lambda index: alive[index])
        total = sum(alive[index] for index in owners)
        stack = recording.sites.get(largest, ())
        found.append(Holder(total, len(owners), phase, module, name, stack))
    return tuple(sorted(found, key=lambda holder: -holder.num_bytes)[:_SHOWN])


def _live_bytes(recording: Recording, held: int) -> list[tuple[int, int]]:
    """(op, live bytes while it runs) of every op."""
    freed: dict[int, int] = defaultdict(int)
    for free in recording.frees:
        freed[free.after] += free.num_bytes
    live, found = held, []
    for index, op in enumerate(recording.ops):
        live += op.alloc_bytes
        found.append((index, live))
        live -= freed[index]
    return found
