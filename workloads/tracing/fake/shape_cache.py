"""Results of operators on shapes, worked out once per operator and shapes.

Torch's own cache of fake results spends most of a trace on its keys, which must also serve symbolic shapes,
subclasses and constants.  Here a call is looked up by shapes, strides, dtypes and plain arguments; whatever
else it involves goes torch's way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import empty
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_SEQUENCES = (list, tuple)
#: Torch's own, before a program's classes are looked after (:mod:`workloads.tracing.fake.parameters`).
_make_subclass = torch.Tensor._make_subclass

#: Tags of operators whose result depends on more than shapes.
_UNFIT = tuple(
    tag
    for name in ("dynamic_output_shape", "data_dependent_output", "inplace_view")
    if (tag := getattr(torch.Tag, name, None)) is not None
)

#: Operators that change a storage, or whose fake result depends on values or the device that is current.
_NEVER = frozenset(
    f"aten::{name}" for name in ("resize_", "set_", "is_pinned", "equal", "item", "_pack_padded_sequence")
)


#: Products whose first tensors a GPU wants of one type, which torch does not ask of shapes.
_OF_ONE_TYPE = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "mv", "addmv", "convolution"),
        *(f"_scaled_dot_product_{which}_attention" for which in ("flash", "efficient", "cudnn")),
    )
)


class _UnfitError(Exception):
    """The call cannot be looked up."""


class _New:
    """A tensor in a storage of its own."""

    __slots__ = ("device", "dtype", "shape", "stride")

    def __init__(self, tensor: FakeTensor) -> None:
        self.shape, self.stride = tuple(tensor.shape), tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.fake_device


class _Argument:
    """The tensor that was argument number ``index``, counted through nested lists."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def fits(func: Any, base: str) -> bool:
    """Whether calls of an operator may be looked up at all."""
    tags = getattr(func, "tags", ())
    return base.startswith("aten::") and base not in _NEVER and not any(tag in tags for tag in _UNFIT)


class ShapeCache:
    """Calls operators on fake tensors of one mode."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What ``func(*args, **kwargs)`` returns."""
        tensors: list[FakeTensor] = []
        try:
            key = (func, torch.get_default_dtype(), *_key(args, tensors), *_named(kwargs, tensors))
        except _UnfitError:
            return func(*args, **kwargs)
        if not tensors:
            return func(*args, **kwargs)
        recipe = self._known.get(key)
        if recipe is None:
            _check_types(func.name(), tensors[:3])
            result = func(*args, **kwargs)
            try:
                self._known[key] = _recipe(result, tensors, {_storage(tensor) for tensor in tensors})
            except _UnfitError:
                self._known[key] = _UnfitError
            return result
        if recipe is _UnfitError:
            return func(*args, **kwargs)
        return _make(recipe, tensors)


def _check_types(name: str, first: list[FakeTensor]) -> None:
    """RuntimeError where a real product would refuse tensors of several types."""
    name, _, overload = name.partition(".")
    if overload.startswith("dtype"):  # of results, and of what they are added to
        first = first[1:] if "add" in name else first[:2]
    types = {tensor.dtype: None for tensor in first}
    if name in _OF_ONE_TYPE and len(types) > 1:
        raise RuntimeError(f"{name} expects tensors of one dtype, but got {', '.join(map(str, types))}")


def view(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator that only views its arguments returns."""
    tensors: list[FakeTensor] = []
    try:
        _key(args, tensors)
        _named(kwargs, tensors)
    except _UnfitError:
        return func(*args, **kwargs)
    if len(tensors) != 1:
        return func(*args, **kwargs)
    (source,) = tensors
    mode = source.fake_mode
    with in_kernel_invocation_manager(mode):
        result = func(*args, **kwargs)
    if isinstance(result, torch.Tensor):
        return fake_of(mode, result, source.fake_device)
    return [fake_of(mode, one, source.fake_device) for one in result]


#: Attributes of a fake tensor as torch makes it, by mode and device.
_states: dict[tuple[Any, torch.device], dict[str, Any]] = {}


def fake_of(mode: Any, memory: torch.Tensor, device: torch.device) -> FakeTensor:
    """``FakeTensor(mode, memory, device)``, whose constructor costs more than all else, by copying."""
    state = _states.get((mode, device))
    if state is None:
        with torch._C._DisableTorchDispatch():
            model = FakeTensor(mode, empty(0, device="meta"), device)
        state = _states[mode, device] = dict(vars(model))
    made: FakeTensor = _make_subclass(
        FakeTensor, memory, False, dispatch_device=True, device_for_backend_keys=device
    )
    if mode._allow_unsafe_data_ptr_access:  # FSDP1 compares addresses
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
    else:
        torch._C._set_throw_on_mutable_data_ptr(made)
    made.__dict__.update(state)
    return made


def _key(value: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
    found: list[Any] = []
    for item in value:
        kind = type(item)
        if kind is FakeTensor:
            if item.constant is not None or item.layout is not torch.strided or item.dtype.is_complex:
                raise _UnfitError
            tensors.append(item)
            try:
                strides = item.stride()
            except TypeError:
                strides = _callable_stride(item)
            found.append((item.shape, strides, item.storage_offset(), item.dtype, item.fake_device))
        elif kind in _PLAIN:
            if kind is torch.device and item.index is None and item.type != "cpu":
                raise _UnfitError  # the current device
            found.append((kind, item))  # 1, 1.0 and True are equal
        elif kind in _SEQUENCES:
            found.append((kind, *_key(item, tensors)))
        else:
            raise _UnfitError
    return tuple(found)


def _callable_stride(tensor: FakeTensor) -> tuple[int, ...]:
    """Megatron of before 2021 marks a parameter by an attribute ``stride``, which hides the method of that
    name from what is written in Python: the attribute stays what it is, and gives strides when called.
    """
    hidden = tensor.__dict__["stride"]
    kind = type(hidden)
    shown = type(kind.__name__, (kind,), {"__call__": lambda _self: torch.Tensor.stride(tensor)})
    tensor.__dict__["stride"] = shown(hidden)
    return torch.Tensor.stride(tensor)


def _named(kwargs: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
    return (*kwargs, *_key(kwargs.values(), tensors)) if kwargs else ()


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _recipe(result: Any, tensors: list[FakeTensor], storages: set[int]) -> Any:
    kind = type(result)
    if kind is FakeTensor:
        for index, tensor in enumerate(tensors):
            if result is tensor:
                return _Argument(index)
        if not _stands_alone(result) or _storage(result) in storages:
            raise _UnfitError
        storages.add(_storage(result))
        return _New(result)
    if kind in _PLAIN:
        return result
    if kind in _SEQUENCES:
        return kind, [_recipe(item, tensors, storages) for item in result]
    raise _UnfitError


def _stands_alone(tensor: FakeTensor) -> bool:
    """Whether a tensor is all of its storage, and nothing else is to be known about it."""
    if tensor.constant is not None or tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    if tensor.dtype.is_complex or tensor.storage_offset():
        return False
    reach = 1 + sum(
        (length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    extent = reach * tensor.element_size() if tensor.numel() else 0
    return bool(tensor.untyped_storage().nbytes() == extent)


def _make(recipe: Any, tensors: list[FakeTensor]) -> Any:
    kind = type(recipe)
    if kind is _New:
        with torch._C._DisableTorchDispatch():
            memory = torch.empty_strided(recipe.shape, recipe.stride, dtype=recipe.dtype, device="meta")
        return fake_of(tensors[0].fake_mode, memory, recipe.device)
    if kind is _Argument:
        return tensors[recipe.index]
    if kind is tuple:
        sequence, items = recipe
        return sequence(_make(item, tensors) for item in items)
    return recipe
