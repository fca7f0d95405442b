"""Triton kernels, installed or not: a launch becomes the kernel that the user described.

Nothing is compiled.  With Triton installed its own launches are taken over; without it, a stand-in module
serves scripts that only define and launch kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from workloads.tracing import kernels


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
    while hasattr(self, "fn"):  # tuners wrap the kernel, the kernel wraps the Python function
        self = self.fn
    kernels.launch_described(self.__name__, args, kwargs)


class _Kernel:
    """What ``triton.jit`` makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **kwargs: _run(self, *args, grid=grid, **kwargs)


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
    if name != "triton":
        return {}
    return {
        "__version__": _VERSION,
        "jit": lambda function=None, **_: _Kernel(function) if function is not None else _Kernel,
        "autotune": _leave,
        "heuristics": _leave,
        "cdiv": lambda count, block: -(-count // block),
        "next_power_of_2": lambda count: 1 << max(0, count - 1).bit_length(),
    }


def _leave(*_args: Any, **_kwargs: Any) -> Any:
    return lambda kernel: kernel
