"""What FSDP allocates around the pieces of a pass: gathered units, their gradients, buffers of collectives.

Note [Storages of units]
    The allocator sees the host's order.  FSDP2 gathers into a buffer on a stream of its own and copies that
    into the unit's parameters when the unit is used; forward holds the buffer until the next unit's copy or
    its own end, backward does not (``wait_for_unshard``), and issues the gather of the next unit before it
    computes one.  Gradients of a unit are kept until its backward is done and copied into the buffer of the
    reduction, on a third stream, held until the next one or the end of backward; what a unit's first
    reduction leaves stays until the optimizer is done (``foreach_all_gather``, ``foreach_reduce``,
    ``FSDPParamGroup`` of torch/distributed/fsdp).  The root stays gathered between forward and backward, and
    so does the last layer, which backward needs first.  In a pipeline of PyTorch's only the last backward
    frees and reduces (``PipelineStage``); until then gradients are added up whole.  FSDP1's flat parameters
    are used where they were gathered, on the stream of the gathers, and DeepSpeed's parameters likewise.

Note [Units of Megatron-FSDP]
    Used where gathered, too.  Ahead of the layer at hand it gathers until that is half of
    :data:`MEGATRON_QUEUE` elements, in both directions.  What belongs to no layer is one unit that stays.
    Each gradient is copied to the unit's buffer, which its first gradient brings; of buffers that have been
    reduced so many stay as a queue of that many elements holds, and behind each backward none
    (``AllGatherPipeline`` and ``GradReducePipeline`` of param_and_grad_buffer.py, ``suggested_communication_
    unit_size`` and ``_root_post_backward`` of megatron_fsdp.py, Megatron-Core 0.16.1).  By that source the
    final norm's forward gathers the first layers ahead once more; five measured peaks are met within 0.5%
    without that, and are 0.6 to 2.0% lower than with it, so it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple

from simcore.records import dataclass
from workloads.models.tensors import ELEMENT_BYTES
from workloads.parallel.finish import owned_numel
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.stages import Chunk, Unit, units_of
from workloads.parallel.static import gathered_bytes, gradients_come_and_go

COMPUTE, GATHERS, REDUCTIONS = 0, 1, 2
#: The name of what a reduction leaves of a unit's gradients.
REDUCED: Final = "reduced gradients"
#: Elements of gradients that Megatron-FSDP lets wait to be reduced (``suggested_RS_queue_capacity``).
MEGATRON_QUEUE: Final = 1_000_000_000

#: (category, name, bytes, position in the chunk, stream) -> storage
Alloc = Callable[[str, str, int, int, int], int]


class HeldUnits(NamedTuple):
    """Storages that units hold between passes, by unit: whole parameters, what they were gathered into, sums
    of gradients, shards of reduced ones; and the buffer of the last reduction (-1: none), of so many bytes.
    """

    whole: dict[int, int]
    buffers: dict[int, int]
    sums: dict[int, int]
    owned: dict[int, int]
    reduced: int
    reduced_bytes: int


@dataclass
class UnitStorages:
    """Of one chunk; see Note [Storages of units]."""

    job: Job
    chunk: Chunk
    alloc: Alloc
    free: Callable[[int], None]
    units: Sequence[Unit] = field(init=False)
    _elements: dict[tuple[int, bool], int] = field(default_factory=dict)  # of each unit, all or trained
    _whole: dict[int, int] = field(default_factory=dict)  # unit -> storage of its parameters
    _buffers: dict[int, int] = field(default_factory=dict)  # unit -> what it was gathered into
    _reduced: int = -1
    _reduced_bytes: int = 0
    _gradients: dict[int, dict[int, int]] = field(default_factory=dict)  # of each unit, until reduced
    _sums: dict[int, int] = field(default_factory=dict)  # unit -> storage of its gradients, added up whole
    _owned: dict[int, int] = field(default_factory=dict)  # unit -> storage of its reduced gradients
    _queue: list[int] = field(default_factory=list)  # units whose buffer of gradients is being reduced

    def __post_init__(self) -> None:
        self.units = units_of(self.chunk, ends_apart=self.job.training.fsdp_ends_apart)
        self._order = [k for k in reversed(range(len(self.units))) if not self.units[k].kept]
        self._places = {k: place for place, k in enumerate(self._order)}
        self._unit_of = {position: k for k, unit in enumerate(self.units) for position in unit.positions}

    def held(self) -> HeldUnits:
        """What is held now."""
        return HeldUnits(
            dict(self._whole), dict(self._buffers), dict(self._sums), dict(self._owned), self._reduced,
            self._reduced_bytes,
        )  # fmt: skip

    def gathered(self) -> tuple[tuple[int, ...], ...]:
        """What of units is held now, whatever its storages: equal where what comes next is."""
        of_units = (self._whole, self._buffers, self._sums, self._owned)
        return (*(tuple(sorted(held)) for held in of_units), (self._reduced_bytes,))

    def restore(self, held: HeldUnits) -> None:
        """Hold what was held then."""
        self._whole, self._buffers, self._sums = dict(held.whole), dict(held.buffers), dict(held.sums)
        self._owned = dict(held.owned)
        self._reduced, self._reduced_bytes = held.reduced, held.reduced_bytes

    def before(self, position: int, *, forward: bool) -> None:
        """The piece at ``position`` needs its unit; in backward the next one's gather is issued, too."""
        if position == (0 if forward else len(self.chunk.pieces) - 1):
            for k, unit in enumerate(self.units):
                if unit.kept:
                    self._use(k, forward=forward)
        number = self._unit_of[position]
        self._use(number, forward=forward)
        if self.job.by_megatron_fsdp:
            if number in self._places or (forward and position == 0):  # behind the last layer nothing is
                self._gather_ahead(number, forward=forward)
            if not forward and self.job.software.grad_accumulation_fusion:
                self._bucket(number)
        elif not forward:
            outset = -1 if position == len(self.chunk.pieces) - 1 else len(self._order)
            place = self._places.get(number, outset)
            for ahead in self._order[place + 1 : place + 1 + self.job.training.prefetch]:
                self._gather(ahead)

    def reduce(self, position: int, gradients: Mapping[int, int]) -> None:
        """The piece has its ``gradients``, bytes by storage: with the unit's last ones all are reduced."""
        number = self._unit_of[position]
        if self.job.by_megatron_fsdp:
            self._copy_gradients(number, gradients, last=position == min(self.units[number].positions))
            return
        self._gradients.setdefault(number, {}).update(gradients)
        if position != min(self.units[number].positions):
            return
        if self.job.reduces_at_the_end:
            self._add_up(number)
        else:
            self._reduce(number)

    def after(self, position: int, *, forward: bool) -> None:
        """The piece is done: its unit is freed, unless it stays."""
        number = self._unit_of[position]
        unit = self.units[number]
        if position != (max if forward else min)(unit.positions):
            return
        in_pipeline = self.job.parallel.pp > 1 and not self.job.by_megatron_fsdp
        if not (self._stays(number) if forward else in_pipeline):
            self._free(number)
        if forward and position == len(self.chunk.pieces) - 1:
            self.let_go()

    def let_go(self) -> None:
        """Buffers whose content has been copied are let go."""
        for number in [number for number in self._buffers if number in self._whole]:
            self.free(self._buffers.pop(number))

    def end(self) -> None:
        """The last backward is done: units are freed, what was added up is reduced, its buffer let go."""
        self._queue.clear()
        for number in range(len(self.units)):
            self._free(number)
            if self.job.by_megatron_fsdp and number in self._sums:
                self.free(self._sums.pop(number))
            elif number in self._sums:
                self._gradients[number] = {self._sums.pop(number): self._gradient_bytes(number)}
                self._reduce(number)
        if self._reduced >= 0:
            self.free(self._reduced)
        self._reduced, self._reduced_bytes = -1, 0

    def zero_grad(self) -> None:
        """Behind the optimizer: gradients are let go, and what stays gathered has to be gathered again."""
        for held in (self._owned, self._whole):
            for number in list(held):
                self.free(held.pop(number))

    def _gather_ahead(self, number: int, *, forward: bool) -> None:
        """See Note [Units of Megatron-FSDP]."""
        order = self._order[::-1] if forward else self._order
        place = order.index(number) if number in self._places else -1
        elements = 0
        for ahead in order[place + 1 :]:
            if elements >= MEGATRON_QUEUE // 2:
                return
            self._gather(ahead)
            elements += self._numel(ahead)

    def _bucket(self, number: int) -> None:
        """What gradients of a unit are copied to."""
        if number not in self._sums and self._numel(number, trainable=True):
            num_bytes = self._numel(number, trainable=True) * element_bytes(self.job.training.grad_dtype)
            position = self.units[number].positions[0]
            self._sums[number] = self.alloc("gradients", "buffer of a unit", num_bytes, position, COMPUTE)

    def _copy_gradients(self, number: int, gradients: Mapping[int, int], *, last: bool) -> None:
        """See Note [Units of Megatron-FSDP]."""
        self._bucket(number)
        for grads in gradients:
            self.free(grads)
        if not last or number not in self._sums:
            return
        while sum(self._numel(one, trainable=True) for one in self._queue) > MEGATRON_QUEUE:
            self.free(self._sums.pop(self._queue.pop(0)))
        unit = self.units[number]
        pieces = tuple(self.chunk.pieces[position] for position in unit.positions)
        num_bytes = owned_numel(self.job, pieces) * element_bytes(self.job.training.grad_dtype)
        self.free(self.alloc("buffers", "reduce_scatter", num_bytes, unit.positions[0], REDUCTIONS))
        self._queue.append(number)

    def _free(self, number: int) -> None:
        if self.job.by_megatron_fsdp and self.units[number].kept:
            return
        for held in (self._whole, self._buffers):
            if number in held:
                self.free(held.pop(number))

    def _stays(self, number: int) -> bool:
        """Whether a unit is still there when its backward comes."""
        training = self.job.training
        freed_first = training.sharding == "fsdp1" or (training.fsdp_ends_apart and self.chunk.has_head)
        last = bool(self._order) and number == self._order[0]
        kept = self.units[number].kept or (last and not freed_first)
        return kept or not training.reshard_after_forward

    def _use(self, number: int, *, forward: bool) -> None:
        if number in self._whole:
            return
        self._gather(number)
        if self.job.training.sharding != "fsdp2":
            self._whole[number] = self._buffers.pop(number)
            return
        self.let_go()
        self._whole[number] = self._make("gathered parameters", "copy of all_gather", number, COMPUTE)
        if not forward:
            self.let_go()

    def _gather(self, number: int) -> None:
        if number not in self._buffers and number not in self._whole:
            self._buffers[number] = self._make("gathered parameters", "all_gather", number, GATHERS)

    def _make(self, category: str, name: str, number: int, stream: int) -> int:
        positions = self.units[number].positions
        num_bytes = gathered_bytes(self.job, [self.chunk.pieces[position] for position in positions])
        return self.alloc(category, name, num_bytes, positions[0], stream)

    def _add_up(self, number: int) -> None:
        if number not in self._sums and self._numel(number, trainable=True):
            num_bytes, position = self._gradient_bytes(number), self.units[number].positions[0]
            self._sums[number] = self.alloc("gradients", "sum of a unit", num_bytes, position, COMPUTE)
        for grads in self._gradients.pop(number, {}):
            self.free(grads)

    def _gradient_bytes(self, number: int) -> int:
        return self._numel(number, trainable=True) * ELEMENT_BYTES[self.job.shard.main_grad_dtype]

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
        if training.gathers_in_place:  # what is reduced is where gradients are
            for grads in own:
                self.free(grads)
            own = {}
        num_bytes = numel * element_bytes(training.grad_reduce_dtype)
        self._reduced = self.alloc("buffers", "reduce_scatter", num_bytes, position, REDUCTIONS)
        self._reduced_bytes = num_bytes
        for grads in own:
            self.free(grads)
        if number not in self._owned and gradients_come_and_go(self.job):
            pieces = tuple(self.chunk.pieces[position] for position in self.units[number].positions)
            num_bytes = owned_numel(self.job, pieces) * element_bytes(training.grad_dtype)
            self._owned[number] = self.alloc("gradients", REDUCED, num_bytes, position, REDUCTIONS)

    def _numel(self, number: int, *, trainable: bool = False) -> int:
        key = number, trainable
        if key not in self._elements:
            pieces = tuple(self.chunk.pieces[position] for position in self.units[number].positions)
            self._elements[key] = self.job.numel(pieces, trainable=trainable)
        return self._elements[key]
