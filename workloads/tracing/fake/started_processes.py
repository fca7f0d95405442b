"""Processes that a script starts for the GPUs of its node: the traced rank is one of them, run in place.

A script that ``torchrun`` does not start may start one process per GPU itself, by
``torch.multiprocessing.spawn`` or one ``Process`` after the other, each with its number first.  Here the rank
with that number among those of its node calls the function itself, and no process is started.  Other
processes (a loader's, a server of shared objects) are forks, however the script wants them started: a new
interpreter would not find what is stood in for here.
"""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.process
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from workloads.tracing.fake import process_groups


class ProcessCountError(RuntimeError):
    """The script starts other processes than the node has ranks; says how many."""


def install() -> None:
    """Patch ``torch.multiprocessing`` and ``multiprocessing.Process``, once per process."""
    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        module.start_processes = _start_processes  # type: ignore[attr-defined]
        module.spawn = _start_processes  # type: ignore[attr-defined]
    process = multiprocessing.process.BaseProcess
    process.start = _start(process.start)  # type: ignore[method-assign]


class _Ended:
    """The processes of ``spawn`` when all of them are over."""

    processes: tuple[()] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:  # noqa: ARG002
        """They have ended."""
        return True

    def pids(self) -> list[int]:
        """None of them had one."""
        return []


def _start_processes(
    fn: Callable[..., object], args: tuple[Any, ...] = (), nprocs: int = 1, *_: object, **__: object
) -> _Ended:
    local, ranks = process_groups.place_on_node
    if nprocs != ranks:
        raise ProcessCountError(f"{nprocs} processes are started on a node of {ranks} ranks")
    fn(local, *args)
    return _Ended()


def _start(original: Callable[..., None]) -> Callable[..., None]:
    def start(self: Any) -> None:
        number = self._args[0] if self._args else None
        if type(number) is not int or self._target is None or self.daemon or dist.is_initialized():
            self._Popen = multiprocessing.context.ForkProcess._Popen
            original(self)
            return
        local, ranks = process_groups.place_on_node
        if not 0 <= number < ranks:
            raise ProcessCountError(f"process number {number} is started on a node of {ranks} ranks")
        self.join = lambda _timeout=None: None
        self.is_alive = lambda: False
        if number == local:
            self._target(*self._args, **self._kwargs)

    return start
