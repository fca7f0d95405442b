"""What a compiled region keeps for its backward pass: what is cheap to compute again is not kept.

Note [What a compiler keeps]
    Eager mode keeps what each operator's formula reads.  torch.compile looks at forward and backward pass
    together and keeps the cheapest tensors from which the backward pass can be computed, a minimum cut
    (torch/_functorch/partitioners.py).  Its rules, on what eager mode was seen to do: pointwise ops, norms,
    softmax and losses are computed again by the kernel that reads them, unless a product or another kernel
    of its own reads their result in the backward pass, or they take up, later in the forward pass, what a
    product has been made of already (residual streams); what is much smaller than what it is made of
    (statistics of rows) is kept.  A tensor costs its bytes, twice those where only fused kernels read it,
    and a tenth more for each step away from the backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from simcore.graph.passes import compilable
from workloads.tracing.record.min_cut import minimum_cut
from workloads.tracing.record.recording import (
    BYTES_READ,
    BYTES_WRITTEN,
    MODULE,
    NAME,
    OP_CLASS,
    PHASE,
    Free,
    RawOp,
    Recording,
)

_CHEAP = frozenset({"elementwise", "copy", "fill", "norm_fwd", "softmax_fwd", "cross_entropy"})
_RANDOM = ("rand", "dropout", "bernoulli", "multinomial")
#: Of results and what they are made of, above which results are kept.
_SMALL = 4
_FARTHEST = 100


def keep_as_compiled(recording: Recording) -> Recording:
    """``recording`` with storages of compiled regions released when a compiler's would be; see the Note.

    Without compiled regions, the recording itself.
    """
    forward = [index for index in range(len(recording.ops)) if _is_forward(recording, index)]
    forward = [index for index in forward if _region(recording, index)]
    return _in_place(_Regions(recording, forward).released()) if forward else recording


def without_inner(recording: Recording) -> Recording:
    """``recording`` without storages that never leave the kernel that a compiler makes of their ops."""
    kernel = _kernels(recording)
    ops, frees = list(recording.ops), []
    for free in recording.frees:
        owner = free.owner
        if owner >= 0 and _fusible(recording, owner) and kernel[owner] == kernel[free.after]:
            ops[owner] = replace(ops[owner], alloc_bytes=ops[owner].alloc_bytes - free.num_bytes)
        else:
            frees.append(free)
    return replace(recording, ops=ops, frees=frees)


def _in_place(recording: Recording) -> Recording:
    """``recording`` with results of compiled kernels in the memory of what they read for the last time."""
    kernel = _kernels(recording)
    read: dict[int, set[int]] = defaultdict(set)
    for index, op in enumerate(recording.ops):
        read[kernel[index]].update(op.data)
    spent: dict[int, list[int]] = defaultdict(list)
    lasting: dict[int, list[int]] = defaultdict(list)
    frees: list[Free | None] = list(recording.frees)
    for number, free in enumerate(recording.frees):
        if free.owner < 0 or not _region(recording, free.owner) or kernel[free.owner] == kernel[free.after]:
            continue
        if _fusible(recording, free.after) and free.owner in read[kernel[free.after]]:
            spent[kernel[free.after]].append(number)
        if _fusible(recording, free.owner):
            lasting[kernel[free.owner]].append(number)
    ops = list(recording.ops)
    for which in spent.keys() & lasting.keys():
        for number in sorted(lasting[which], key=lambda number: -recording.frees[number].num_bytes):
            made = recording.frees[number]
            taken = next(
                (one for one in spent[which] if recording.frees[one].num_bytes == made.num_bytes), None
            )
            if taken is not None:
                spent[which].remove(taken)
                frees[taken] = replace(recording.frees[taken], after=made.after)
                frees[number] = None
                rest = ops[made.owner].alloc_bytes - made.num_bytes
                ops[made.owner] = replace(ops[made.owner], alloc_bytes=rest)
    left = sorted((free for free in frees if free is not None), key=lambda free: free.after)
    return replace(recording, ops=ops, frees=left)


def _kernels(recording: Recording) -> list[int]:
    """For each op the first op of the kernel that it is in."""
    kernel: list[int] = []
    for index, op in enumerate(recording.ops):
        before = recording.ops[index - 1] if index else op
        joins = (
            index > 0
            and _fusible(recording, index)
            and _fusible(recording, index - 1)
            and _region(recording, index) == _region(recording, index - 1)
            and (op.columns[PHASE], op.stream) == (before.columns[PHASE], before.stream)
        )
        kernel.append(kernel[-1] if joins else index)
    return kernel


def _is_forward(recording: Recording, index: int) -> bool:
    return recording.ops[index].columns[PHASE] == "fwd"


def _region(recording: Recording, index: int) -> str:
    return str(recording.ops[index].columns[MODULE]).partition("/fused:")[2]


def _fusible(recording: Recording, index: int) -> bool:
    columns = recording.ops[index].columns
    return bool(_region(recording, index)) and compilable(str(columns[NAME]), str(columns[OP_CLASS]))


class _Regions:
    """The ops of compiled forward passes, who reads them, and what becomes of their results."""

    def __init__(self, recording: Recording, forward: Sequence[int]) -> None:
        self._recording, self._ops, self._forward = recording, recording.ops, forward
        self._later: dict[int, list[int]] = defaultdict(list)
        self._backward: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(self._ops):
            readers = self._later if _is_forward(recording, index) else self._backward
            for source in op.data:
                readers[source].append(index)
        self._again = self._cheap()
        self._kept = self._cut()

    def _cheap(self) -> set[int]:
        """Ops whose results may be computed again."""
        written = {
            source
            for index in self._forward
            if not self._ops[index].alloc_bytes
            for source in self._ops[index].data
        }
        found = {index for index in self._forward if index not in written and self._is_cheap(index)}
        for index in self._forward:
            readers = self._later.get(index, ())
            first = self._first_apart(readers)
            found.difference_update(reader for reader in readers if reader > first)
        return found

    def _is_cheap(self, index: int) -> bool:
        op = self._ops[index]
        return (
            op.columns[OP_CLASS] in _CHEAP
            and _SMALL * op.alloc_bytes > int(op.columns[BYTES_READ])
            and not any(word in str(op.columns[NAME]) for word in _RANDOM)
            and all(_fusible(self._recording, reader) for reader in self._backward.get(index, ()))
        )

    def _first_apart(self, readers: Sequence[int]) -> int:
        """The first kernel of its own that ``readers`` lead to, or the last of them."""
        last = max(readers, default=-1)
        waiting, seen, first = list(readers), set(readers), last
        while waiting:
            index = waiting.pop()
            if not _fusible(self._recording, index):
                first = min(first, index)
                continue
            new = [reader for reader in self._later.get(index, ()) if reader <= last and reader not in seen]
            seen.update(new)
            waiting += new
        return first

    def _cut(self) -> set[int]:
        """What is kept of what may be computed again."""
        away: dict[int, int] = {}
        needed: set[int] = set()
        for index in reversed(self._forward):
            later = self._later.get(index, ())
            read = index in self._backward
            nearest = 0 if read else min((away.get(reader, _FARTHEST) for reader in later), default=_FARTHEST)
            away[index] = min(1 + nearest, _FARTHEST)
            if read or any(reader in needed and reader in self._again for reader in later):
                needed.add(index)
        again = needed & self._again
        edges = [(source, index) for index in again for source in self._ops[index].data]
        costs = {
            index: self._cost(index, away.get(index, 1)) for index in {*needed, *(one for one, _ in edges)}
        }
        starts = [index for index in sorted(costs) if index not in again]
        return minimum_cut(costs, edges, starts, (index for index in needed if index in self._backward))

    def _cost(self, index: int, away: int) -> int:
        op = self._ops[index]
        cost = op.alloc_bytes or int(op.columns[BYTES_WRITTEN])
        readers = (*self._later.get(index, ()), *self._backward.get(index, ()))
        if all(_fusible(self._recording, reader) for reader in readers):
            cost *= 2
        for _ in range(away):
            cost += cost // 10
        return max(1, cost)

    def released(self) -> Recording:
        """See :func:`keep_as_compiled`."""
        until = self._last_uses()
        largest: dict[int, int] = defaultdict(int)
        for free in self._recording.frees:
            largest[free.owner] = max(largest[free.owner], free.num_bytes)
        frees = [
            replace(free, after=until[free.owner])
            if free.owner in until and _SMALL * free.num_bytes > largest[free.owner]
            else free
            for free in self._recording.frees
        ]
        frees.sort(key=lambda free: free.after)
        return replace(self._recording, ops=self._read_instead(), frees=frees)

    def _read_instead(self) -> list[RawOp]:
        """The ops, those of backward passes with the bytes of what they compute again from, where fewer."""
        ops = list(self._ops)
        for index in self._again - self._kept:
            sources = sum(self._ops[source].alloc_bytes for source in self._made_from(index))
            spared = self._ops[index].alloc_bytes - sources
            for reader in self._backward.get(index, ()) if spared > 0 else ():
                columns = list(ops[reader].columns)
                columns[BYTES_READ] = max(0, int(columns[BYTES_READ]) - spared)
                ops[reader] = replace(ops[reader], columns=tuple(columns))
        return ops

    def _last_uses(self) -> dict[int, int]:
        """Of what is computed again, and of what that is made from, the op after which it is released."""
        again = sorted(self._again - self._kept)
        found = {index: max(self._later.get(index, (index,))) for index in again}
        for index in again:
            read = max(self._backward.get(index, (-1,)))
            for source in self._made_from(index) if read >= 0 else ():
                own = (*self._later.get(source, ()), *self._backward.get(source, ()))
                found[source] = max(found.get(source, source), read, *own)
        return found

    def _made_from(self, index: int) -> Iterator[int]:
        """What is kept and ``index`` is computed again from."""
        waiting, seen = list(self._ops[index].data), set()
        while waiting:
            source = waiting.pop()
            if source in seen:
                continue
            seen.add(source)
            if source in self._again and source not in self._kept:
                waiting += self._ops[source].data
            else:
                yield source
