"""Every storage of a stage's rank through a step, from the pieces' launches and the schedule's actions.

Note [Lifetimes of a stage]
    What lasts comes first (``lasting.py``), then two steps: the optimizer's moments come with its first step
    and find other gaps than the second one's activations do; from there on steps are alike.  A step is its
    actions in their order, and the optimizer.  A forward begins with what is received, a backward with the
    gradient of what was sent; what a chunk hands on is released when it has been sent (DeepSpeed keeps it for
    backward).  Inside, pieces follow one another as :mod:`workloads.models.storages` has them, FSDP's units
    around them (``unit_storages.py``).  What kernels of a CUDA graph make is in the graphs' own pool: they
    are captured pass by pass in the schedule's order, all graphs of a process share it, and nothing of it is
    given back (megatron/core/transformer/cuda_graphs.py).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from simcore.distinct import among
from simcore.graph.schedules import Action
from simcore.memory.caching import MemoryEvents
from simcore.memory.lifetimes import (
    BEFORE,
    NO_LAYER,
    OPTIMIZER,
    IntArray,
    StageLifetimes,
    StorageHolder,
)
from simcore.records import dataclass
from workloads.models.pieces import ModelPiece
from workloads.models.storages import INPUT, OUTPUT_GRADIENT, PieceStorages, Storage, storages_of
from workloads.parallel.actions import ends_of
from workloads.parallel.event_columns import PassEvents, StorageEvent, columns_of
from workloads.parallel.handed import keeps_sent, kept_logits, stays
from workloads.parallel.host_shares import HostShare
from workloads.parallel.job import Job
from workloads.parallel.lasting import LastingStorages, layer_number
from workloads.parallel.stages import Chunk
from workloads.parallel.static import static_memory
from workloads.parallel.unit_storages import UnitStorages
from workloads.parallel.working import loss_is_apart


def stage_lifetimes(job: Job, stage: int, actions: Sequence[Action]) -> StageLifetimes:
    """Storages of a rank of ``stage``, which runs ``actions``; see Note [Lifetimes of a stage]."""
    return _Writer(job, stage, actions).written()


@dataclass
class _InFlight:
    """Storages of one microbatch in one chunk: numbers by piece and storage, and what is not yet released."""

    ids: list[IntArray]
    sent: int = -1
    logits: int = -1  # such that stay until backward is done


@dataclass
class _Writer:
    job: Job
    stage: int
    actions: Sequence[Action]
    events: list[PassEvents | StorageEvent] = field(default_factory=list)
    holders: dict[StorageHolder, int] = field(default_factory=dict)
    next_id: int = 0
    at: tuple[int, int] = (BEFORE, -1)  # action, microbatch
    passes: dict[tuple[int, int], _InFlight] = field(default_factory=dict)
    sharded: dict[int, UnitStorages] = field(default_factory=dict)  # by chunk
    firsts: Container[int] = ()  # places of the first passes of each chunk
    lasts: Container[int] = ()  # and of its last backward
    gradients: dict[int, int] = field(default_factory=dict)  # bytes of those that stay until the step
    deferred: list[list[int]] = field(default_factory=list)  # what gradients of the head's weight read
    named: int = -1  # the last logits, if they stay (``kept_logits``)
    named_alone: bool = False  # whether they stay for their name alone
    share: HostShare | None = None  # where layers wait in the host's memory
    _scripts: dict[tuple[int, str, int], _Script] = field(default_factory=dict)
    _keeping: dict[tuple[int, tuple[int, ...]], _Script] = field(default_factory=dict)
    _columns: dict[tuple[int, int], tuple[IntArray, ...]] = field(default_factory=dict)

    def written(self) -> StageLifetimes:
        static = static_memory(self.job, self.stage)
        lasting = LastingStorages(self.job, self.stage, static, self._alloc, self._free)
        lasting.before()
        begun = len(self.events)
        self._passes()
        if any(action.kind != "F" for action in self.actions):
            passes = self.events[begun:]
            self.at = OPTIMIZER, -1
            lasting.step(self._made_gradients(), first=True)
            stepped = len(self.events)
            for units in self.sharded.values():
                units.zero_grad()
            zeroed = self.events[stepped:]
            self.events += passes  # once more: a released storage's number is free for the next one
            lasting.step(self._made_gradients(), first=False)
            self.events += zeroed
        storage, num_bytes, holder, owner, action_of, layer, microbatch, stream = columns_of(self.events)
        return StageLifetimes(
            MemoryEvents.of(storage, num_bytes, stream, owner), action_of, layer, holder, microbatch,
            tuple(self.holders), tuple(self.actions),
        )  # fmt: skip

    def _passes(self) -> None:
        chunks = self.job.chunks[self.stage]
        self.firsts, self.lasts = ends_of(self.actions)
        if self.job.training.offload:
            holder = StorageHolder("activations", "back from the host")
            self.share = HostShare(self.actions, chunks, lambda size: self._alloc(size, holder), self._free)
        for number, action in enumerate(self.actions):
            self.at = number, action.microbatch
            chunk = chunks[action.chunk]
            if action.kind == "F":
                self._forward(action, chunk)
            else:
                self._backward(action, chunk)
        for waiting in self.deferred:
            for storage in waiting:
                self._free(storage)
        if self.named >= 0:
            self._free(self.named)

    def _forward(self, action: Action, chunk: Chunk) -> None:
        one = self.passes[action.chunk, action.microbatch] = _InFlight([])
        units = self._units(action.chunk, chunk) if self.job.is_fsdp else None
        first = self._script(chunk.pieces[0], "F", layer_number(chunk, 0)).made
        name, category = ("ids", "activations") if chunk.has_embedding else ("received", "messages")
        handed = -1
        if INPUT not in stays(self.job, chunk, 0):
            handed = self._alloc(first.storages[INPUT].num_bytes, StorageHolder(category, name))
        for position, piece in enumerate(chunk.pieces):
            if units is not None:
                units.before(position, forward=True)
            layer = layer_number(chunk, position)
            script = self._script(piece, "F", layer)
            ids = np.arange(self.next_id, self.next_id + len(script.made.storages))
            self.next_id += len(ids)
            ids[INPUT] = handed
            one.ids.append(ids)
            script = self._keeps(script, stays(self.job, chunk, position))
            named = piece.name == "head" and kept_logits(self.job, chunk) >= 0
            if named or loss_is_apart(self.job, chunk, position):
                script, loss = script.parts(script.of_loss)
                self._write(script, ids, layer)
                if units is not None:
                    units.let_go()
                if named:
                    self._keep_logits(one, int(ids[script.made.logits]))
                script = loss
            self._write(script, ids, layer)
            if self.share is not None:
                self.share.forward(self.at[0], position)
            handed = int(ids[script.made.output]) if script.made.output >= 0 else -1
            if units is not None:
                units.after(position, forward=True)
        if handed >= 0 and keeps_sent(self.job, chunk):
            one.sent = handed
        elif handed >= 0:
            self._free(handed)

    def _keep_logits(self, one: _InFlight, logits: int) -> None:
        """Logits stay; the ones before have no name any more when these are there."""
        if self.named_alone:
            self._free(self.named)
        self.named, self.named_alone = logits, False
        one.logits = logits

    def _backward(self, action: Action, chunk: Chunk) -> None:
        one = self.passes[action.chunk, action.microbatch]
        units = self._units(action.chunk, chunk) if self.job.is_fsdp else None
        received = action.kind != "W" and not chunk.has_head and chunk.pieces[-1].backward
        if received and OUTPUT_GRADIENT not in stays(self.job, chunk, len(chunk.pieces) - 1):
            num_bytes = chunk.pieces[-1].output_bytes
            one.ids[-1][OUTPUT_GRADIENT] = self._alloc(
                num_bytes, StorageHolder("messages", "received gradient")
            )
        for position in reversed(range(len(chunk.pieces))):
            piece, layer = chunk.pieces[position], layer_number(chunk, position)
            script = self._script(piece, action.kind, layer)
            made = script.made
            script = self._keeps(script, stays(self.job, chunk, position))
            if piece.name == "head" and action.kind == "B" and made.for_head and self._defers():
                self.deferred.append([int(one.ids[position][number]) for number in made.for_head])
                script = self._keeps(script, made.for_head)
            if action.kind != "I" and self.job.gradients_go_in_step and self.at[0] in self.firsts:
                own = tuple(k for k, storage in enumerate(made.storages) if storage.gradient)
                script = self._keeps(script, own)
                self.gradients |= script.gradients(one.ids[position])
            if units is not None and action.kind != "W" and piece.backward:
                if loss_is_apart(self.job, chunk, position):
                    loss, script = script.parts(script.of_loss)
                    self._write(loss, one.ids[position], layer)
                units.before(position, forward=False)
            if self.share is not None and action.kind != "W":
                self.share.before(piece)
            self._write(script, one.ids[position], layer)
            if self.share is not None and action.kind != "W":
                self.share.behind(self.at[0], position)
            if action.kind != "W" and made.input_gradient >= 0:
                gradient = int(one.ids[position][made.input_gradient])
                if position and chunk.pieces[position - 1].backward:
                    one.ids[position - 1][OUTPUT_GRADIENT] = gradient
                else:
                    self._free(gradient)
            if units is not None and action.kind != "I":
                units.reduce(position, script.gradients(one.ids[position]))
            if units is not None and action.kind != "W":
                units.after(position, forward=False)
        if units is not None and (self.at[0] in self.lasts or not self.job.pipelined_by_torch):
            units.end()
        if action.kind != "I":
            if one.sent >= 0:
                self._free(one.sent)
            if one.logits == self.named:
                self.named_alone = True
            elif one.logits >= 0:
                self._free(one.logits)
            del self.passes[action.chunk, action.microbatch]

    def _made_gradients(self) -> dict[int, int]:
        """Those that stay until the step, in the order of parameters: backward came from the end."""
        return dict(reversed(self.gradients.items()))

    def _defers(self) -> bool:
        limit = self.job.training.deferred_head_gradients
        return limit == 0 or len(self.deferred) < limit

    def _script(self, piece: ModelPiece, kind: str, layer: int) -> _Script:
        key = id(piece), kind, layer
        if key not in self._scripts:
            self._scripts[key] = _Script.of(self, piece, kind, layer)
        return self._scripts[key]

    def _keeps(self, script: _Script, kept: tuple[int, ...]) -> _Script:
        """The same but for releases of what is ``kept``."""
        if not kept:
            return script
        key = id(script), kept  # scripts stay as long as this does
        if key not in self._keeping:
            self._keeping[key] = script.without(kept)
        return self._keeping[key]

    def _write(self, script: _Script, ids: IntArray, layer: int) -> None:
        action, microbatch = self.at
        columns = ids[script.storage], script.num_bytes, script.holder, script.owner
        self.events.append(PassEvents(*columns, action, layer, microbatch, 0))

    def _units(self, number: int, chunk: Chunk) -> UnitStorages:
        if number not in self.sharded:
            layers = [layer_number(chunk, position) for position in range(len(chunk.pieces))]

            known: dict[tuple[str, str, int], int] = {}

            def alloc(category: str, name: str, num_bytes: int, position: int, stream: int) -> int:
                layer = layers[position]
                holder = known.get((category, name, layer))
                if holder is None:
                    holder = self.holder(StorageHolder(category, name, "", layer))
                    known[category, name, layer] = holder
                return self._alloc(num_bytes, holder, layer, stream)

            self.sharded[number] = UnitStorages(self.job, chunk, alloc, self._free)
        return self.sharded[number]

    def _alloc(
        self, num_bytes: int, holder: StorageHolder | int, layer: int = NO_LAYER, stream: int = 0
    ) -> int:
        number = holder if isinstance(holder, int) else self.holder(holder)
        self.next_id += 1
        self._event(self.next_id - 1, num_bytes, number, layer, stream)
        return self.next_id - 1

    def _free(self, storage: int, layer: int = NO_LAYER) -> None:
        self._event(storage, -1, -1, layer)

    def _event(self, storage: int, num_bytes: int, holder: int, layer: int, stream: int = 0) -> None:
        action, microbatch = self.at
        self.events.append((storage, num_bytes, holder, 0, action, layer, microbatch, stream))

    def columns(self, piece: ModelPiece, made: PieceStorages, layer: int) -> tuple[IntArray, ...]:
        """Of a piece's storages: bytes, who holds them, and owners (:class:`_Script`)."""
        key = id(piece), layer
        if key not in self._columns:
            holders = [
                self.holder(StorageHolder(_category(piece, one, self.job), one.name, one.module, layer))
                for one in made.storages
            ]
            sizes = [one.num_bytes for one in made.storages]
            owners = [self.job.software.in_graph(one.module) for one in made.storages]
            self._columns[key] = tuple(np.array(each, dtype=np.int64) for each in (sizes, holders, owners))
        return self._columns[key]

    def holder(self, holder: StorageHolder) -> int:
        """Its number."""
        return self.holders.setdefault(holder, len(self.holders))


@dataclass(frozen=True)
class _Script:
    """Events of one pass of a piece: its storages' numbers, bytes (-1: released), holders, and owners (1: the
    pool of CUDA graphs).  The first ``of_loss`` are the loss's, of a forward those before it.
    """

    made: PieceStorages
    storage: IntArray
    num_bytes: IntArray
    holder: IntArray
    owner: IntArray
    of_loss: int = 0

    def without(self, kept: Sequence[int]) -> _Script:
        """The same but for releases of what is ``kept``."""
        there = (self.num_bytes >= 0) | ~among(self.storage, np.array(kept))
        return replace(self._chosen(there), of_loss=int(there[: self.of_loss].sum()))

    def parts(self, count: int) -> tuple[_Script, _Script]:
        """The first ``count`` events, and the others."""
        first = np.arange(len(self.storage)) < count
        return self._chosen(first), self._chosen(~first)

    def _chosen(self, there: npt.NDArray[np.bool_]) -> _Script:
        columns = (self.storage, self.num_bytes, self.holder, self.owner)
        storage, num_bytes, holder, owner = (column[there] for column in columns)
        return _Script(self.made, storage, num_bytes, holder, owner)

    def gradients(self, ids: IntArray) -> dict[int, int]:
        """Bytes of the storages that are gradients of parameters."""
        return {
            int(ids[number]): one.num_bytes for number, one in enumerate(self.made.storages) if one.gradient
        }

    @classmethod
    def of(cls, writer: _Writer, piece: ModelPiece, kind: str, layer: int) -> _Script:
        made = storages_of(piece, writer.job.group_sizes)
        codes = np.array(made.events[kind], dtype=np.int64)  # type: ignore[index]
        of_loss = made.of_loss.get(kind, 0)  # type: ignore[call-overload]
        if writer.job.is_fsdp:  # gradients stay until they are reduced
            own = [number for number, one in enumerate(made.storages) if one.gradient]
            there = ~among(~codes, np.array(own, dtype=np.int64))
            codes, of_loss = codes[there], int(there[:of_loss].sum())
        storage = np.where(codes >= 0, codes, ~codes)
        sizes_of, holders, owners = writer.columns(piece, made, layer)
        allocates = codes >= 0
        return cls(
            made,
            storage,
            np.where(allocates, sizes_of[storage], -1),
            np.where(allocates, holders[storage], -1),
            np.where(allocates, owners[storage], 0),
            of_loss,
        )


def _category(piece: ModelPiece, one: Storage, job: Job) -> str:
    if one.gradient and job.gradients_go_in_step:
        return "gradients"
    if piece.name == "head":
        return "logits and loss"
    return "activations" if one.kept else "temporaries"
