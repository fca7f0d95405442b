"""Rows of a measurement that no healthy fabric explains, by rules on their own columns.

Such rows stay in every report, under a heading of their own with the reason; no constant is fitted to them.

* The publisher's notes call a size an outlier ("8 MiB row outlier", "256B row is a first-touch outlier").
* Kernel durations out of a profiler contain the wait for the last rank, which no collective causes.
* SHARP switches add the data themselves: no cluster profile describes such.
* A fabric's plugin was of a release that its own publisher calls old.
* A message takes longer than one of at least twice the size in the same series, by more than protocols
  change: warm-up or disturbance.
* A message takes longer than an equal one among more nodes of the same GPU: hops were added, not removed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from simcore.apps.measured.nccl_rows import NcclRow

#: Where NCCL changes protocol or algorithm a larger message may be faster: by 7 % in a published series
#: (77.7 us for 512 KiB, 71.9 us for 1 MiB on 2 nodes of H100).  This leaves room.
_STEP_DOWN: Final = 1.25
_MORE_NODES: Final = 1.1

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_OUTLIER: Final = re.compile(r"(\d+)\s*([KMG]?)i?B row\b[^;]*outlier", re.IGNORECASE)
_PROFILER: Final = re.compile(r"profiler", re.IGNORECASE)
_OLD_STACK: Final = re.compile(r"\bold stack\b", re.IGNORECASE)
_SHARP: Final = re.compile(r"\bSHARP\b", re.IGNORECASE)


def reasons_apart(rows: Sequence[NcclRow]) -> dict[int, str]:
    """Line -> reason, for the rows that stand apart."""
    reasons = {row.line: reason for row in rows if (reason := _stated_reason(row)) is not None}
    left = [row for row in rows if row.line not in reasons]
    reasons |= _slower_than_larger(left)
    left = [row for row in left if row.line not in reasons]
    return reasons | _slower_than_more_nodes(left)


def _stated_reason(row: NcclRow) -> str | None:
    """A reason that the row's own notes or source give."""
    notes = row.columns.get("notes", "")
    said = f"{notes}; {row.source}"
    for number, unit in _OUTLIER.findall(notes):
        if int(number) * _UNITS[unit.lower()] == row.num_bytes:
            return "the publisher's notes call this size an outlier"
    if _PROFILER.search(said):
        return "a profiler's kernel durations contain the wait for the last rank"
    if row.setup.nodes > 1 and _OLD_STACK.search(said):
        return "an old release of the fabric's plugin, which its publisher replaced"
    if row.setup.nodes > 1 and _SHARP.search(said):
        return "SHARP: the switches between nodes add the data"
    return None


def _slower_than_larger(rows: Sequence[NcclRow]) -> dict[int, str]:
    series: dict[tuple[object, ...], list[NcclRow]] = defaultdict(list)
    for row in rows:
        key = (row.source, row.columns.get("notes"), row.gpu, row.setup, row.collective)
        series[key].append(row)
    reasons: dict[int, str] = {}
    for members in series.values():
        fastest: dict[int, float] = {}
        for row in members:
            fastest[row.num_bytes] = min(row.measured_us, fastest.get(row.num_bytes, row.measured_us))
        for row in members:
            larger = [(us, size) for size, us in fastest.items() if size >= 2 * row.num_bytes]
            if larger and row.measured_us > _STEP_DOWN * min(larger)[0]:
                us, size = min(larger)
                reasons[row.line] = (
                    f"takes longer than {size} bytes of the same series ({us:g} us): warm-up or disturbance"
                )
    return reasons


def _slower_than_more_nodes(rows: Sequence[NcclRow]) -> dict[int, str]:
    """Compares rows of equal GPU, fabric, ranks per node, collective, size and settings."""
    alike: dict[tuple[object, ...], list[NcclRow]] = defaultdict(list)
    for row in rows:
        setup = row.setup
        forced = (setup.algorithm, setup.protocol)
        key = (row.gpu, setup.cluster, setup.gpus // setup.nodes, forced, row.collective, row.num_bytes)
        alike[key].append(row)
    reasons: dict[int, str] = {}
    for members in alike.values():
        for row in members:
            wider = [other for other in members if other.setup.nodes > row.setup.nodes]
            if not wider or row.setup.nodes == 1:
                continue
            best = min(wider, key=lambda other: other.measured_us)
            if row.measured_us > _MORE_NODES * best.measured_us:
                reasons[row.line] = (
                    f"takes longer than the same on {best.setup.nodes} nodes ({best.measured_us:g} us)"
                )
    return reasons
