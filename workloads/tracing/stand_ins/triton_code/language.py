"""``triton.language`` on blocks without numbers: what is loaded, stored and multiplied is counted."""

# ruff: noqa: D102, ARG002  functions of Triton, with its arguments

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workloads.tracing.stand_ins.triton_code.blocks import (
    Dtype,
    NotKnownError,
    Pointer,
    Shape,
    TritonBlock,
    as_block,
    combined,
)

_DTYPE = re.compile(r"(u?int|b?float|float8e\w+?|fp|bf|float)(\d+).*|void|bfloat16|int1|pi32_t")
#: Iterations of a loop, and operations of all programs together, that are run; the rest is scaled.
MOST_ITERATIONS, MOST_OPERATIONS = 32, 6000
#: Functions of numbers that are worked out where their arguments are known.
_KNOWN: dict[str, Callable[..., Any]] = {
    "minimum": np.minimum,
    "maximum": np.maximum,
    "where": np.where,
    "abs": np.abs,
    "cdiv": lambda one, other: -(-one // other),
    "clamp": np.clip,
    "fdiv": np.true_divide,
    "div_rn": np.true_divide,
    "exp": np.exp,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
}
_REDUCING = frozenset({"sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum", "reduce_or"})
_SAME = frozenset({"multiple_of", "max_contiguous", "max_constancy", "assume", "cumsum", "cumprod", "sort"})
_SAME |= {"associative_scan", "flip", "softmax", "sigmoid", "zeros_like", "full_like"}
_SILENT = frozenset({"static_assert", "device_assert", "static_print", "device_print", "debug_barrier"})


class TooLongError(Exception):
    """Enough has been run."""


class Language:
    """Stands for ``triton.language`` and its modules while programs run; see the functions of those names."""

    def __init__(self, load_known: Callable[[int, Any], Any]) -> None:
        self._load_known = load_known
        self.place: Shape = (0, 0, 0)
        self.grid: Shape = (1, 1, 1)
        self.read: Counter[int] = Counter()
        self.written: Counter[int] = Counter()
        self.flops = 0.0
        #: Lengths of loops that were not known.
        self.guessed = False
        self._weight = 1.0
        self._operations = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _DTYPE.fullmatch(name):
            return Dtype(name)
        if name in ("math", "extra", "cuda", "libdevice", "standard", "core", "semantic", "target_info"):
            return self
        if name in _REDUCING:
            return self._reduce
        if name in _SAME:
            return lambda one, *_, **__: one
        if name in _SILENT:
            return lambda *_, **__: None
        if name.startswith("atomic_"):
            return self._atomic
        return lambda *args, **kwargs: self._elementwise(name, args, kwargs)

    # Programs and ranges.

    def program_id(self, axis: Any) -> TritonBlock:
        return as_block(self.place[int(axis)])

    def num_programs(self, axis: Any) -> TritonBlock:
        return as_block(self.grid[int(axis)])

    def constexpr(self, value: Any) -> Any:
        return value

    def pointer_type(self, element: Any, *_: Any) -> Any:
        return element

    def range(self, *bounds: Any, **__: Any) -> Iterator[TritonBlock]:
        """Evenly spaced iterations of a long loop stand for all of them."""
        try:
            whole = builtins.range(*map(int, bounds))
        except NotKnownError:
            self.guessed = True
            whole = builtins.range(1)
        count = min(len(whole), MOST_ITERATIONS)
        outer = self._weight
        self._weight = outer * len(whole) / max(1, count)
        try:
            for number in builtins.range(count):
                yield as_block(whole[number * len(whole) // count])
        finally:
            self._weight = outer

    static_range = range

    # Memory.

    def load(self, pointer: Any, mask: Any = None, other: Any = 0, *_: Any, **__: Any) -> TritonBlock:
        if isinstance(pointer, _Tile):
            return pointer.load(None)
        if not isinstance(pointer, Pointer):  # a pointer that was loaded itself
            return TritonBlock(as_block(pointer).shape)
        elements = self._masked(pointer.shape, mask)
        self._count(self.read, pointer.tensor, elements)
        known, filled = None, as_block(True if mask is None else mask)
        if pointer.at.values is not None and filled.values is not None:
            known = self._load_known(pointer.tensor, pointer.at.values)
        if known is not None:
            known = np.where(filled.values, known, as_block(other or 0).values)
        return TritonBlock(pointer.shape, known, pointer.dtype)

    def store(self, pointer: Any, value: Any, mask: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(pointer, _Tile):
            pointer.store(None, value)
        elif isinstance(pointer, Pointer):
            at = combined(np.add, pointer.at, as_block(value)) if pointer.shape == () else pointer.at
            self._count(self.written, pointer.tensor, self._masked(at.shape, mask))

    def _atomic(
        self, pointer: Any, value: Any = None, *others: Any, mask: Any = None, **__: Any
    ) -> TritonBlock:
        if isinstance(pointer, Pointer):
            given = next((one for one in others if isinstance(one, TritonBlock)), mask)
            elements = self._masked(pointer.shape, given)
            self._count(self.read, pointer.tensor, elements)
            self._count(self.written, pointer.tensor, elements)
            return TritonBlock(pointer.shape, None, pointer.dtype, presumed=False)
        return TritonBlock(as_block(pointer).shape)

    def make_block_ptr(
        self, base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any = None
    ) -> _Tile:
        return _Tile(self, base, shape, block_shape, tuple(map(as_block, offsets)))

    def make_tensor_descriptor(
        self, base: Any, shape: Any, strides: Any, block_shape: Any, *_: Any, **__: Any
    ) -> _Tile:
        return _Tile(self, base, shape, block_shape, (as_block(0),) * len(block_shape))

    def advance(self, tile: _Tile, offsets: Sequence[Any]) -> _Tile:
        moved = tuple(one + other for one, other in zip(tile.offsets, offsets, strict=True))
        return _Tile(self, tile.base, tile.bounds, tile.shape, moved)

    def _count(self, counter: Counter[int], tensor: int, elements: int) -> None:
        self._operate()
        counter[tensor] += elements * self._weight  # type: ignore[assignment]

    def _masked(self, shape: Shape, mask: Any) -> int:
        if mask is None or mask is True:
            return TritonBlock(shape).numel
        known = as_block(mask)
        shape = np.broadcast_shapes(shape, known.shape)
        if known.values is None:
            return TritonBlock(shape).numel
        return int(np.count_nonzero(np.broadcast_to(known.values, shape)))

    def _operate(self) -> None:
        self._operations += 1
        if self._operations > MOST_OPERATIONS:
            raise TooLongError

    # Shapes.

    def arange(self, start: Any, end: Any) -> TritonBlock:
        values = np.arange(int(start), int(end), dtype=np.int64)
        return TritonBlock(values.shape, values, Dtype("int32"))

    def full(self, shape: Any, value: Any, dtype: Any = None, *_: Any, **__: Any) -> TritonBlock:
        size = _shape(shape)
        number = as_block(value)
        kind = dtype if isinstance(dtype, Dtype) else number.dtype
        values = number.values
        if values is not None:
            values = np.broadcast_to(values.astype(np.int64) if "int" in kind.name else values, size)
        return TritonBlock(size, values, kind)

    def zeros(self, shape: Any, dtype: Any = None, *_: Any, **__: Any) -> TritonBlock:
        return self.full(shape, 0, dtype)

    def dot(self, one: TritonBlock, other: TritonBlock, acc: Any = None, *_: Any, **__: Any) -> TritonBlock:
        self._operate()
        *batch, rows, inner = one.shape
        columns = other.shape[-1]
        self.flops += 2 * np.prod(batch, dtype=np.int64) * rows * inner * columns * self._weight
        return TritonBlock((*batch, rows, columns))

    def dot_scaled(
        self, one: TritonBlock, _scale: Any, _format: Any, other: TritonBlock, *_: Any, **__: Any
    ) -> TritonBlock:
        return self.dot(one, other)

    def _reduce(
        self,
        block: Any,
        axis: Any = None,
        *_: Any,
        keep_dims: bool = False,
        return_indices: bool = False,
        **__: Any,
    ) -> Any:
        if isinstance(block, tuple):
            return tuple(self._reduce(one, axis, keep_dims=keep_dims) for one in block)
        known = as_block(block)
        if isinstance(axis, TritonBlock | int) and not isinstance(axis, bool):
            at = int(axis) % max(1, len(known.shape))
            rest = [1] if keep_dims else []
            shape = (*known.shape[:at], *rest, *known.shape[at + 1 :])
        else:
            shape = (1,) * len(known.shape) if keep_dims else ()
        return (TritonBlock(shape), TritonBlock(shape)) if return_indices else TritonBlock(shape)

    def trans(self, block: TritonBlock, *order: Any) -> TritonBlock:
        places = _shape(order[0] if len(order) == 1 else order) or tuple(reversed(range(len(block.shape))))
        known = None if block.values is None else np.transpose(block.values, places)
        return TritonBlock(tuple(block.shape[one] for one in places), known, block.dtype)

    permute = trans

    def reshape(self, block: TritonBlock, *shape: Any, **__: Any) -> TritonBlock:
        size = _shape(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        known = None if block.values is None else block.values.reshape(size)
        return TritonBlock(size, known, block.dtype)

    view = reshape

    def ravel(self, block: TritonBlock, *_: Any, **__: Any) -> TritonBlock:
        return self.reshape(block, (block.numel,))

    def expand_dims(self, block: TritonBlock, axis: Any) -> TritonBlock:
        shape = np.expand_dims(np.broadcast_to(np.int8(0), block.shape), int(axis)).shape
        return self.reshape(block, shape)

    def broadcast_to(self, block: Any, *shape: Any) -> TritonBlock:
        size = _shape(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        known = as_block(block)
        return TritonBlock(
            size, None if known.values is None else np.broadcast_to(known.values, size), known.dtype
        )

    def broadcast(self, one: Any, other: Any) -> tuple[TritonBlock, TritonBlock]:
        size = np.broadcast_shapes(as_block(one).shape, as_block(other).shape)
        return self.broadcast_to(one, size), self.broadcast_to(other, size)

    def transpose(self, block: TritonBlock, one: Any, other: Any) -> TritonBlock:
        places = list(range(len(block.shape)))
        places[int(one)], places[int(other)] = places[int(other)], places[int(one)]
        return self.trans(block, places)

    def cat(self, one: TritonBlock, other: TritonBlock, *_: Any, **__: Any) -> TritonBlock:
        return TritonBlock((one.shape[0] + other.shape[0], *one.shape[1:]), None, one.dtype)

    def join(self, one: Any, other: Any) -> TritonBlock:
        return TritonBlock((*np.broadcast_shapes(as_block(one).shape, as_block(other).shape), 2))

    def interleave(self, one: TritonBlock, _other: TritonBlock) -> TritonBlock:
        return TritonBlock((*one.shape[:-1], 2 * one.shape[-1]), None, one.dtype)

    def split(self, block: TritonBlock) -> tuple[TritonBlock, TritonBlock]:
        half = TritonBlock(block.shape[:-1], None, block.dtype)
        return half, half

    def gather(self, source: TritonBlock, index: TritonBlock, *_: Any, **__: Any) -> TritonBlock:
        return TritonBlock(index.shape, None, source.dtype)

    def histogram(self, _block: TritonBlock, bins: Any, *_: Any, **__: Any) -> TritonBlock:
        return TritonBlock((int(bins),))

    def swizzle2d(self, one: Any, other: Any, *_: Any) -> tuple[Any, Any]:
        return one, other

    def inline_asm_elementwise(
        self,
        asm: str,
        constraints: str,
        args: Sequence[Any],
        dtype: Any = None,
        *_: Any,
        **__: Any,
    ) -> Any:
        made = self._elementwise("asm", tuple(args), {})
        return (made,) * len(dtype) if isinstance(dtype, tuple | list) else made

    def _elementwise(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._operate()
        if name == "where" and isinstance(args[0], bool):  # of constants
            return args[1] if args[0] else args[2]
        blocks = [
            as_block(one)
            for one in (*args, *kwargs.values())
            if isinstance(one, TritonBlock | Pointer | int | float) and not isinstance(one, bool)
        ]
        if name == "where" and isinstance(args[1], Pointer):
            return args[1]
        shape = np.broadcast_shapes(*(one.shape for one in blocks))
        if name in _KNOWN and all(one.values is not None for one in blocks):
            with np.errstate(all="ignore"):
                return TritonBlock(shape, _KNOWN[name](*(one.values for one in blocks)), blocks[0].dtype)
        return TritonBlock(shape, None, blocks[-1].dtype if blocks else Dtype("float32"))


class _Tile:
    """A block pointer or tensor descriptor: ``shape`` elements at ``offsets`` of a tensor of ``bounds``."""

    def __init__(
        self, language: Language, base: Any, bounds: Any, shape: Any, offsets: tuple[TritonBlock, ...]
    ) -> None:
        self.language, self.base, self.bounds, self.shape = language, base, tuple(bounds), _shape(shape)
        self.offsets = offsets

    @property
    def dtype(self) -> Dtype:
        """Of the elements."""
        kind: Dtype = self.base.dtype
        return kind

    def load(self, offsets: Any = None, **__: Any) -> TritonBlock:
        """Read the tile, as far as it lies in the tensor."""
        self.language._count(self.language.read, self.base.tensor, self._inside(offsets))
        return TritonBlock(self.shape, None, self.dtype)

    def store(self, offsets: Any, value: Any = None, **__: Any) -> None:
        """Write it."""
        self.language._count(self.language.written, self.base.tensor, self._inside(offsets))

    atomic_add = store

    def _inside(self, offsets: Any) -> int:
        count = 1
        places = self.offsets if offsets is None else tuple(map(as_block, offsets))
        for low, size, bound in zip(places, self.shape, self.bounds, strict=True):
            end = as_block(bound).values
            if low.values is None or end is None:
                count *= size
            else:
                count *= max(0, min(size, int(end) - int(low.values)))
        return count


def _shape(sizes: Any) -> Shape:
    if isinstance(sizes, TritonBlock | int):
        return (int(sizes),)
    return tuple(int(one) for one in sizes)
