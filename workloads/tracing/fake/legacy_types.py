"""``torch.cuda.FloatTensor`` and its kin: types that name a device with a dtype, from before torch 0.4."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import empty

_DTYPES = {
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Double": torch.float64,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
_PREFIX = "torch.cuda."


class _OfItsDevice(type):
    """``isinstance(tensor, torch.cuda.FloatTensor)`` asks for the device and the dtype."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def install() -> None:
    """Put the types where torch has them, and make known what takes one, once per process."""
    for name, dtype in _DTYPES.items():
        setattr(torch.cuda, f"{name}Tensor", _type_of(f"{name}Tensor", dtype))
    cast: Any = _knowing_casts(torch.Tensor.type)
    default: Any = _knowing_defaults(torch.set_default_tensor_type)
    torch.Tensor.type = cast  # type: ignore[method-assign]
    torch.set_default_tensor_type = default


def _type_of(name: str, dtype: torch.dtype) -> type:
    def made(_cls: type, *args: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.as_tensor(args[0], dtype=dtype, device="cuda")
        return empty(*args, dtype=dtype, device="cuda")

    return _OfItsDevice(name, (), {"__new__": made, "__module__": "torch.cuda", "dtype": dtype})


def _named(kind: Any) -> Any:
    """The type that a string of this kind names."""
    if isinstance(kind, str) and kind.startswith(_PREFIX):
        return getattr(torch.cuda, kind.removeprefix(_PREFIX), kind)
    return kind


def _knowing_casts(cast: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(cast)
    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        named = _named(dtype)
        if isinstance(named, _OfItsDevice):
            return self.to("cuda", named.dtype)
        return cast(self, named, *args, **kwargs)

    return type_


def _knowing_defaults(choose: Callable[..., None]) -> Callable[..., None]:
    """What makes tensors without being told a device makes them on the GPU, ``torch.Tensor(...)`` too."""
    kind: Any = torch.Tensor
    on_host = kind.__new__

    def on_gpu(cls: type, *args: Any, **kwargs: Any) -> Any:
        made = on_host(cls, *args, **kwargs)
        return made.cuda() if cls is torch.Tensor else made

    @functools.wraps(choose)
    def set_default_tensor_type(t: Any, /) -> None:
        named = _named(t)
        if isinstance(named, _OfItsDevice):
            torch.set_default_dtype(named.dtype)
            torch.set_default_device("cuda")
            kind.__new__ = on_gpu
        else:
            choose(named)
            torch.set_default_device(None)
            kind.__new__ = on_host

    return set_default_tensor_type
