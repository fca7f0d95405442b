"""Flags of other programs on the command line: which are given, and files of them with what was predicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simcore.apps.progress import say
from simcore.errors import InputError
from simcore.records import dataclass
from simcore.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcore.apps.run.loading import Loaded
    from simcore.hardware import ClusterSpec
    from simcore.timeline.info import StepBand
    from workloads.jobs import Description
    from workloads.jobs.launch import Launch


def launch_asked(**given: str | None) -> tuple[str, str] | None:
    """(framework, flags or file) of the one that is given.  InputError for several."""
    found = [(name, text) for name, text in given.items() if text is not None]
    if len(found) > 1:
        raise InputError(f"--from-{found[0][0]} and --from-{found[1][0]}: give one of them")
    return found[0] if found else None


def say_launch(launch: Launch | None) -> None:
    """What was made of a launch's flags, on stderr."""
    if launch is not None:
        for line in (*launch.not_understood, *map(str, launch.assumed)):
            say(line)


@dataclass(frozen=True)
class LaunchFile:
    """What a framework is started by; ``ending`` of its file's name."""

    text: str
    ending: str

    def write(self, folder: Path, name: str) -> None:
        """Write it as ``name`` in a folder that is being made."""
        (folder / f"{name}.{self.ending}").write_text(self.text, encoding="utf-8")


def launch_file(
    framework: str, job: Description, cluster: ClusterSpec, predicted: Sequence[str] = ()
) -> LaunchFile:
    """A file by which ``framework`` runs ``job``, with what was ``predicted`` above it.

    InputError for an unknown framework or a job that it does not run.
    """
    from simcore.planning.words import short_form
    from workloads.jobs.launch import emitted

    p = job.parallel
    what = f"{job.model.name} on {p.world_size} GPUs of {cluster.name}: {short_form(job)}"
    text, suffix = emitted(framework, job, [what, *predicted], cluster.gpus_per_node)
    return LaunchFile(text, f"{framework}{suffix}")


def launch_of(found: Loaded, framework: str, *, edited: bool, predicted: Sequence[str] = ()) -> LaunchFile:
    """:func:`launch_file` of what a run simulates.  InputError for what is no description, or was edited."""
    if found.description is None or edited:
        raise InputError("--emit needs a described job, without edits: what was traced is started as it was")
    return launch_file(framework, found.description, found.cluster, predicted)


def predicted_lines(step_s: float, band: StepBand | None, peak_bytes: int, capacity_bytes: int) -> list[str]:
    """What was predicted of a job, for people who run it."""
    within = f", {band.level:.0%} band {band.low_s:.4g} to {band.high_s:.4g} s" if band is not None else ""
    return [
        f"predicted by stepsim: {step_s:.4g} s a step{within}",
        f"predicted peak memory: {peak_bytes / GIB:.1f} of {capacity_bytes / GIB:.1f} GiB, fullest stage",
    ]
