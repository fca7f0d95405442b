"""Goldens of the catalog: run this file to bless what the simulator says now.

A golden moves when kernel costs, collectives or the engine change on purpose; the commit that moves it says
why.  A refactor moves nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from simcore.apps.bench.command import measure
from workloads import catalog

PATH = Path(__file__).with_name("catalog.json")
KEYS = ("gpus", "rank_classes", "kernels", "engine_events", "step_time_s", "digest")


def found(name: str) -> dict[str, object]:
    """What the simulator says of a catalog workload on the default cluster."""
    result = measure(name)
    return {key: result[key] for key in KEYS}


def names() -> list[str]:
    """Workloads that have goldens: those that fit the default cluster."""
    return [name for name in catalog.names() if not name.startswith("scale-")]


if __name__ == "__main__":
    PATH.write_text(json.dumps({name: found(name) for name in names()}, indent=1) + "\n", encoding="utf-8")
