"""What stages hold, by category, as counters (JSON text) in the processes of their ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from simcore.report.event_text import Events
from simcore.timeline.memory_table import read_memory

_PER_US = 1_000_000


def memory_events(folder: Path, stage_of: Mapping[int, int]) -> Iterator[Events]:
    """A counter of each category in the process of each rank (``stage_of``) whose stage the table of memory
    has: an event where it changes.  None where there is no table.
    """
    curves = read_memory(folder)
    for rank, stage in stage_of.items():
        if stage not in curves:
            continue
        times, by_category = curves[stage]
        for name, level in by_category.items():
            if level.any():
                changes = np.flatnonzero(np.diff(level, prepend=-1))
                head = f'{{"ph":"C","pid":{rank},"name":{json.dumps(f"memory, {name}")},"args":{{"B":'
                yield Events.of(
                    f'{head}{size}}},"ts":{time // _PER_US}.{time % _PER_US // 1000:03}}}'
                    for time, size in zip(times[changes].tolist(), level[changes].tolist(), strict=True)
                )
