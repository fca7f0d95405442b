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
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.graph.graph import Graph, Program
from simcore.graph.schedules import Action
from simcore.memory.caching import AllocatorSettings, MemoryEvents, play
from simcore.memory.lifetimes import BEFORE, OPTIMIZER, StageLifetimes, StorageHolder
from simcore.memory.peak import activations_of, peak_memory
from simcore.memory.played import PlayedStage
from simcore.memory.recorded_ops import BACKWARD, INSIDE, RELEASE, RecordedStorages
from simcore.records import dataclass

IntArray = npt.NDArray[np.int64]
#: Of events: storage, row of what is said of it, action, microbatch.
_Columns = tuple[IntArray, IntArray, IntArray, IntArray]

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


class _ExtraEvent(NamedTuple):
    """An event that only one of two steps has, before the step's event ``at`` and of its mark ``mark``."""

    at: int
    mark: int
    storage: int
    row: int


@dataclass
class _RecordedStep:
    """What every step does: events as storages, numbered from 0 in the order of their birth, and rows of what
    is said of them; see Note [Two recorded steps].

    ``marks``: the first event of each instance of a template, its action and microbatch.  ``once``: what only
    the first step makes, its storages numbered from -1 down.  ``missed``: releases for which the step has no
    storage, as (event, mark, bytes).  ``live``: what it leaves, bytes by storage in the order of birth.
    """

    graph: Graph
    program: Program
    ops: RecordedStorages
    states: list[int]
    workspace_bytes: int
    storage: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    once: list[_ExtraEvent] = field(default_factory=list)
    missed: list[tuple[int, int, int]] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    next_id: int = 0
    _workspaces: set[bool] = field(default_factory=set)
    #: Storages of the step that live, (bytes, storage) by instance and op, and by bytes those that no release
    #: names.
    _of_op: dict[int, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)
    _unnamed: dict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        program = self.program
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
                self._make_states()
            forward = forwards.get((microbatch, chunk), -1)
            self._play(instance, template, forward)
            if name in _WHOLE_BACKWARD:
                self._left(self._of_op.get(forward, {}))
        if not stepped:
            self._make_states()

    def _begin(self, name: str, microbatch: int, chunk: int) -> None:
        """Events that follow are those of an instance of the template ``name``."""
        at = self.marks[-1][1] if self.marks else BEFORE
        if microbatch < 0 or name not in ("fwd", *BACKWARD):
            at, microbatch = (OPTIMIZER if name == "optimizer" else at), -1
        else:
            at = len(self.actions)
            self.actions.append(Action("F" if name == "fwd" else "B", microbatch, chunk))
        self.marks.append((len(self.storage), at, microbatch))

    def _play(self, instance: int, template: int, forward: int) -> None:
        storages, rows, live, storage = self.storage, self.row, self.live, self.next_id
        mine = self._of_op[instance] = {}
        of_forward = self._of_op.get(forward, {})
        for multiplies, born, died in self.ops.of(template):
            if multiplies:
                self._workspace(backward=self.graph.template_names[template] != "fwd")
            if born is not None:
                sizes, following = born.sizes, storage + len(born.sizes)
                new = range(storage, following)
                mine[born.op] = made = list(zip(sizes, new, strict=True))
                for size, of_nobody in made[len(sizes) - born.unnamed :]:
                    self._unnamed[size].append(of_nobody)
                live.update(zip(new, sizes, strict=True))
                storages += new
                rows += born.rows
                storage = following
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
                    storages.append(released)
                    rows.append(RELEASE)
        self.next_id = storage

    def _of_nobody(self, size: int) -> int:
        """The storage of another pass that such a release means; -1: it is of before the step."""
        waiting = self._unnamed.get(size)
        while waiting:
            storage = waiting.popleft()
            if storage in self.live:
                return storage
        self.missed.append((len(self.storage), len(self.marks) - 1, size))
        return -1

    def _left(self, ops: Mapping[int, list[tuple[int, int]]]) -> None:
        """A microbatch has been through: what is left of it no release names any more."""
        for made in ops.values():
            for size, storage in made:
                if storage in self.live:
                    self._unnamed[size].append(storage)

    def _make_states(self) -> None:
        for size in self.states:
            self._make_once(size, StorageHolder(_STATES, _STATES))

    def _workspace(self, *, backward: bool) -> None:
        """One for each thread that multiplies: forward's (and the optimizer's), autograd's."""
        if self.workspace_bytes and backward not in self._workspaces:
            self._workspaces.add(backward)
            self._make_once(self.workspace_bytes, StorageHolder("buffers", "workspace of products"))

    def _make_once(self, num_bytes: int, holder: StorageHolder) -> None:
        row = self.ops.row(num_bytes, self.ops.number(holder))
        self.once.append(_ExtraEvent(len(self.storage), len(self.marks) - 1, ~len(self.once), row))

    def with_extra(self, extra: Sequence[_ExtraEvent], offset: int, older: int = BEFORE) -> _Columns:
        """The step's events with ``extra`` ones, its storages numbered from ``offset``, behind a step whose
        last action was ``older``.
        """
        storage, row = np.array(self.storage, dtype=np.int64) + offset, np.array(self.row, dtype=np.int64)
        first, action, microbatch = np.array(self.marks or [(0, BEFORE, -1)], dtype=np.int64).T
        mark = np.repeat(np.arange(len(first)), np.diff(first, append=len(storage)))
        if extra:
            at, its_mark, its_storage, its_row = np.array(extra, dtype=np.int64).T
            columns = (storage, its_storage), (row, its_row), (mark, its_mark)
            storage, row, mark = (np.insert(column, at, values) for column, values in columns)
        if older != BEFORE:
            action = np.where(action == BEFORE, older, action + len(self.actions) * (action >= 0))
        return storage, row, action[mark], microbatch[mark]


def recorded_lifetimes(
    graph: Graph, program: Program, held: HeldSizes | None = None, workspace_bytes: int = 0
) -> StageLifetimes:
    """Storages of a rank of ``program``; see Note [Two recorded steps].

    ``workspace_bytes``: what the library of products takes at the first product of each thread that asks for
    one, forward's and autograd's.  A graph without allocations has what lasts alone.
    """
    held, memory, ops = held or HeldSizes(), program.memory, RecordedStorages(graph, program)
    step = _RecordedStep(graph, program, ops, held.of(_STATES, memory.optimizer_states), workspace_bytes)
    left_by_step = sum(size for _, _, size in step.missed)
    lasting = []
    for category in _LASTING:
        left = left_by_step if category == "gradients" else 0
        sizes = held.of(category, max(0, getattr(memory, category) - left))
        lasting += [ops.row(size, ops.number(StorageHolder(category, category))) for size in sizes]
    parts = [_plain(range(-len(step.once) - len(lasting), -len(step.once)), lasting, BEFORE, -1)]
    parts.append(step.with_extra(step.once, 0))
    ended = (step.marks[-1] if step.marks else (0, BEFORE, -1))[1:]
    wanted = Counter(size for _, _, size in step.missed)
    kept: dict[int, deque[int]] = defaultdict(deque)
    forgotten = []
    for left_over, size in step.live.items():
        if len(kept[size]) < wanted[size]:
            kept[size].append(left_over)
        else:
            forgotten.append(left_over)
    parts.append(_plain(forgotten, [RELEASE] * len(forgotten), *ended))
    released = [
        _ExtraEvent(at, mark, kept[size].popleft(), RELEASE) for at, mark, size in step.missed if kept[size]
    ]
    parts.append(step.with_extra(released, step.next_id, ended[0]))
    storage, row, action, microbatch = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    num_bytes, layer, holder_of, stream = ops.row_columns()
    return StageLifetimes(
        MemoryEvents.of(storage, num_bytes[row], stream[row]), action, layer[row], holder_of[row], microbatch,
        tuple(ops.holders), (*step.actions, *step.actions),
    )  # fmt: skip


def _plain(storage: Sequence[int], row: Sequence[int], action: int, microbatch: int) -> _Columns:
    """Events of one action."""
    at = np.array(storage, dtype=np.int64)
    return at, np.array(row, dtype=np.int64), np.full_like(at, action), np.full_like(at, microbatch)


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
