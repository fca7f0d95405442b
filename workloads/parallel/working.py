"""The most that one microbatch's passes through a chunk hold, from the storages of its pieces.

Note [Passes through a chunk]
    The closed form of memory counts microbatches in flight and adds what the pass at hand holds beside them.
    That is walked here piece by piece over the same storages (``workloads/models/storages.py``) and the same
    units of FSDP (``unit_storages.py``) as :mod:`workloads.parallel.lifetimes` has them event by event, in
    blocks of whole 512 bytes.  Which units are gathered when a pass begins depends on the passes before it;
    a pass is walked once for each such state.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from simcore.distinct import among
from simcore.memory.caching.settings import whole_blocks
from simcore.records import dataclass
from workloads.models.pieces import ModelPiece
from workloads.models.storages import INPUT, OUTPUT_GRADIENT, Pass, storages_of
from workloads.parallel.handed import keeps_sent, kept_bytes, stays
from workloads.parallel.job import Job
from workloads.parallel.stages import Chunk
from workloads.parallel.unit_storages import COMPUTE, GATHERS, REDUCED, REDUCTIONS, HeldUnits, UnitStorages


@dataclass(frozen=True)
class PassMemory:
    """Bytes at the peak of a pass beyond what microbatches keep for backward: ``working``, and units of FSDP
    (``gathered``; where the pass has released what it kept, less than they hold), reduced ``gradients``
    among them.  ``aside``: the most that the pools of gathers and of reductions hold in it, ``compute``: that
    of the compute stream beyond what is kept.
    """

    working: int = 0
    gathered: int = 0
    gradients: int = 0
    aside: tuple[int, int] = (0, 0)
    compute: int = 0

    @property
    def total(self) -> int:
        """All of it at the peak."""
        return self.working + self.gathered


def head_between(job: Job, chunk: Chunk) -> int:
    """Bytes that a microbatch whose gradient of the head's weight is deferred holds until then."""
    if not chunk.has_head or not chunk.pieces[-1].backward:
        return 0
    made = storages_of(chunk.pieces[-1], job.group_sizes)
    return sum(whole_blocks(made.storages[number].num_bytes) for number in made.for_head)


def loss_is_apart(job: Job, chunk: Chunk, position: int) -> bool:
    """Whether the piece makes logits of which a loss is made that is no part of what FSDP wraps.

    What was gathered is let go before it, and nothing is asked for until it has a gradient.
    """
    by_torch = job.is_fsdp and (job.training.sharding in ("fsdp1", "fsdp2") or job.by_deepspeed)
    return by_torch and chunk.has_head and position == len(chunk.pieces) - 1


@dataclass(frozen=True)
class _Level:
    """What a pass of a piece adds to live bytes: at most ``highest``, ``net`` at its end; of these
    ``gradients`` stay where FSDP reduces them.
    """

    highest: int
    net: int
    gradients: int


class _Part(NamedTuple):
    """Events of a pass through a piece: of its loss (True), others (False) or all (None), less the release
    of what ``stays``; ``kept``: gradients stay, for FSDP to reduce or until the step.
    """

    kind: Pass
    kept: bool
    of_loss: bool | None = None
    stays: tuple[int, ...] = ()


@lru_cache(maxsize=1 << 10)
def _level(piece: ModelPiece, sizes: tuple[tuple[str, int], ...], part: _Part) -> _Level:
    made = storages_of(piece, sizes)
    codes = np.array(made.events_of(part.kind, of_loss=part.of_loss), dtype=np.int64)
    codes = codes[~among(~codes, np.array(part.stays))] if part.stays else codes
    num_bytes = np.array([whole_blocks(one.num_bytes) for one in made.storages], dtype=np.int64)
    gradients = np.array([one.gradient for one in made.storages], dtype=np.bool_)
    numbers = np.where(codes >= 0, codes, ~codes)
    if part.kept:
        there = (codes >= 0) | ~gradients[numbers]
        codes, numbers = codes[there], numbers[there]
    levels = np.cumsum(np.where(codes >= 0, num_bytes[numbers], -num_bytes[numbers]))
    if not len(levels):
        return _Level(0, 0, 0)
    made_here = numbers[(codes >= 0) & gradients[numbers]]
    return _Level(max(0, int(levels.max())), int(levels[-1]), int(num_bytes[made_here].sum()))


class _State:
    """What units hold between passes; ``held``: their storages' (bytes, stream) by number."""

    def __init__(self, units: HeldUnits, held: dict[int, tuple[int, int]]) -> None:
        self.units = units
        self.held = held
        self.idle = sum(num_bytes for num_bytes, _ in held.values())
        gathers, reductions = (
            sum(num_bytes for num_bytes, own in held.values() if own == stream)
            for stream in (GATHERS, REDUCTIONS)
        )
        self.aside = gathers, reductions
        self.gradients = sum(held[storage][0] for storage in units.owned.values())


@dataclass
class WalkedPasses:
    """Passes through chunks of equal pieces that were walked already, by what was held before each.

    ``between``: bytes of a microbatch between the halves of its backward.
    """

    states: dict[Hashable, _State] = field(default_factory=dict)
    passes: dict[Hashable, tuple[PassMemory, Hashable]] = field(default_factory=dict)
    between: int = 0


@dataclass
class ChunkWalk:
    """Passes through ``chunk``, one after the other; see Note [Passes through a chunk].

    ``kept``: bytes of a microbatch until its backward; ``idle``: those of units between passes, of these
    ``idle_aside`` in the pools of gathers and of reductions, and ``idle_gradients`` reduced.
    """

    job: Job
    chunk: Chunk
    walked: WalkedPasses = field(default_factory=WalkedPasses)
    kept: int = 0
    idle: int = 0
    idle_aside: tuple[int, int] = (0, 0)
    idle_gradients: int = 0
    _levels: list[int] = field(default_factory=lambda: [0, 0, 0])  # live bytes of each stream's pool
    _worst: tuple[int, int, int] = (0, 0, 0)  # live bytes, of them those of units, reduced gradients
    _aside: list[int] = field(default_factory=lambda: [0, 0, 0])  # the most of each stream's pool
    _compute: int = 0
    _of_units: int = 0
    _reduced: int = 0
    _held: dict[int, tuple[int, int]] = field(default_factory=dict)
    _made: int = 0
    _at: Hashable = None

    def __post_init__(self) -> None:
        pieces = self.chunk.pieces
        self._sends = keeps_sent(self.job, self.chunk)
        self._sizes = self.job.group_sizes
        self._stays = tuple(stays(self.job, self.chunk, position) for position in range(len(pieces)))
        self.kept, self._late = kept_bytes(self.job, self.chunk)
        sharded = self.job.is_fsdp
        self._units = UnitStorages(self.job, self.chunk, self._alloc, self._free) if sharded else None

    def passed(self, kind: Pass, *, last: bool) -> PassMemory:
        """What the next pass holds; ``last``: it is the chunk's last backward."""
        key = kind, last, self._at
        walked = self.walked
        if key not in walked.passes:
            state = walked.states.get(self._at)
            if self._units is not None and state is not None:
                self._units.restore(state.units)
                self._held = dict(state.held)
                self._made = max(state.held, default=0)
            walked.passes[key] = self._played(kind, last=last)
        found, self._at = walked.passes[key]
        if self._at is not None:
            now = walked.states[self._at]
            self.idle, self.idle_aside, self.idle_gradients = now.idle, now.aside, now.gradients
        return found

    def _played(self, kind: Pass, *, last: bool) -> tuple[PassMemory, Hashable]:
        self._levels = [sum(size for size, own in self._held.values() if own == k) for k in range(3)]
        self._of_units = sum(self._levels)
        self._reduced = 0 if self._at is None else self.walked.states[self._at].gradients
        start = {"F": 0, "W": self.walked.between}.get(kind, self.kept)
        self._levels[COMPUTE] += start
        self._worst, self._aside = (0, 0, 0), list(self._levels)
        self._compute = 0
        if kind == "F":
            self._forward()
        else:
            self._backward(kind, last=last)
        if kind == "I":
            self.walked.between = max(0, sum(self._levels) - self._of_units)
        most, of_units, gradients = self._worst
        beside = max(0, most - (self.walked.between if kind == "W" else self.kept))
        gathered = min(of_units, beside)
        compute = self._compute - (self.walked.between if kind == "W" else self.kept)
        aside = self._aside[GATHERS], self._aside[REDUCTIONS]
        found = PassMemory(beside - gathered, gathered, gradients, aside, compute)
        if self._units is None:
            return found, None
        at = self._units.gathered()
        self.walked.states.setdefault(at, _State(self._units.held(), dict(self._held)))
        return found, at

    def _forward(self) -> None:
        pieces, units = self.chunk.pieces, self._units
        if INPUT not in self._stays[0]:
            self._step(storages_of(pieces[0], self._sizes).storages[INPUT].num_bytes)
        for position in range(len(pieces)):
            if units is not None:
                units.before(position, forward=True)
            if units is not None and loss_is_apart(self.job, self.chunk, position):
                self._pass(position, "F", of_loss=False)
                units.let_go()
                self._pass(position, "F", of_loss=True)
            else:
                self._pass(position, "F")
            if units is not None:
                units.after(position, forward=True)
        last = storages_of(pieces[-1], self._sizes)
        if last.output >= 0 and not self._sends:
            self._step(-last.storages[last.output].num_bytes)

    def _backward(self, kind: Pass, *, last: bool) -> None:
        pieces, units = self.chunk.pieces, self._units
        received = kind != "W" and not self.chunk.has_head and pieces[-1].backward
        if received and OUTPUT_GRADIENT not in self._stays[-1]:
            self._step(pieces[-1].output_bytes)
        for position in reversed(range(len(pieces))):
            rest: bool | None = None
            if units is not None and kind != "W" and pieces[position].backward:
                if loss_is_apart(self.job, self.chunk, position):
                    self._pass(position, kind, of_loss=True)
                    rest = False
                units.before(position, forward=False)
            gradients = self._pass(position, kind, rest)
            if units is not None and kind != "I":
                units.reduce(position, {self._hold(gradients, COMPUTE): gradients})
            if units is not None and kind != "W":
                units.after(position, forward=False)
        if units is not None and (last or not self.job.pipelined_by_torch):
            units.end()
        first = next((piece for piece in pieces if piece.backward), None)
        made = storages_of(first, self._sizes) if first is not None else None
        if kind != "W" and made is not None and made.input_gradient >= 0:
            self._step(-made.storages[made.input_gradient].num_bytes)
        if kind != "I" and self._late:
            self._step(-self._late)

    def _pass(self, position: int, kind: Pass, of_loss: bool | None = None) -> int:
        """Bytes of the gradients of the piece there, if they stay."""
        stay = self._units is not None or self.job.gradients_of_one_pass
        part = _Part(kind, stay, of_loss, self._stays[position])
        level = _level(self.chunk.pieces[position], self._sizes, part)
        self._reach(level.highest)
        self._levels[COMPUTE] += level.net
        return level.gradients

    def _step(self, num_bytes: int) -> None:
        """A storage that goes between chunks comes, or goes (less than 0 bytes)."""
        self._levels[COMPUTE] += whole_blocks(num_bytes)
        self._reach(0)

    def _reach(self, beyond: int) -> None:
        """The compute stream's pool reaches so much ``beyond`` its level."""
        live = sum(self._levels) + beyond
        self._compute = max(self._compute, self._levels[COMPUTE] + beyond)
        if live > self._worst[0]:
            self._worst = live, self._of_units, self._reduced

    def _alloc(self, _category: str, name: str, num_bytes: int, _position: int, stream: int) -> int:
        self._levels[stream] += whole_blocks(num_bytes)
        self._aside[stream] = max(self._aside[stream], self._levels[stream])
        number = self._hold(whole_blocks(num_bytes), stream)
        self._reduced += whole_blocks(num_bytes) if name == REDUCED else 0
        self._reach(0)
        return number

    def _hold(self, num_bytes: int, stream: int) -> int:
        """A storage of units, which is among the levels already."""
        self._made += 1
        self._held[self._made] = num_bytes, stream
        self._of_units += num_bytes
        return self._made

    def _free(self, storage: int) -> None:
        num_bytes, stream = self._held.pop(storage)
        self._of_units -= num_bytes
        self._levels[stream] -= num_bytes
