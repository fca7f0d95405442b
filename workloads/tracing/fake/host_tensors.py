"""Tensors of the host: what a program computes on the CPU runs as it is.

Note [Tensors of the host]
    An operator that is given no tensor of the device, and asked for none, runs on real memory with torch's
    own kernels.  Too large for that are results above :data:`MOST_BYTES`, and more than :data:`MOST_FLOATS`
    floats that come from nothing (``empty``, ``zeros``, ``randn``: weights, pictures, made-up data): these
    stay shapes, as on the device.

    Parameters are shapes from the start, since a module that moves to the device keeps its Parameter objects;
    small ones remember their values.  A tensor without data that the host asks for its values answers what is
    known, else what is assumed (:mod:`workloads.tracing.fake.host_values`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import empty
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from workloads.tracing.fake import known_values
from workloads.tracing.fake.aten_ops import AtenOp, tensors_in
from workloads.tracing.fake.host_values import read_scalar
from workloads.tracing.fake.known_values import values_of
from workloads.tracing.fake.shape_cache import fake_of

#: Bytes above which a result of the host stays a shape.
MOST_BYTES = 64 << 20
#: Floats above which what a program makes from nothing stays a shape.
MOST_FLOATS = 1 << 16

#: What classes of tensors have that leave dispatch to torch.
_PLAIN: tuple[Any, ...] = (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)

#: Makes the shapes of the rank that runs; None where nothing is traced.
mode: FakeTensorMode | None = None

#: Operators that make from nothing what programs go on to reckon with.
_TELLING = ("aten::eye", "aten::randperm", "aten::arange", "aten::linspace")
#: Operators that make tensors from nothing -> position of their shape.
_MADE = {
    f"aten::{name}": position
    for position, names in (
        (0, ("empty", "empty_strided", "zeros", "ones", "full", "rand", "randn")),
        (0, ("eye", "randperm", "arange")),
        (1, ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "randint", "linspace")),
    )
    for name in names
}
_LIKE = frozenset(
    f"aten::{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
)
_INTEGERS = frozenset({"aten::randperm", "aten::arange", "aten::randint", "aten::randint_like"})


def run(func: Any, operator: AtenOp, args: Any, kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives on the host's own tensors; NotImplemented when the device has a part in it, or when
    it is too large.
    """
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return NotImplemented
    tensors = tensors_in(list(kwargs.values()), tensors_in(args, []))
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return NotImplemented
    if not operator.writes and not operator.is_view and _too_large(operator, args, kwargs, tensors):
        return NotImplemented
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": None}
    with torch._C._DisableTorchDispatch():
        return func(*args, **kwargs)


def as_shape(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the host as a shape that shares the values."""
    if isinstance(tensor, FakeTensor) or mode is None or tensor.device.type != "cpu":
        return tensor
    if tensor.layout is not torch.strided or type(tensor).__torch_dispatch__ not in _PLAIN:
        return tensor
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        elements = -(-tensor.untyped_storage().nbytes() // tensor.element_size())
        whole = empty(elements, dtype=tensor.dtype, device="meta")
        memory = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        shape = fake_of(mode, memory, tensor.device)
        known_values.remember(shape, tensor, shared=True)
    return shape


def shapes_in(value: Any) -> Any:
    """Arguments of a call with every tensor of the host as a shape."""
    if isinstance(value, torch.Tensor):
        return as_shape(value)
    if isinstance(value, list | tuple):
        return type(value)(map(shapes_in, value))
    return value


def real_result(tensor: Any) -> Any:
    """A fresh result of the host whose values are known is the real tensor; anything else as it is."""
    if isinstance(tensor, list | tuple):
        return type(tensor)(map(real_result, tensor))
    if isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cpu":
        found = values_of(tensor)
        known_values.rely_on(tensor)
        return tensor if found is None else found
    return tensor


def written(
    operator: AtenOp, given: Any, named: dict[str, Any], args: Any, kwargs: dict[str, Any], result: Any
) -> Any:
    """The result of a call that was given shapes (``args``, ``kwargs``) for tensors of the host and may have
    written them: those tensors themselves stand in it, and hold what is assumed where that is not known.
    """
    before = tensors_in(list(named.values()), tensors_in(given, []))
    after = tensors_in(list(kwargs.values()), tensors_in(args, []))
    own = {id(shape): tensor for tensor, shape in zip(before, after, strict=True) if tensor is not shape}
    for shape in operator.outputs(args, kwargs, None):
        if id(shape) in own and values_of(shape) is None:
            assume(own[id(shape)])
    return _replaced(result, own)


def assume(tensor: torch.Tensor) -> None:
    """``tensor`` was written with what is not known; one of the host holds what is assumed from now on."""
    shape = as_shape(tensor)
    known_values.forget([shape])
    if shape is not tensor and tensor.numel():
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            tensor.fill_(read_scalar(shape))


def _replaced(result: Any, own: dict[int, torch.Tensor]) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_replaced(one, own) for one in result)
    return own.get(id(result), result)


def _too_large(operator: AtenOp, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> bool:
    base = operator.base
    if base in _MADE or base in _LIKE:
        num = tensors[0].numel() if base in _LIKE else _num_made(base, args)
        dtype = kwargs.get("dtype") or (tensors[0].dtype if tensors else None)
        if dtype is None:
            whole = base in _INTEGERS or (base == "aten::full" and not isinstance(args[1], float))
            dtype = torch.int64 if whole else torch.get_default_dtype()
        if base not in _TELLING and (dtype.is_floating_point or dtype.is_complex):
            return num > MOST_FLOATS
        return bool(num * dtype.itemsize > MOST_BYTES)
    return any(tensor.numel() * tensor.element_size() > MOST_BYTES for tensor in tensors)


def _num_made(base: str, args: Any) -> int:
    """Elements that a call makes of nothing, as far as its arguments say."""
    given = list(args[_MADE[base] :])
    if base == "aten::arange":
        numbers = [float(one) for one in given]
        start, end, step = (0.0, numbers[0], 1.0) if len(numbers) == 1 else (*numbers, 1.0)[:3]
        return max(0, math.ceil((end - start) / step))
    if base == "aten::linspace":
        return int(args[2])
    if base == "aten::eye":
        return int(math.prod(given if len(given) == 2 else given * 2))
    if base == "aten::randint":
        given = [one for one in args if isinstance(one, list | tuple)]
    first = given[0] if given else 0
    return math.prod(first) if isinstance(first, list | tuple) else int(first)
