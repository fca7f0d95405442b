"""What loaders of data gave a rank, as it travels between processes (Note [Batches of other ranks])."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from simcore.records import dataclass


@dataclass(frozen=True)
class Batches:
    """Shapes of batches, one after the other, and a digest of the numbers of their samples."""

    shapes: str
    samples: str


@dataclass(frozen=True)
class LoaderShare:
    """What one loader gave a rank in a step: ``own``, one of ``among`` shares; ``drawn``: what share has
    which, as far as that was drawn.
    """

    among: int
    place: int
    own: Batches
    drawn: Mapping[int, Batches] = field(default_factory=dict)
