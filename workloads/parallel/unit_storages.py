"""What FSDP allocates around the pieces of a pass: gathered units, their gradients, buffers of collectives.

Note [Storages of units]
    The allocator sees the host's order.  FSDP2 gathers into a buffer on a stream of its own, copies that into
    the unit's parameters when the unit is used, and holds the buffer until the next unit's copy; backward
    issues the gather of the next unit before it computes one.  Gradients of a unit are kept until its
    backward is done and copied into the buffer of the reduction, on a third stream, held until the next one
    (``foreach_all_gather``, ``foreach_reduce``, ``FSDPParamGroup`` of torch/distributed/fsdp).
    FSDP1's flat parameters are used where they were gathered, on the stream of the gathers, and DeepSpeed's
    parameters likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from workloads.parallel.job import Job, element_bytes
from workloads.parallel.stages import Chunk, Unit, units_of

COMPUTE, GATHERS, REDUCTIONS = 0, 1, 2

#: (category, name, bytes, position in the chunk, stream) -> storage
Alloc = Callable[[str, str, int, int, int], int]


@dataclass
class UnitStorages:
    """Of one chunk; see Note [Storages of units]."""

    job: Job
    chunk: Chunk
    alloc: Alloc
    free: Callable[[int], None]
    units: Sequence[Unit] = field(init=False)
    _whole: dict[int, int] = field(default_factory=dict)  # unit -> storage of its parameters
    _buffers: dict[int, int] = field(default_factory=dict)  # unit -> what it was gathered into
    _reduced: int = -1
    _gradients: dict[int, dict[int, int]] = field(default_factory=dict)  # of each unit, until reduced

    def __post_init__(self) -> None:
        self.units = units_of(self.chunk, ends_apart=self.job.training.fsdp_ends_apart)

    def before(self, position: int, *, forward: bool) -> None:
        """The piece at ``position`` needs its unit; in backward the next one's gather is issued, too."""
        for k, unit in enumerate(self.units):
            if unit.kept and position == (0 if forward else len(self.chunk.pieces) - 1):
                self._use(k)
        number = self._unit(position)
        self._use(number)
        if not forward:
            order = [k for k in reversed(range(len(self.units))) if not self.units[k].kept]
            outset = -1 if position == len(self.chunk.pieces) - 1 else len(order)
            place = order.index(number) if number in order else outset
            for ahead in order[place + 1 : place + 1 + self.job.training.prefetch]:
                self._gather(ahead)

    def reduce(self, position: int, gradients: Mapping[int, int]) -> None:
        """The piece has its ``gradients``, bytes by storage: with the unit's last ones all are reduced."""
        number = self._unit(position)
        self._gradients.setdefault(number, {}).update(gradients)
        if position == min(self.units[number].positions):
            self._reduce(number)

    def after(self, position: int, *, forward: bool) -> None:
        """The piece is done: its unit is freed, unless it is kept for backward."""
        number = self._unit(position)
        unit, training = self.units[number], self.job.training
        if position != (max if forward else min)(unit.positions):
            return
        keeps = unit.kept or not training.reshard_after_forward
        if not forward or not keeps:
            self.free(self._whole.pop(number))
            if number in self._buffers:
                self.free(self._buffers.pop(number))

    def _use(self, number: int) -> None:
        if number in self._whole:
            return
        self._gather(number)
        if self.job.training.sharding != "fsdp2":
            self._whole[number] = self._buffers.pop(number)
            return
        for other in [other for other in self._buffers if other != number and other in self._whole]:
            self.free(self._buffers.pop(other))
        self._whole[number] = self._make("gathered parameters", "copy of all_gather", number, COMPUTE)

    def _gather(self, number: int) -> None:
        if number not in self._buffers and number not in self._whole:
            self._buffers[number] = self._make("gathered parameters", "all_gather", number, GATHERS)

    def _make(self, category: str, name: str, number: int, stream: int) -> int:
        num_bytes = self._numel(number) * element_bytes(self.job.training.param_gather_dtype)
        return self.alloc(category, name, num_bytes, self.units[number].positions[0], stream)

    def _reduce(self, number: int) -> None:
        numel, training = self._numel(number, trainable=True), self.job.training
        own = self._gradients.pop(number, {})
        if not numel:
            return
        position = self.units[number].positions[0]
        num_bytes = numel * element_bytes(training.param_gather_dtype) - sum(own.values())
        if num_bytes > 0:
            grads = self.alloc("gradients", "gradients of a unit", num_bytes, position, COMPUTE)
            own[grads] = num_bytes
        if self._reduced >= 0:
            self.free(self._reduced)
        num_bytes = numel * element_bytes(training.grad_reduce_dtype)
        self._reduced = self.alloc("buffers", "reduce_scatter", num_bytes, position, REDUCTIONS)
        for grads in own:
            self.free(grads)

    def _unit(self, position: int) -> int:
        return next(k for k, unit in enumerate(self.units) if position in unit.positions)

    def _numel(self, number: int, *, trainable: bool = False) -> int:
        pieces = tuple(self.chunk.pieces[position] for position in self.units[number].positions)
        return self.job.numel(pieces, trainable=trainable)
