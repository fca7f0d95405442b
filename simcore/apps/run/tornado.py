"""``--tornado``: what a step takes with a tenth less and a tenth more of each resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from simcore.hardware import ClusterSpec, load_cluster
from simcore.timeline.info import ResourceChange

#: By how much hardware is changed, both ways.
STEP: Final = 0.1
#: What is changed: its name, the part of a cluster, and the key of its number ("clock": of SMs, relative).
HARDWARE: Final = (
    ("SM clock", "gpu", "clock"), ("HBM", "gpu", "hbm_bytes_per_s"), ("NVLink", "gpu", "nvlink_bytes_per_s"),
    ("NICs", "cluster", "nic_bytes_per_s"), ("latency of NICs", "cluster", "nic_latency_s"),
    ("host per launch", "gpu", "launch_overhead_s"),
)  # fmt: skip


def changed_cluster(
    name: str, settings: Mapping[str, str], known: ClusterSpec, part: str, key: str, factor: float
) -> ClusterSpec:
    """The cluster ``name`` with ``settings`` (of which ``known`` is made) and ``factor`` times a resource."""
    value = factor if key == "clock" else factor * getattr(known.gpu if part == "gpu" else known, key)
    before = float(settings.get("gpu.clock", 1.0)) if key == "clock" else 1.0
    changed = load_cluster(name, {**settings, f"{part}.{key}": repr(value * before)}, force=True)
    return replace(changed, link_overrides={**known.link_overrides, **changed.link_overrides})


def other_hardware(
    name: str,
    settings: Mapping[str, str],
    known: ClusterSpec,
    step_s: Callable[[ClusterSpec], float],
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[ResourceChange, ...]:
    """A step (``step_s`` of a cluster, seconds) on changed hardware, what matters most first."""
    found = []
    for number, (what, part, key) in enumerate(HARDWARE):
        both = []
        for sign in (-1, 1):
            progress((2 * number + (sign > 0)) / (2 * len(HARDWARE)))
            both.append(step_s(changed_cluster(name, settings, known, part, key, 1 + sign * STEP)))
        found.append(ResourceChange(what=what, step_time_s_less=both[0], step_time_s_more=both[1]))
    return tuple(sorted(found, key=lambda one: -abs(one.step_time_s_less - one.step_time_s_more)))


def tornado_lines(rows: tuple[ResourceChange, ...], step_s: float) -> list[str]:
    """The answers for a terminal."""
    out = [f"{'step time with 10% of':<36} {'less':>8} {'more':>8}"]
    for one in rows:
        changes = [s / step_s - 1 for s in (one.step_time_s_less, one.step_time_s_more)]
        out.append(f"  {one.what:<34} {changes[0]:+z8.2%} {changes[1]:+z8.2%}")
    return out
