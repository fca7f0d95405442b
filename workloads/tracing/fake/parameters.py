"""Parameters: shapes that stay the same objects while they move, are copied and saved."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from workloads.tracing.fake import host_tensors
from workloads.tracing.fake.aten_ops import tensors_in
from workloads.tracing.fake.host_tensors import as_shape
from workloads.tracing.fake.host_values import without_modes
from workloads.tracing.fake.known_values import remember, values_of
from workloads.tracing.fake.shape_cache import fake_of


def install() -> None:
    """Patch ``Parameter``, moves, copies and pickling of tensors, once per process."""
    _patch_parameter()
    _patch_shape_class()
    _patch_what_hangs_on_shapes()
    _patch_subclasses()
    _patch_data()
    _patch_module_moves()
    shape: Any = FakeTensor
    shape.__deepcopy__ = _copied
    shape.__reduce_ex__ = lambda self, _protocol: (rebuilt, _parts(self))
    tensor: Any = torch.Tensor
    tensor.__reduce_ex__ = without_modes(tensor.__reduce_ex__)  # under a fake mode torch leaves values out
    torch.serialization.add_safe_globals([rebuilt])


def _patch_parameter() -> None:
    parameter: Any = torch.nn.Parameter
    original = parameter.__new__

    @functools.wraps(original)
    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor:
            data = as_shape(data)
        made = original(cls, data, requires_grad)
        if isinstance(made, FakeTensor) and cls is not made.__class__ and _of_a_program(cls):
            made.__class__ = _shape_class(cls)
        return made

    parameter.__new__ = new
    meta: Any = type(parameter)

    def call(cls: Any, *args: Any, **named: Any) -> Any:
        """``Own(data, **vars(parameter))``: what a shape has beside is not the program's."""
        if "fake_mode" in named:
            shape = FakeTensor.__annotations__
            named = {name: one for name, one in named.items() if name not in shape and name[0] != "_"}
        return type.__call__(cls, *args, **named)

    meta.__call__ = call


def _patch_shape_class() -> None:
    """``type(parameter)(data, **vars(parameter))`` makes a parameter, also where the parameter is a shape."""
    shape: Any = FakeTensor
    original = shape.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            return torch.nn.Parameter(args[0], kwargs.get("requires_grad", True))
        return original(cls, *args, **kwargs)

    shape.__new__ = staticmethod(new)


def _patch_what_hangs_on_shapes() -> None:
    """``tensor.__dict__ = other.__dict__`` hands on what a program has hung on ``other``: classes of pictures
    keep their names and origins so.  What makes a tensor a shape stays its own.
    """
    attributes: Any = torch.Tensor.__dict__["__dict__"]

    swap = torch.utils.swap_tensors
    swapping: list[bool] = []

    def hang(self: FakeTensor, given: dict[str, Any]) -> None:
        if swapping:
            attributes.__set__(self, given)
            return
        kept = attributes.__get__(self)
        found = {name: one for name, one in given.items() if not _of_shapes(name)}
        found.update((name, one) for name, one in kept.items() if _of_shapes(name))
        kept.clear()
        kept.update(found)

    def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
        swapping.append(True)
        try:
            swap(one, other)  # type: ignore[no-untyped-call]
        finally:
            swapping.pop()

    torch.utils.swap_tensors = swap_tensors

    class Shape(torch.Tensor):
        __dict__ = property(attributes.__get__, hang)

    FakeTensor.__bases__ = (Shape,)  # a class that exists takes no ``__dict__`` of its own
    mode: Any = FakeTensorMode
    mode.__deepcopy__ = lambda self, _memo: self  # what hangs on a tensor may be copied with all


def _of_shapes(name: str) -> bool:
    """Whether torch hangs this on a tensor for being a shape."""
    return name in FakeTensor.__annotations__ or name == "fake_device" or "_memo" in name


def _patch_subclasses() -> None:
    """A program's class of tensors (pictures, boxes), without data, is a class of shapes as well."""
    tensor: Any = torch.Tensor
    original = tensor.as_subclass

    def as_subclass(self: torch.Tensor, cls: Any) -> Any:
        if not isinstance(self, FakeTensor) or not (cls is torch.Tensor or _of_a_program(cls)):
            return original(self, cls)
        with torch._C.DisableTorchFunctionSubclass():
            made: Any = self.view_as(self)
        if cls is not torch.Tensor:
            made.__class__ = cls if issubclass(cls, FakeTensor) else _shape_class(cls)
        return made

    tensor.as_subclass = functools.wraps(original)(as_subclass)
    make = tensor._make_subclass

    def make_subclass(cls: Any, data: torch.Tensor, *args: Any, **named: Any) -> Any:
        if type(data) is torch.Tensor and issubclass(cls, torch.nn.Parameter) and _of_a_program(cls):
            data = as_shape(data)
        if not isinstance(data, FakeTensor) or not (_of_a_program(cls) or issubclass(cls, FakeTensor)):
            return make(cls, data, *args, **named)
        made: Any = data.detach().requires_grad_(bool(args and args[0]) or named.get("require_grad", False))
        made.__class__ = cls if issubclass(cls, FakeTensor) else _shape_class(cls)
        if issubclass(cls, torch.nn.Parameter):
            made._is_param = True
        return made

    tensor._make_subclass = staticmethod(functools.wraps(make)(make_subclass))


def _of_a_program(cls: type) -> bool:
    """Whether torch does not know this class: its own parameters are told by marks."""
    return not cls.__module__.startswith("torch.")


@functools.cache
def _shape_class(cls: Any) -> Any:
    """A program's class of parameters or tensors, without data: torch would make a plain shape of one."""
    meta: Any = type(FakeTensor)
    say: Any = torch.Tensor.__torch_function__  # shapes have none, which says of what class results are
    results = meta("Results", (FakeTensor,), {})
    results.__torch_function__ = classmethod(say.__func__)
    attributes = FakeTensor.__base__.__dict__["__dict__"]  # a class beside, of no tensors, has its own
    made = type(cls)(cls.__name__, (cls, results), {"__module__": cls.__module__, "__dict__": attributes})
    own = cls.__torch_function__
    made.__torch_function__ = classmethod(own.__func__) if hasattr(own, "__func__") else own
    return made


@contextlib.contextmanager
def as_plain_shapes(values: Any) -> Iterator[None]:
    """Below torch's dispatcher no program's class is asked, though shapes are worked out by methods."""
    kinds = [(one, type(one)) for one in tensors_in(values, [])]
    own = [(one, kind) for one, kind in kinds if kind is not FakeTensor and issubclass(kind, FakeTensor)]
    for tensor, _ in own:
        tensor.__class__ = FakeTensor
    try:
        yield
    finally:
        for tensor, kind in own:
            tensor.__class__ = kind


def _patch_data() -> None:
    """``parameter.data = other`` gives it the memory of ``other``, not the device noted beside; a tensor of
    the host becomes a shape when that is what it gets.
    """
    tensor_data: Any = torch.Tensor.data

    def set_shape(self: FakeTensor, value: torch.Tensor) -> None:
        value = as_shape(value)
        if isinstance(value, FakeTensor) and "meta" in (self.fake_device.type, value.fake_device.type):
            _become(self, value)  # torch takes a tensor of no device for another type
            return
        tensor_data.__set__(self, value)
        if isinstance(value, FakeTensor):
            _take_device(self, value)

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(value, FakeTensor) and type(self) in (torch.Tensor, torch.nn.Parameter):
            shape: Any = value.detach().requires_grad_(self.requires_grad)
            vars(shape).update(vars(self))  # what the program has hung on it
            if type(self) is torch.nn.Parameter:  # a lazy one, which only now gets memory
                shape._is_param = True
            torch.utils.swap_tensors(self, shape)  # type: ignore[no-untyped-call]
        else:
            tensor_data.__set__(self, value)

    FakeTensor.data = property(tensor_data.__get__, set_shape)  # type: ignore[assignment]
    torch.Tensor.data = property(tensor_data.__get__, set_data)  # type: ignore[assignment]


def _become(tensor: Any, value: FakeTensor) -> None:
    """``tensor``, the same object with all that hangs on it, in the memory of ``value``."""
    made = value.detach().requires_grad_(tensor.requires_grad)
    made.__class__ = type(tensor)
    for name, one in vars(tensor).items():
        vars(made).setdefault(name, one)
    torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]


def _take_device(tensor: Any, other: Any) -> None:
    name = "_fake_device" if hasattr(other, "_fake_device") else "fake_device"  # torch 2.10 has the latter
    setattr(tensor, name, getattr(other, name))


def _patch_module_moves() -> None:
    """``Module.to/cuda/bfloat16`` swap FakeTensor parameters, and refuse when a weak reference exists.

    Keep the Parameter object (frameworks key dictionaries by it) and give it new data instead.
    """
    original = torch.nn.Module._apply

    def _apply(self: Any, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        parameters = list(self.parameters())
        if not parameters or not all(isinstance(parameter, FakeTensor) for parameter in parameters):
            return original(self, fn, recurse)  # type: ignore[no-untyped-call]
        for module in self.children() if recurse else ():
            module._apply(fn)  # metrics, and whoever else moves more than parameters, have their own
        for parameter in self._parameters.values():
            if parameter is not None:
                move(parameter, fn)
        for name, buffer in self._buffers.items():
            self._buffers[name] = None if buffer is None else fn(buffer)
        return self

    torch.nn.Module._apply = _apply  # type: ignore[method-assign]


def move(parameter: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """``parameter.data = fn(parameter)`` where that may change the device."""
    with torch.no_grad():
        moved: Any = fn(parameter)
    if moved is parameter or (moved.dtype == parameter.dtype and moved.device == parameter.device):
        return
    parameter.data = moved.detach()


def _copied(self: FakeTensor, memo: dict[int, Any]) -> FakeTensor:
    """``copy.deepcopy``: another storage with the same values, and what hangs on the tensor."""
    if id(self) in memo:
        known: FakeTensor = memo[id(self)]
        return known
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support deepcopy")
    made = rebuilt(*_parts(self))
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = _copied(self.grad, memo) if isinstance(self.grad, FakeTensor) else self.grad.clone()
    return made


def _parts(tensor: FakeTensor) -> tuple[Any, ...]:
    values = values_of(tensor)
    with torch._C._DisableTorchDispatch():
        values = None if values is None else values.detach().clone()
    device = str(tensor.fake_device)
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return shape, stride, tensor.dtype, device, tensor.requires_grad, hasattr(tensor, "_is_param"), values


def rebuilt(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
    values: torch.Tensor | None,
) -> FakeTensor:
    """A tensor without data, from what pickling keeps of one; in a storage of its own."""
    if host_tensors.mode is None:
        raise RuntimeError("a tensor without data can only be read where a program is traced")
    with torch._C._DisableTorchDispatch():
        memory = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        made: Any = fake_of(host_tensors.mode, memory, torch.device(device))
    if values is not None:
        remember(made, values)
    if is_parameter:
        made._is_param = True
    found: FakeTensor = made.requires_grad_(requires_grad)
    return found
