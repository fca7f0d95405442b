"""Triton kernels, installed or not: a launch becomes the kernel that the user described, else what its code
says (Note [Counting a Triton kernel]).

Nothing is compiled.  With Triton installed its own launches are taken over; without it, a stand-in module
serves scripts that only define and launch kernels.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from workloads.tracing import kernels
from workloads.tracing.stand_ins.triton_code import CannotCountError, TritonLaunch, counted


def take_over(triton: ModuleType) -> None:
    """Make the launches of an installed Triton go to :func:`workloads.tracing.kernels.launch_described`."""
    runtime: Any = triton.runtime
    for name in ("JITFunction", "Autotuner", "Heuristics"):
        owner: Any = getattr(runtime, name, None) or getattr(
            sys.modules.get("triton.runtime.jit"), name, None
        )
        if owner is not None:
            owner.run = _run


def _run(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:  # noqa: ARG001
    rules: dict[str, Callable[..., Any]] = {}
    while hasattr(self, "fn"):  # tuners wrap the kernel, the kernel wraps the Python function
        configs = getattr(self, "configs", None)
        if configs:
            kwargs = {**configs[0].kwargs, **kwargs}
        rules |= getattr(self, "values", None) or {}
        self = self.fn
    if kernels.is_described(self.__name__):
        kernels.launch_described(self.__name__, args, kwargs)
        return
    try:
        given = _arguments(self, args, kwargs, rules)
        launched = counted(TritonLaunch(self, given, grid))
    except CannotCountError as error:
        raise kernels.UnknownKernelError(self.__name__, str(error)) from error
    kernels.counted.add(self.__name__)
    kernels.launch(self.__name__, reads=launched.reads, writes=launched.writes, cost=launched.cost)


def _arguments(
    function: Any, args: Any, kwargs: dict[str, Any], rules: dict[str, Callable[..., Any]]
) -> dict[str, Any]:
    """Arguments by name, without those of the launch (``num_warps``, ...); heuristics are applied."""
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    given = dict(zip(names, args, strict=False))
    given |= {name: one for name, one in kwargs.items() if name in parameters}
    for name, rule in rules.items():
        given[name] = rule({**kwargs, **given})
    for name, parameter in parameters.items():
        if name not in given and parameter.default is not inspect.Parameter.empty:
            given[name] = parameter.default
    missing = [name for name in names if name not in given]
    if missing:
        raise CannotCountError(f"it is launched without {missing[0]!r}")
    return given


class _Kernel:
    """What ``triton.jit`` makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **kwargs: _run(self, *args, grid=grid, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> None:
        """A launch."""
        _run(self, *args, **kwargs)


class _Tuned(_Kernel):
    """What ``triton.autotune`` and ``triton.heuristics`` make of a kernel."""

    def __init__(self, kernel: Any, configs: Sequence[Any] = (), values: Any = None) -> None:
        super().__init__(kernel)
        self.configs, self.values = configs, values


class _Config:
    """``triton.Config``."""

    def __init__(self, kwargs: dict[str, Any], *_: Any, **options: Any) -> None:
        self.kwargs = kwargs
        vars(self).update(options)


class _Descriptor:
    """``TensorDescriptor``: a tensor that is read and written in blocks."""

    def __init__(self, base: Any, shape: Any, strides: Any, block_shape: Any, *_: Any) -> None:
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, block_shape

    @classmethod
    def from_tensor(cls, tensor: Any, block_shape: Any, *_: Any) -> _Descriptor:
        """One of all of ``tensor``."""
        return cls(tensor, tensor.shape, tensor.stride(), block_shape)


class constexpr:  # noqa: N801  kernels' annotations say this name
    """``triton.language.constexpr``: a constant is itself."""

    def __new__(cls, value: Any) -> Any:
        """The value."""
        return value


class _AnyClass(Exception):  # noqa: N818  some are caught
    """Stands for every class outside of ``triton.language``: torch's compiler inherits from them."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()


class _Anything(ModuleType):
    """Stands for every name of ``triton.language``, which only compiled code uses, and other functions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper() and not self.__name__.startswith("triton.language"):
            made: Any = type(name, (_AnyClass,), {"__module__": self.__name__})
        else:
            made = _Anything(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getitem__(self, _index: object) -> Any:
        return self


#: Programs compare it with much older ones.
_VERSION = "3.4.0"


def make_module(name: str) -> ModuleType:
    """Any module of Triton."""
    return _Anything(name)


def members(name: str) -> dict[str, Any] | None:
    """What is in a module of Triton beside what compiled code uses."""
    if name == "triton.language":
        return {"constexpr": constexpr}
    if name == "triton.tools.tensor_descriptor":
        return {"TensorDescriptor": _Descriptor}
    if name != "triton":
        return {}
    return {
        "__version__": _VERSION,
        "jit": lambda function=None, **_: _Kernel(function) if function is not None else _Kernel,
        "autotune": lambda configs=(), *_, **__: partial(_Tuned, configs=configs),
        "heuristics": lambda values: partial(_Tuned, values=values),
        "Config": _Config,
        "cdiv": lambda count, block: -(-count // block),
        "next_power_of_2": lambda count: 1 << max(0, count - 1).bit_length(),
    }
