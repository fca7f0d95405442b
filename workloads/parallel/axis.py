"""Axes of parallelism.  Each stands in a file of ``axes/``: what it divides, what it adds to a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from simcore.errors import InputError
from simcore.records import dataclass
from simcore.registry import Registry
from workloads.models.check import nearest_divisors

if TYPE_CHECKING:
    from workloads.models.model import AnyModel
    from workloads.parallel.emit import OpWriter
    from workloads.parallel.job import Job
    from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: Megatron-LM's order of ranks, the fastest-varying axis first.
ORDER: Final = "tp-cp-ep-dp-pp"


@dataclass(frozen=True)
class Axis:
    """An axis by ``name``, the key of the section ``parallel`` that says how many ranks lie along it.

    ``check``: InputError where they cannot be so many.  ``splits_batch``: each takes samples of its own.
    ``is_dense``: dense layers are spread along it, too, so that it multiplies the ranks of the job; experts'
    own axes divide the ranks of dense ones.  ``end_of_step``: what a stage's ranks do behind the optimizer.
    Kernels name the process group along the axis by its ``name``.
    """

    name: str
    check: Callable[[AnyModel, ParallelSpec, TrainingSpec], None]
    splits_batch: bool = False
    is_dense: bool = True
    end_of_step: Callable[[OpWriter, Job, int], None] | None = None


#: Axes by name.
AXES: Registry[Axis] = Registry("axis", "workloads.parallel.axes")


def register(axis: Axis) -> Axis:
    """Make an axis known."""
    return AXES.register(axis.name, axis)


def all_axes() -> list[Axis]:
    """Axes in the usual order of ranks, further ones last, and those that deal out samples behind others."""
    known = ORDER.split("-")
    place = {name: known.index(name) if name in known else len(known) for name in AXES}
    return sorted(AXES.values(), key=lambda axis: (axis.splits_batch, place[axis.name]))


def further_axes() -> list[Axis]:
    """Axes beside those that every job has keys for."""
    return [axis for axis in AXES.values() if axis.name not in ORDER.split("-")]


def only_whole(model: AnyModel, axis: str, degree: int) -> None:
    """InputError where a list of blocks would be split along an axis of transformers."""
    if degree > 1:
        raise InputError(
            f"parallel.{axis}={degree}: {model.name!r} is a list of blocks, which it does not split;"
            f" nearest: parallel.{axis}=1"
        )


def divides(what: str, value: int, degree: int, axis: str) -> None:
    """InputError unless ``degree`` divides ``value``; the nearest degrees that do are named."""
    if value % degree:
        lower, upper = nearest_divisors(value, degree)
        near = f"{axis}={lower}" + (f" or {upper}" if upper else "")
        raise InputError(f"{axis}={degree} does not divide {value} {what}; nearest: {near}")
