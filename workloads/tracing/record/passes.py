"""What torch is asked to do, told to who watches the rank: backward passes, optimizers that are made."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

_APPLY = vars(torch.autograd.Function)["apply"].__func__.__code__


class Watcher(Protocol):
    """Hears of it; ``made``: optimizers so far; ``recorder``: names what is issued."""

    recorder: Any
    made: list[weakref.ref[Any]]

    def backward_begins(self) -> None:
        """A backward pass starts, maybe inside another."""

    def backward_ends(self) -> None:
        """The backward pass that started last is over."""

    def backward_fails(self, error: Exception) -> None:
        """The backward pass that started last raised ``error``."""


def install(watcher: Callable[[], Watcher | None]) -> None:
    """Tell ``watcher()`` of every backward pass, also of those that a framework asks the engine for, and of
    every optimizer; once per process.
    """
    optimizers: Any = torch.optim.Optimizer
    make = optimizers.__init__

    @functools.wraps(make)
    def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        make(optimizer, *args, **kwargs)
        listener = watcher()
        if listener is not None:
            listener.made.append(weakref.ref(optimizer))

    optimizers.__init__ = made
    function: Any = torch.autograd.Function
    apply = vars(function)["apply"].__func__

    @functools.wraps(apply)
    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = apply(cls, *args, **kwargs)
        listener = watcher()
        if listener is not None:
            listener.recorder.backward_streams.note_function(result)
        return result

    function.apply = classmethod(applied)
    for name in ("backward", "grad"):  # they make the first gradient before they ask the engine
        setattr(torch.autograd, name, _seen(getattr(torch.autograd, name), watcher))
    variable: Any = torch.autograd.Variable
    variable._execution_engine = _Engine(variable._execution_engine, watcher)


def _seen(original: Callable[..., Any], watcher: Callable[[], Watcher | None]) -> Callable[..., Any]:
    """A backward pass, maybe inside another."""

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        listener = watcher()
        if listener is None:
            return original(*args, **kwargs)
        if _in_a_function():
            labels = listener.recorder.labels
            with labels.phase("recompute" if labels.segment_phase == "bwd" else "fwd"):
                return original(*args, **kwargs)
        listener.recorder.backward_streams.pass_begins()
        listener.backward_begins()
        try:
            result = original(*args, **kwargs)
        except Exception as error:
            listener.backward_fails(error)
            raise
        finally:
            listener.recorder.backward_streams.pass_ends()
        listener.backward_ends()
        return result

    return backward


def _in_a_function() -> bool:
    """Whether a function of autograd asks in its forward pass, as losses in chunks do.

    What it works out is a part of that pass.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    return frame.f_code is _APPLY


class _Engine:
    """Autograd's engine."""

    def __init__(self, engine: Any, watcher: Callable[[], Watcher | None]) -> None:
        self._engine = engine
        self.run_backward = _seen(engine.run_backward, watcher)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
