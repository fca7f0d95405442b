"""Lifetimes of a recorded program's storages, from the allocations and releases of its templates.

Note [Two recorded steps]
    A recording is one step of many.  Played are two: before the first, the rank has its parameters and what
    else lasts; the optimizer makes its states at its first step and finds other gaps than the second step's
    activations do.  Storages older than the recorded step that die in it are those that the step before left
    (gradients, until they are set to None): the first step has none to release, the second those of the
    first.  What a step leaves and the next one does not release is released between the two.

    A release that names nobody is of another pass (a sum of gradients, which the first microbatch's backward
    makes and the last exchange reduces; parameters that stay gathered between microbatches) or of before the
    step: the oldest storage of its size that this step made and no release names, and where there is none, of
    the step before.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.graph.graph import Graph, Program
from simcore.graph.schedules import Action
from simcore.memory.caching import AllocatorSettings, MemoryEvents, play
from simcore.memory.lifetimes import BEFORE, NO_LAYER, OPTIMIZER, StageLifetimes, StorageHolder
from simcore.memory.peak import activations_of, peak_memory
from simcore.memory.played import PlayedStage
from simcore.memory.recorded_ops import BACKWARD, INSIDE, RecordedStorages
from simcore.records import dataclass

IntArray = npt.NDArray[np.int64]

#: Categories of what lasts, in the order in which a process makes it.
_LASTING: Final = ("parameters", "gradients")
_STATES: Final = "optimizer states"
_WHOLE_BACKWARD: Final = ("bwd", "bwd_weight")  # what ends a microbatch


@dataclass(frozen=True)
class HeldSizes:
    """Bytes of each storage that lasts, by category ("parameters", "optimizer states", "gradients": those
    and buffers of before the step), in the order in which they were made.
    """

    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def of(self, category: str, total: int) -> list[int]:
        """Storages that hold ``total`` bytes; one where sizes are not known."""
        known = list(dict(self.sizes).get(category, ()))
        rest = total - sum(known)
        return [*known, rest] if rest > 0 else known


def recorded_lifetimes(
    graph: Graph, program: Program, held: HeldSizes | None = None, workspace_bytes: int = 0
) -> StageLifetimes:
    """Storages of a rank of ``program``; see Note [Two recorded steps].

    ``workspace_bytes``: what the library of products takes at the first product of each thread that asks for
    one, forward's and autograd's.  A graph without allocations has what lasts alone.
    """
    return _StepWriter(graph, program, held or HeldSizes(), workspace_bytes).written()


@dataclass
class _Columns:
    """Events so far; ``marks``: the first event of each action, its number, and its microbatch."""

    storage: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    layer: list[int] = field(default_factory=list)
    holder: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    marks: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, BEFORE, -1)])

    def add(self, storage: int, num_bytes: int, layer: int, holder: int, stream: int) -> None:
        self.storage.append(storage)
        self.num_bytes.append(num_bytes)
        self.layer.append(layer)
        self.holder.append(holder)
        self.stream.append(stream)

    def mark(self, action: int, microbatch: int) -> None:
        """What comes belongs to an action."""
        self.marks.append((len(self.storage), action, microbatch))

    def actions(self) -> tuple[IntArray, IntArray]:
        """Action and microbatch of each event."""
        first, action, microbatch = np.array(self.marks, dtype=np.int64).T
        sizes = np.diff(first, append=len(self.storage))
        return np.repeat(action, sizes), np.repeat(microbatch, sizes)


@dataclass
class _StepWriter:
    graph: Graph
    program: Program
    held: HeldSizes
    workspace_bytes: int
    ops: RecordedStorages = field(init=False)
    columns: _Columns = field(default_factory=_Columns)
    actions: list[Action] = field(default_factory=list)
    next_id: int = 0
    at: int = BEFORE
    _workspaces: set[bool] = field(default_factory=set)
    #: Storages of the step that live, (bytes, storage) by instance and op; all with their bytes in the order
    #: of their birth; and by bytes those that no release names, of the step and of before it.
    _of_op: dict[int, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)
    _live: dict[int, int] = field(default_factory=dict)
    _unnamed: dict[int, deque[int]] = field(default_factory=dict)
    _older: dict[int, deque[int]] = field(default_factory=dict)
    #: Releases of a step for which there was no storage, by bytes.
    missed: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.ops = RecordedStorages(self.graph, self.program)

    def written(self) -> StageLifetimes:
        memory = self.program.memory
        older = self._released_older()
        left_by_step = sum(size * count for size, count in older.items())
        for category in _LASTING:
            left = left_by_step if category == "gradients" else 0
            for size in self.held.of(category, max(0, getattr(memory, category) - left)):
                self._alloc(size, StorageHolder(category, category))
        self._step(first=True)
        if self.next_id:
            self._forget(older)
            self._step(first=False)
        said = self.columns
        columns = (said.storage, said.num_bytes, said.stream, said.layer, said.holder)
        storage, num_bytes, stream, layer, holder = (np.array(one, dtype=np.int64) for one in columns)
        action, microbatch = said.actions()
        return StageLifetimes(
            MemoryEvents.of(storage, num_bytes, stream), action, layer, holder, microbatch,
            tuple(self.ops.holders), tuple(self.actions),
        )  # fmt: skip

    def _released_older(self) -> Counter[int]:
        """Storages older than the step that die in it, by bytes: the step before has them, not the process.

        Those for whose releases a step alone has no storage.
        """
        if not (self.graph.frees.owner < 0).any():
            return Counter()
        alone = _StepWriter(self.graph, self.program, HeldSizes(), 0)
        alone._step(first=False)
        return alone.missed

    def _step(self, *, first: bool) -> None:
        program = self.program
        self._of_op, self._unnamed, self._older = {}, defaultdict(deque), defaultdict(deque)
        for storage, size in self._live.items():
            self._older[size].append(storage)
        forwards: dict[tuple[int, int], int] = {}
        stepped = False
        for instance, (template, microbatch, chunk) in enumerate(
            zip(program.template.tolist(), program.microbatch.tolist(), program.chunk.tolist(), strict=True)
        ):
            name = self.graph.template_names[template]
            if name == "fwd":
                forwards[microbatch, chunk] = instance
            self._begin(name, microbatch, chunk)
            if name == "optimizer" and not stepped:
                stepped = True
                if first:
                    for size in self.held.of(_STATES, program.memory.optimizer_states):
                        self._alloc(size, StorageHolder(_STATES, _STATES))
            forward = forwards.get((microbatch, chunk), -1)
            self._play(instance, template, forward)
            if name in _WHOLE_BACKWARD:
                self._left(self._of_op.get(forward, {}))
        if first and not stepped:
            for size in self.held.of(_STATES, program.memory.optimizer_states):
                self._alloc(size, StorageHolder(_STATES, _STATES))

    def _begin(self, name: str, microbatch: int, chunk: int) -> None:
        """Events that follow are those of an instance of the template ``name``."""
        if microbatch < 0 or name not in ("fwd", *BACKWARD):
            self.at, microbatch = (OPTIMIZER if name == "optimizer" else self.at), -1
        else:
            self.at = len(self.actions)
            self.actions.append(Action("F" if name == "fwd" else "B", microbatch, chunk))
        self.columns.mark(self.at, microbatch)

    def _play(self, instance: int, template: int, forward: int) -> None:
        places = self.ops.of(template)
        add, live, storage = self.columns.add, self._live, self.next_id
        mine = self._of_op[instance] = {}
        of_forward = self._of_op.get(forward, {})
        for multiplies, born, died in places:
            if multiplies:
                self.next_id = storage
                self._workspace(backward=self.graph.template_names[template] != "fwd")
                storage = self.next_id
            if born is not None:
                op, layer, stream, sizes, unnamed = born
                mine[op] = [(size, storage + k) for k, (size, _) in enumerate(sizes)]
                for size, of_nobody in mine[op][len(sizes) - unnamed :]:
                    self._unnamed[size].append(of_nobody)
                for size, holder in sizes:
                    live[storage] = size
                    add(storage, size, layer, holder, stream)
                    storage += 1
            for size, owner, scope in died:
                released = -1
                if owner < 0:
                    released = self._of_nobody(size)
                else:
                    own = (mine if scope == INSIDE else of_forward).get(owner, [])
                    for known in own:
                        if known[0] == size and known[1] in live:
                            own.remove(known)
                            released = known[1]
                            break
                if released >= 0:
                    del live[released]
                    add(released, -1, NO_LAYER, -1, 0)
        self.next_id = storage

    def _of_nobody(self, size: int) -> int:
        """The storage of another pass or of before the step that such a release means; -1: none."""
        for waiting in (self._unnamed.get(size), self._older.get(size)):
            while waiting:
                storage = waiting.popleft()
                if storage in self._live:
                    return storage
        self.missed[size] += 1
        return -1

    def _left(self, ops: Mapping[int, list[tuple[int, int]]]) -> None:
        """A microbatch has been through: what is left of it no release names any more."""
        for made in ops.values():
            for size, storage in made:
                if storage in self._live:
                    self._unnamed[size].append(storage)

    def _forget(self, older: Counter[int]) -> None:
        """Release what the step left and the next one does not, which releases ``older``, by bytes."""
        wanted = older.copy()
        for storage, size in list(self._live.items()):
            if wanted[size] > 0:
                wanted[size] -= 1
            else:
                del self._live[storage]
                self.columns.add(storage, -1, NO_LAYER, -1, 0)

    def _workspace(self, *, backward: bool) -> None:
        """One for each thread that multiplies: forward's (and the optimizer's), autograd's."""
        if self.workspace_bytes and backward not in self._workspaces:
            self._workspaces.add(backward)
            self._alloc(self.workspace_bytes, StorageHolder("buffers", "workspace of products"))

    def _alloc(self, num_bytes: int, holder: StorageHolder) -> None:
        self.columns.add(self.next_id, num_bytes, NO_LAYER, self.ops.number(holder), 0)
        self.next_id += 1


def played_programs(
    graph: Graph,
    held: Mapping[int, HeldSizes],
    settings: AllocatorSettings,
    workspace_bytes: int,
    near: float,
) -> list[PlayedStage]:
    """Of each stage the fullest program, played, where it holds at least ``near`` times what the fullest of
    all does; ``held`` by their lowest ranks.  Empty for a graph that says nothing of allocations.
    """
    if not graph.ops.alloc_bytes.any():
        return []
    fullest: dict[int, tuple[int, Program]] = {}
    for program, peak in zip(graph.programs, peak_memory(graph), strict=True):
        if program.stage not in fullest or peak.total > fullest[program.stage][0]:
            fullest[program.stage] = peak.total, program
    least = near * max(total for total, _ in fullest.values())
    found = []
    for stage, (total, program) in sorted(fullest.items()):
        if total >= least:
            sizes = held.get(program.rank_list()[0])
            lifetimes = recorded_lifetimes(graph, _shortened(graph, program), sizes, workspace_bytes)
            found.append(PlayedStage(stage, lifetimes, play(lifetimes.events, settings), settings))
    return found


def _shortened(graph: Graph, program: Program) -> Program:
    """``program`` with as many microbatches as hold what all of them do: the first ones, and the last.

    A steady pipeline repeats itself, and its allocator finds the same blocks again; what is left out are all
    passes of a microbatch, so those that stay are in flight as before.  Nothing is left out that leaves
    storages behind.
    """
    names = np.array(graph.template_names)[program.template]
    change = np.where(names == "fwd", 1, np.where(names == "bwd", -1, 0)) * (program.microbatch >= 0)
    chunks = int(program.chunk.max(initial=0)) + 1
    in_flight = int(np.cumsum(change).max(initial=0))
    count = int(program.microbatch.max(initial=-1)) + 1
    enough = -(-in_flight // chunks) * chunks + 2
    if count <= enough + 1:
        return program
    stays = (program.microbatch < enough) | (program.microbatch == count - 1)
    before, _ = activations_of(graph, program)
    if np.diff(before, append=before[-1:])[~stays].sum():
        return program
    return replace(
        program,
        template=program.template[stays],
        microbatch=program.microbatch[stays],
        chunk=program.chunk[stays],
    )
