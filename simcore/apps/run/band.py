"""The band of a run's step time, from measured runs like it, and what it does not cover."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from simcore.graph import Workload
from simcore.hardware import GpuSpec
from simcore.timeline.info import NearestRun, StepBand

#: Settings that make a machine which nobody measured.
_ANOTHER_MACHINE = ("rank.", "node.", "link.", "noise.", "gpu.")


def stated_band(
    step_s: float, workload: Workload, gpu: GpuSpec, *,
    settings: Mapping[str, str], network: str, edited: bool = False, ruled: bool = False,
) -> tuple[StepBand, tuple[NearestRun, ...]]:  # fmt: skip
    """Band and nearest measured runs of a step of ``step_s`` seconds on ``gpu``.

    ``settings`` as given (``--set``); ``edited``: the workload is not as it was traced or described;
    ``ruled``: rules of the user's own change what it issues.
    """
    from workloads.evidence import interval, workload_features  # only runs that finish need it

    stated = interval(
        workload_features(dataclasses.asdict(workload), gpu.name, gpu.die or gpu.name, edited=edited or ruled)
    )
    band = StepBand(
        low_s=step_s * stated.low_factor,
        high_s=step_s * stated.high_factor,
        level=stated.level,
        runs=stated.runs,
        widened=stated.widened,
        reasons=(*stated.reasons, *_not_covered(settings, network, edited=edited, ruled=ruled)),
    )
    nearest = tuple(
        NearestRun(
            id=run.id,
            family=run.family,
            framework=run.framework,
            distance=run.distance,
            predicted_s=run.predicted_s,
            measured_s=run.measured_s,
            error=run.predicted_s / run.measured_s - 1,
            differs=run.differs,
        )
        for run in stated.nearest
    )
    return band, nearest


def _not_covered(settings: Mapping[str, str], network: str, *, edited: bool, ruled: bool) -> Iterable[str]:
    changed = [
        key
        for key, value in settings.items()
        if key.startswith(_ANOTHER_MACHINE) and (key, value) != ("gpu.conditions", "sustained")
    ]
    if changed:
        shown = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        yield f"the band does not cover {shown}: nobody measured such a machine"
    if network != "fluid":
        yield f"the band is that of the fluid network, not of {network}"
    if edited or ruled:
        changed_by = " and ".join(["edits"] * edited + ["rules"] * ruled)
        yield (
            f"the band does not cover {changed_by}: it is that of a job which is described so from the start"
        )
