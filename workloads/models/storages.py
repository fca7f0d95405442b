"""Storages of a piece, op by op: what each launch allocates, what autograd keeps, and when each is released.

Note [Storages of a piece]
    A launch allocates what it writes, but for gradients that it adds to a buffer, kernels that work in place
    (a trailing underscore, as ATen has it), and collectives whose result lies where their input was.  A
    storage is released behind the last launch that reads it; one that backward asks for, when the backward of
    its op is done, as autograd does, or behind the launch that says so (``ends_bytes``).  Which storage a
    launch reads follows from the number of elements: the latest one, but the last term of a sum is the
    earliest, which is the residual stream, and gradients of inputs read none of weights, nor these what the
    same layer's product hands back.  What is kept of tensors that no launch of the piece has written
    in that size (queries, keys and values as one, a copy in 8 bits) is a storage of its own from where it is
    kept on.  Logits stay until forward ends: the function
    that computes the loss of them has a name for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import combinations, product
from typing import Final, Literal

from simcore.records import dataclass
from workloads.models.local import DTYPES
from workloads.models.loss import MODULE as LOSS
from workloads.models.pieces import KernelLaunch, ModelPiece
from workloads.models.tensors import ELEMENT_BYTES

#: Storages that a piece releases without having made them: its input and, unless it is the last, the
#: gradient of its output.
INPUT, OUTPUT_GRADIENT = 0, 1

Pass = Literal["F", "B", "I", "W"]

#: The layer that makes logits.
LOGITS: Final = "output_layer"

#: Collectives whose result lies where their input was.
_IN_PLACE: Final = ("all_reduce", "broadcast")
#: Kernels that write where they read, whatever their names: the backward of Megatron-LM's and Transformer
#: Engine's scaled, masked softmax (softmax.cpp).
_WRITES_OVER: Final = ("scaled_masked_softmax_bwd",)
_PRODUCTS: Final = ("gemm", "bgemm")
#: Words in the names of kernels that add a branch to the residual stream, or its gradient.
_SUMS: Final = ("aten::add.Tensor", "bias_add_residual", "bias_dropout_add")


@dataclass(frozen=True)
class Storage:
    """``num_bytes`` that launch ``name`` of ``module`` allocates; ``kept``: autograd keeps it for backward;
    ``gradient``: it is a parameter's, and released where it has been added to what is there.
    """

    num_bytes: int
    name: str
    module: str
    kept: bool
    gradient: bool


@dataclass(frozen=True)
class PieceStorages:
    """Storages of one microbatch, and events of each pass in order: ``n`` makes storage n, ``~n`` frees it.

    ``output`` goes on to the next piece, which releases it, ``input_gradient`` to the one before (-1: none).
    A piece without backward has no gradient of its output either.  ``for_head``: what the gradient of the
    output layer's weight reads.  ``logits``: those that the output layer made (-1: none).  ``of_loss``: how
    many events of a pass come before the loss of logits (forward), or before it has their gradient.
    """

    storages: tuple[Storage, ...]
    events: dict[Pass, tuple[int, ...]]
    output: int
    input_gradient: int
    for_head: tuple[int, ...] = ()
    logits: int = -1
    of_loss: dict[Pass, int] = field(default_factory=dict)

    def events_of(self, kind: Pass, *, of_loss: bool | None = None) -> tuple[int, ...]:
        """Of a pass: those of the loss (True), those of what makes logits (False), or all (None)."""
        events, number = self.events[kind], self.of_loss.get(kind, 0)
        first = (kind != "F") == of_loss
        return events if of_loss is None else events[:number] if first else events[number:]


def storages_of(piece: ModelPiece, group_sizes: tuple[tuple[str, int], ...] = ()) -> PieceStorages:
    """Storages of ``piece``; ``group_sizes``: ranks of the groups of its collectives (default 1).

    See Note [Storages of a piece].
    """
    used = _groups_of(piece)
    return _walked(piece, tuple(pair for pair in group_sizes if pair[0] in used))


@lru_cache(maxsize=256)
def _groups_of(piece: ModelPiece) -> frozenset[str]:
    """Groups whose size says how much one of its collectives leaves each rank."""
    launches = (*piece.forward, *piece.backward)
    return frozenset(one.group for one in launches if one.collective in ("all_gather", "reduce_scatter"))


@lru_cache(maxsize=256)
def _walked(piece: ModelPiece, group_sizes: tuple[tuple[str, int], ...]) -> PieceStorages:
    return _StorageWalk(piece, dict(group_sizes).get).walked()


@dataclass
class _Tracked:
    """A storage under way; ``released``: place behind which it is released, ``op``: for whose backward it is
    kept (-1: not).
    """

    num_bytes: int
    numel: int
    kernel: KernelLaunch | None
    made: int
    released: int
    op: int = -1
    gradient: bool = False


@dataclass
class _StorageWalk:
    """Places count the launches of both passes: those of forward first."""

    piece: ModelPiece
    size_of: Callable[[str], int | None]
    found: list[_Tracked] = field(default_factory=list)
    for_head: list[int] = field(default_factory=list)
    logits: int = -1
    ended: dict[int, int] = field(default_factory=dict)  # where a launch says that it is the last reader

    def walked(self) -> PieceStorages:
        piece, origins = self.piece, self.piece.origins
        forward = len(piece.forward)
        elements = math.prod(piece.output_shape)
        ids = piece.name == "embedding"
        given = _Tracked(origins.input_bytes, origins.input_bytes // 8 if ids else elements, None, -1, -1)
        self.found += [given, _Tracked(piece.output_bytes, elements, None, forward, forward)]
        for k, kernel in enumerate(piece.forward):
            visible = [INPUT, *range(OUTPUT_GRADIENT + 1, len(self.found))]
            self._launch(k, kernel, origins.kept[k], origins.forward[k], visible)
        for number, one in enumerate(self.found):
            if one.kernel is not None and one.kernel.module == LOGITS:
                self.logits = number
                one.released = forward - 1
        ends = (piece.output_bytes or ids) and piece.name != "head"
        output = self._last(piece.output_bytes, piece.forward[-1:], 0) if ends else -1
        visible = [OUTPUT_GRADIENT, *(n for n, one in enumerate(self.found) if one.op >= 0)]
        visible += [INPUT] if origins.keeps_input else []
        first = len(self.found)
        for j, (kernel, (op, repeats)) in enumerate(zip(piece.backward, origins.backward, strict=True)):
            needed = origins.needed[repeats] if repeats >= 0 else (0, 0)
            owner = origins.forward[repeats] if repeats >= 0 else op
            self._launch(forward + j, kernel, needed, owner, [*visible, *range(first, len(self.found))])
        if origins.keeps_input and given.op < 0:
            given.op = 0
        passes_on = piece.backward and not ids
        gradient = self._last(given.num_bytes, piece.backward[-1:], forward) if passes_on else -1
        self._release_kept(forward)
        return self._written(forward, {output, gradient} - {-1}, output, gradient)

    def _launch(
        self, place: int, kernel: KernelLaunch, kept: tuple[int, int], op: int, visible: Sequence[int]
    ) -> None:
        """What a launch reads and makes, and what of it is ``kept`` for ``op`` (bytes of inputs, outputs)."""
        read = self._read(kernel, visible)
        if kernel.weight_gradient and kernel.module == LOGITS and kernel.op_class == "gemm":
            self.for_head += [number for number in read if number != INPUT]
        for number in read:
            one = self.found[number]
            one.released = place
            own = number > OUTPUT_GRADIENT and one.made >= len(self.piece.forward) and one.op < 0
            one.gradient |= kernel.accumulates and own
        if kernel.ends_bytes:
            alike = [
                number
                for number, one in enumerate(self.found)
                if one.op >= 0 and number not in self.ended and one.num_bytes == kernel.ends_bytes
                if one.kernel is not None and one.kernel.module == kernel.module
            ]
            self.ended |= dict.fromkeys(alike[-1:], place)
        made: list[int] = []
        for num_bytes, numel in _written(kernel, self.size_of):
            made.append(len(self.found))
            self.found.append(_Tracked(num_bytes, numel, kernel, place, place))
        if kernel.scratch_bytes:
            self._apart(kernel.scratch_bytes, kernel, place)
        recent = [*read, *reversed([n for n in visible if self.found[n].made >= 0][-8:])]
        for num_bytes, among in ((kept[0], recent), (kept[1], made)):
            if not num_bytes:
                continue
            for number in self._chosen(num_bytes, among) or [self._apart(num_bytes, kernel, place)]:
                self.found[number].op = op

    def _read(self, kernel: KernelLaunch, visible: Sequence[int]) -> list[int]:
        read: list[int] = []
        is_sum = kernel.name.startswith(_SUMS) and kernel.module != LOSS
        # To what a gradient is added is no storage of a microbatch.
        shapes = kernel.in_shapes[: 1 if kernel.accumulates else 2 if _adds(kernel) else None]
        for term, shape in enumerate(shapes):
            numel = math.prod(shape)
            if kernel.collective == "all_gather":
                numel //= self.size_of(kernel.group) or 1
            oldest = is_sum and term > 0 and term == len(kernel.in_shapes) - 1
            for number in visible if oldest else reversed(visible):
                alike = self.found[number].numel == numel and number not in read
                if alike and self._may_read(kernel, number):
                    read.append(number)
                    break
        return read

    def _may_read(self, kernel: KernelLaunch, number: int) -> bool:
        """Gradients of inputs need none of weights; those of a weight not what its own layer hands back."""
        one = self.found[number]
        if one.kernel is None or one.made < len(self.piece.forward):
            return True
        if not kernel.weight_gradient:
            return not one.kernel.weight_gradient
        return (
            one.kernel.weight_gradient
            or one.kernel.module != kernel.module
            or one.kernel.op_class not in _PRODUCTS
        )

    def _chosen(self, num_bytes: int, among: Sequence[int]) -> tuple[int, ...]:
        """As few storages as possible of exactly ``num_bytes`` together that nothing keeps yet."""
        free = [n for n in dict.fromkeys(among) if self.found[n].op < 0][:6]
        for count in range(1, len(free) + 1):
            for some in combinations(free, count):
                if sum(self.found[n].num_bytes for n in some) == num_bytes:
                    return some
        return ()

    def _apart(self, num_bytes: int, kernel: KernelLaunch, place: int) -> int:
        self.found.append(_Tracked(num_bytes, -1, kernel, place, place))
        return len(self.found) - 1

    def _last(self, num_bytes: int, last: Sequence[KernelLaunch], since: int) -> int:
        """The storage that goes on: the latest of its size that no weight's gradient is."""
        for number in range(len(self.found) - 1, OUTPUT_GRADIENT, -1):
            one = self.found[number]
            trains = one.kernel is not None and one.kernel.weight_gradient
            if one.num_bytes == num_bytes and one.op < 0 and one.made >= since and not trains:
                return number
        if not last:
            return -1
        launches = len(self.piece.forward) + (len(self.piece.backward) if since else 0)
        return self._apart(num_bytes, last[0], launches - 1)

    def _release_kept(self, forward: int) -> None:
        """Behind the last launch of its op's backward, or where that would stand.

        Logits behind whoever reads them last: where no copy was made, their gradient lies where they were.
        """
        ops = [op for op, _ in self.piece.origins.backward]
        for number, one in enumerate(self.found):
            if one.op < 0:
                continue
            behind = [j for j, op in enumerate(ops) if op >= one.op]
            read = one.released if number == self.logits else -1
            ends = self.ended.get(number, forward + (behind[-1] if behind else -1))
            one.released = max(one.made, read, ends)

    def _written(self, forward: int, handed_on: Iterable[int], output: int, gradient: int) -> PieceStorages:
        """Events in order: at each launch what it allocates, then what is released behind it."""
        at: dict[int, tuple[list[int], list[int]]] = {}
        trained = len(self.piece.backward) - 1
        for number, one in enumerate(self.found):
            if number > OUTPUT_GRADIENT:
                at.setdefault(one.made, ([], []))[0].append(number)
            if number not in handed_on and not (number == OUTPUT_GRADIENT and (output < 0 or trained < 0)):
                kept = one.op >= 0
                last = forward - 1 if not kept and one.made < forward else one.released
                released = max(one.released, 0) if number != INPUT or one.released >= 0 else last
                at.setdefault(min(max(released, one.made), forward + trained), ([], []))[1].append(number)
        events: dict[Pass, list[int]] = {"F": [], "B": [], "I": [], "W": []}
        of_loss: dict[Pass, int] = {}
        begins = next((k for k, one in enumerate(self.piece.forward) if one.module == LOSS), forward)
        loss = max((k for k, one in enumerate(self.piece.backward) if one.module == LOSS), default=-1)
        for place in sorted(at):
            if place >= begins and "F" not in of_loss:
                of_loss["F"] = len(events["F"])
            if place > forward + loss and "B" not in of_loss:
                of_loss |= {kind: len(own) for kind, own in events.items() if kind != "F"}
            made, gone = at[place]
            if place < forward:
                events["F"] += [*made, *(~number for number in gone)]
                continue
            trains = self._trains(place - forward)
            events["B"] += [*made, *(~number for number in gone)]
            events["W" if trains else "I"] += made
            for number in gone:
                events["W" if trains or self._late(number, forward) else "I"].append(~number)
        storages = tuple(
            Storage(
                one.num_bytes,
                one.kernel.name if one.kernel else ("input", "gradient of the output")[number],
                one.kernel.module if one.kernel else "",
                one.op >= 0,
                one.gradient,
            )
            for number, one in enumerate(self.found)
        )
        every: dict[Pass, tuple[int, ...]] = {kind: tuple(own) for kind, own in events.items()}
        return PieceStorages(storages, every, output, gradient, tuple(self.for_head), self.logits, of_loss)

    def _trains(self, position: int) -> bool:
        return self.piece.backward[position].weight_gradient

    def _late(self, number: int, forward: int) -> bool:
        """Whether a storage outlives the gradients of inputs: kept, or made by gradients of weights."""
        one = self.found[number]
        made_late = one.made >= forward and self._trains(one.made - forward) if one.kernel else False
        return one.op >= 0 or made_late


def _adds(kernel: KernelLaunch) -> bool:
    """Whether a product adds to a buffer of gradients, which it reads third.

    Shapes alone do not tell: there may be as many tokens as columns.
    """
    is_product = kernel.weight_gradient and kernel.op_class in _PRODUCTS
    return is_product and kernel.in_shapes[2:] == kernel.out_shapes


def _written(kernel: KernelLaunch, size_of: Callable[[str], int | None]) -> list[tuple[int, int]]:
    """(bytes, elements) of the storages that a launch allocates."""
    if kernel.buffered and kernel.collective:  # a product adds to its buffer, and makes a tensor
        return []
    if kernel.collective:
        if kernel.collective in _IN_PLACE:
            return []
        ways = (size_of(kernel.group) or 1) if kernel.collective == "reduce_scatter" else 1
        return [(kernel.num_bytes // ways, sum(map(math.prod, kernel.out_shapes)) // ways)]
    stem = kernel.name.partition(".")[0]
    in_place = (stem.endswith("_") and not stem.endswith("__")) or stem in _WRITES_OVER
    if in_place or _adds(kernel) or kernel.accumulates or not kernel.bytes_written or not kernel.out_shapes:
        return []
    elements = tuple(math.prod(shape) for shape in kernel.out_shapes)
    if kernel.made_bytes:
        return list(zip(kernel.made_bytes, elements, strict=True))
    return list(zip(_bytes_of(elements, kernel.bytes_written, kernel.dtype), elements, strict=True))


@lru_cache(maxsize=1 << 12)
def _bytes_of(elements: tuple[int, ...], total: int, dtype: str) -> tuple[int, ...]:
    """Bytes of each output: sizes of elements that add up to ``total``, the kernel's own where possible."""
    own = ELEMENT_BYTES.get(DTYPES.get(dtype, dtype), 2)
    sizes = sorted({1, 2, 4, 8, own}, key=lambda size: (size != own, size))
    if len(elements) <= 4:
        for tried in product(sizes, repeat=len(elements)):
            found = tuple(count * size for count, size in zip(elements, tried, strict=True))
            if sum(found) == total:
                return found
    shares = [total * count // max(1, sum(elements)) for count in elements]
    return (*shares[:-1], total - sum(shares[:-1]))
