"""What ops of a recorded template do to memory: storages that each makes, and those that die behind it.

Note [Storages of recorded ops]
    An op allocates so many bytes; which storages they are is told by their releases, each with the op that
    it was born in.  What no release names is one storage, or those that releases without an owner let go
    together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.graph.graph import Graph, Program
from simcore.graph.ops import OpKind
from simcore.memory.lifetimes import NO_LAYER, StorageHolder
from simcore.records import dataclass

#: Templates of backward.
BACKWARD: Final = ("bwd", "bwd_input", "bwd_weight")
#: Scopes of a release's owner.
INSIDE, FORWARD = 0, 1
#: The row of events that release a storage.
RELEASE: Final = 0
_RELEASED: Final = {(-1, NO_LAYER, -1, 0): RELEASE}
_PRODUCTS: Final = ("gemm", "bgemm")
_MOST_TOGETHER, _MOST_SUMS = 64, 1 << 12


class Birth(NamedTuple):
    """Storages that an op allocates, their bytes and their rows (:meth:`RecordedStorages.row`), the
    ``unnamed`` last of them such that no release names; ``op`` counts from the template's first one.
    """

    op: int
    sizes: list[int]
    rows: list[int]
    unnamed: int


class OpMemory(NamedTuple):
    """What an op of a template does to memory, in this order; ``died``: releases as (bytes, owner, scope).

    ``multiplies``: it is the first one of the template that asks for the workspace of products.
    """

    multiplies: bool
    born: Birth | None
    died: list[tuple[int, int, int]]


@dataclass
class RecordedStorages:
    """Of the templates of ``program``, each read once; see Note [Storages of recorded ops].

    ``holders``, ``streams`` and what events say of storages (``rows``) by number, in the order in which they
    were met.
    """

    graph: Graph
    program: Program
    holders: dict[StorageHolder, int] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=lambda: {"compute": 0})
    rows: dict[tuple[int, int, int, int], int] = field(default_factory=lambda: dict(_RELEASED))
    _templates: dict[int, list[OpMemory]] = field(default_factory=dict)
    _nobodys: list[tuple[int, ...]] | None = None  # bytes of releases without an owner behind one op

    def of(self, template: int) -> list[OpMemory]:
        """What a template does to memory, op by op."""
        if template not in self._templates:
            self._templates[template] = self._read(template)
        return self._templates[template]

    def number(self, holder: StorageHolder) -> int:
        """Of a holder."""
        return self.holders.setdefault(holder, len(self.holders))

    def row(self, num_bytes: int, holder: int, layer: int = NO_LAYER, stream: int = 0) -> int:
        """The row of events that allocate so."""
        return self.rows.setdefault((num_bytes, layer, holder, stream), len(self.rows))

    def row_columns(self) -> npt.NDArray[np.int64]:
        """Bytes, layers, holders and streams of all rows."""
        return np.array(list(self.rows), dtype=np.int64).T

    def _read(self, number: int) -> list[OpMemory]:
        """What a template does to memory, op by op; what dies at its start first."""
        graph, frees = self.graph, self.graph.frees
        first, last = (int(graph.template_start[number + k]) for k in (0, 1))
        own = np.flatnonzero(frees.template == number)
        died: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        inside: dict[int, list[int]] = defaultdict(list)
        for after, size, owner, scope in zip(
            *(
                column[own].tolist()
                for column in (frees.after, frees.num_bytes, frees.owner, frees.owner_scope)
            ),
            strict=True,
        ):
            if scope == INSIDE and owner >= 0:
                inside[owner].append(size)
                owner -= first
            died[after].append((size, owner, scope))
        later = self._freed_later(number) if graph.template_names[number] == "fwd" else {}
        backward = graph.template_names[number] in BACKWARD
        born: dict[int, list[tuple[int, int]]] = {}
        unnamed: dict[int, int] = {}
        for row in (np.flatnonzero(graph.ops.alloc_bytes[first:last]) + first).tolist():
            here, kept = inside.get(row, []), later.get(row - first, [])
            rest = int(graph.ops.alloc_bytes[row]) - sum(here) - sum(kept)
            sizes = [(size, False) for size in here] + [(size, True) for size in kept]
            others = self._parts(rest) if rest > 0 else []
            sizes += [(size, True) for size in others]
            unnamed[row] = len(others)
            born[row] = [
                (size, self.number(self._holder_of(row, kept=stays, backward=backward)))
                for size, stays in sizes
            ]
        classes = graph.ops.op_class
        product = next((row for row in range(first, last) if classes[row] in _PRODUCTS), -1)
        layers = graph.ops.layer
        places = [OpMemory(False, None, died.pop(-1))] if -1 in died else []
        for row in sorted({*born, *died, product} - {-1}):
            made = born.get(row)
            birth = None
            if made:
                of = int(layers[row]), self._stream(row)
                said = [self.row(size, holder, *of) for size, holder in made]
                birth = Birth(row - first, [size for size, _ in made], said, unnamed[row])
            places.append(OpMemory(row == product, birth, died.get(row, [])))
        return places

    def _parts(self, num_bytes: int) -> list[int]:
        """Storages that ``num_bytes`` are which no release names: some that releases without an owner let go
        together, behind one op, or else one.
        """
        if self._nobodys is None:
            frees, templates = self.graph.frees, set(self.program.template.tolist())
            by_op: dict[tuple[int, int], list[int]] = defaultdict(list)
            for row in np.flatnonzero(frees.owner < 0).tolist():
                place = int(frees.template[row]), int(frees.after[row])
                if place[0] in templates:
                    by_op[place].append(int(frees.num_bytes[row]))
            self._nobodys = sorted({tuple(sorted(sizes)) for sizes in by_op.values()})
        if any(num_bytes in sizes for sizes in self._nobodys):
            return [num_bytes]
        return next(filter(None, (_summing(sizes, num_bytes) for sizes in self._nobodys)), [num_bytes])

    def _freed_later(self, forward: int) -> dict[int, list[int]]:
        """Bytes that backward releases of what the template ``forward`` made, by the op that did."""
        program, frees = self.program, self.graph.frees
        at = int(np.flatnonzero(program.template == forward)[0])
        of = (program.microbatch == program.microbatch[at]) & (program.chunk == program.chunk[at])
        found: dict[int, list[int]] = defaultdict(list)
        for template in dict.fromkeys(program.template[of].tolist()):
            own = (frees.template == template) & (frees.owner_scope == FORWARD)
            for owner, size in zip(frees.owner[own].tolist(), frees.num_bytes[own].tolist(), strict=True):
                found[owner].append(size)
        return found

    def _holder_of(self, row: int, *, kept: bool, backward: bool) -> StorageHolder:
        ops = self.graph.ops
        kind = int(ops.kind[row])
        if ops.collective[row] == "all_gather":
            category = "gathered parameters"
        elif kind == OpKind.RECV:
            category = "messages"
        elif not kept or ops.phase[row] == "optimizer":
            category = "temporaries"
        else:
            category = "gradients" if backward else "activations"
        return StorageHolder(category, ops.name[row], ops.module[row], int(ops.layer[row]))

    def _stream(self, row: int) -> int:
        """The pool that an op's storages come from: communication has the stream on which it is called."""
        ops = self.graph.ops
        if int(ops.kind[row]) != OpKind.COMPUTE:
            return 0
        return self.streams.setdefault(ops.stream[row], len(self.streams))


def _summing(sizes: tuple[int, ...], total: int) -> list[int]:
    """Some of ``sizes`` that are ``total`` together; none where they are not, or that takes long to find."""
    reached: dict[int, tuple[int, ...]] = {0: ()}
    for size in sizes[:_MOST_TOGETHER]:
        for found, parts in list(reached.items()):
            if found + size <= total:
                reached.setdefault(found + size, (*parts, size))
        if total in reached or len(reached) > _MOST_SUMS:
            break
    return list(reached.get(total, ()))
