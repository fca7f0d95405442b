"""What an edited pipeline should look like: sizes, model chunks, schedule."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simcore.errors import InputError
from simcore.graph import gpipe, interleaved_one_f_one_b
from simcore.graph.schedules import Schedule
from workloads.edits.megatron import Sizes
from workloads.edits.registry import Value


@dataclass(frozen=True)
class Layout:
    """What a pipeline should look like: its sizes, model chunks per stage and the order of actions.

    ``regroups``: stages get other layers than they have.
    """

    sizes: Sizes
    chunks: int
    schedule: Schedule
    regroups: bool

    @property
    def layers_per_chunk(self) -> int:
        """Layers of each model chunk.  InputError when they do not fall evenly."""
        places = self.sizes.pp * self.chunks
        if self.sizes.layers % places:
            near = max(1, round(self.sizes.layers / places)) * places
            raise InputError(
                f"{self.sizes.layers} layers do not fall evenly on {places} model chunks; {near} layers would"
            )
        return self.sizes.layers // places


def schedule_named(name: str, pp: int, microbatches: int) -> tuple[Schedule, int]:
    """A schedule by name (1f1b, gpipe, interleaved or interleaved:CHUNKS) and its model chunks per stage."""
    word, _, count = name.partition(":")
    if word == "gpipe":
        return gpipe(pp, microbatches), 1
    chunks = 1 if word == "1f1b" else int(count or 2)
    return interleaved_one_f_one_b(pp, microbatches, chunks), chunks


def _schedule_value(text: str) -> str:
    if not re.fullmatch(r"1f1b|gpipe|interleaved(:[2-9]|:[1-9]\d)?", text):
        raise InputError(f"cannot be {text!r}; use 1f1b, gpipe, interleaved or interleaved:<model chunks>")
    return text


SCHEDULE = Value("1f1b|gpipe|interleaved[:chunks]", _schedule_value)
