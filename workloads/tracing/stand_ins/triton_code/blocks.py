"""Values inside a Triton kernel: blocks of which the shape is known, and the numbers where they follow from
arguments; pointers into tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Shape = tuple[int, ...]


class NotKnownError(Exception):
    """A number is needed that only a GPU would know."""


class Dtype:
    """A type of elements, of which only the name is used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dtype) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def element_ty(self) -> Dtype:
        """What a pointer to such elements points to."""
        return self

    scalar = element_ty

    @property
    def primitive_bitwidth(self) -> int:
        """Bits of an element."""
        digits = "".join(filter(str.isdigit, self.name.partition("e")[0])) or "1"
        return 16 if self.name == "bfloat16" else int(digits)

    def __getattr__(self, name: str) -> Callable[[], bool]:
        if name.startswith("is_"):  # is_fp16(), is_floating()
            kind = name.removeprefix("is_").replace("fp", "float").replace("bf", "bfloat")
            return lambda: kind in self.name or (kind == "floating" and "float" in self.name)
        raise AttributeError(name)

    def __call__(self, value: Any) -> Any:
        """A cast."""
        return value


UNKNOWN_DTYPE = Dtype("float32")


def _with_operators(cls: Any) -> Any:
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "and_", "or_", "xor", "lshift", "rshift"):
        function = getattr(operator, name)
        method = name.rstrip("_")
        setattr(cls, f"__{method}__", lambda self, other, f=function: combined(f, self, other))
        setattr(cls, f"__r{method}__", lambda self, other, f=function: combined(f, other, self))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        function = getattr(operator, name)
        setattr(cls, f"__{name}__", lambda self, other, f=function: combined(f, self, other))
    return cls


@_with_operators
class TritonBlock:
    """``values``: of all elements, None: not known.  ``presumed``: of a condition that is not known."""

    __hash__ = object.__hash__
    #: Gives functions of the language that are called as methods: ``block.sum(0)``.
    language: Any = None

    def __init__(
        self, shape: Shape, values: Any = None, dtype: Dtype = UNKNOWN_DTYPE, presumed: bool = True
    ) -> None:
        self.shape, self.values, self.dtype, self.presumed = tuple(shape), values, dtype, presumed

    @property
    def numel(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def type(self) -> Dtype:
        """As ``dtype``."""
        return self.dtype

    def __getitem__(self, index: Any) -> TritonBlock:
        shape = np.broadcast_to(np.int8(0), self.shape)[index].shape
        return TritonBlock(shape, None if self.values is None else self.values[index], self.dtype)

    def __neg__(self) -> TritonBlock:
        return TritonBlock(self.shape, None if self.values is None else -self.values, self.dtype)

    def __invert__(self) -> TritonBlock:
        known = None if self.values is None else ~self.values
        return TritonBlock(self.shape, known, self.dtype, not self.presumed)

    def __bool__(self) -> bool:
        return self.presumed if self.values is None else bool(np.all(self.values))

    def __index__(self) -> int:
        if self.values is None:
            raise NotKnownError
        return int(self.values)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__()) if self.values is None else float(self.values)

    def to(self, dtype: Any, *_: Any, **__: Any) -> TritonBlock:
        """A cast keeps what is known of numbers, but for floats that become integers."""
        kept = dtype if isinstance(dtype, Dtype) else self.dtype
        return TritonBlock(self.shape, self.values, kept, self.presumed)

    cast = to

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or TritonBlock.language is None:
            raise AttributeError(name)
        if name == "T":
            return TritonBlock.language.trans(self)
        function = getattr(TritonBlock.language, name)
        return lambda *args, **kwargs: function(self, *args, **kwargs)


@_with_operators
class Pointer:
    """Pointers to elements of argument number ``tensor`` (-1: of what is not known), ``at`` offsets."""

    __hash__ = object.__hash__

    def __init__(self, tensor: int, at: TritonBlock, dtype: Dtype) -> None:
        self.tensor, self.at, self.dtype = tensor, at, dtype

    @property
    def shape(self) -> Shape:
        """Of the block of pointers."""
        return self.at.shape

    @property
    def type(self) -> Dtype:
        """Of the elements."""
        return self.dtype

    def __getitem__(self, index: Any) -> Pointer:
        return Pointer(self.tensor, self.at[index], self.dtype)

    def to(self, *_: Any, **__: Any) -> Pointer:
        """A cast to other elements counts as no cast."""
        return self

    cast = to


def combined(function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """``function`` of two operands, element by element."""
    if isinstance(one, Pointer) or isinstance(other, Pointer):
        pointer, shift = (one, other) if isinstance(one, Pointer) else (other, one)
        if isinstance(shift, Pointer):
            return TritonBlock(np.broadcast_shapes(one.shape, other.shape))
        if function in (operator.add, operator.sub):
            return Pointer(pointer.tensor, combined(function, pointer.at, shift), pointer.dtype)
        return function in (operator.ne, operator.gt)  # not null
    left, right = as_block(one), as_block(other)
    shape = np.broadcast_shapes(left.shape, right.shape)
    dtype = left.dtype if isinstance(one, TritonBlock) else right.dtype
    if left.values is None or right.values is None:
        return TritonBlock(shape, None, dtype, function is not operator.eq)
    with np.errstate(all="ignore"):
        return TritonBlock(shape, function(left.values, right.values), dtype)


class _Whole(int):
    """A number in a kernel's code, which is a tensor once it has a name."""

    def to(self, *args: Any, **options: Any) -> TritonBlock:
        """A cast."""
        return as_block(int(self)).to(*args, **options)

    cast = to


class _Real(float):
    """As :class:`_Whole`."""

    def to(self, *args: Any, **options: Any) -> TritonBlock:
        """A cast."""
        return as_block(float(self)).to(*args, **options)

    cast = to


def as_literal(value: Any) -> Any:
    """A constant of a kernel's code as the kernel sees it."""
    return {int: _Whole, float: _Real}.get(type(value), lambda one: one)(value)


def as_block(value: Any) -> TritonBlock:
    """A number, a pointer's offsets, or a block as it is."""
    if isinstance(value, TritonBlock):
        return value
    if isinstance(value, Pointer):
        return TritonBlock(value.shape)
    number = np.asarray(value)
    if number.dtype == object:
        raise NotKnownError
    whole = number.dtype.kind in "iub"
    return TritonBlock(number.shape, number, Dtype("int32") if whole else UNKNOWN_DTYPE)
