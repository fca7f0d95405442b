"""Kernels that torch has no operator for, or no cost: what they read, write and compute.

Imports nothing but the standard library where it is not used, so that scripts may import it anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from simcore.records import dataclass

#: Receives kernels; set while a rank is traced.
listener: KernelListener | None = None


@dataclass(frozen=True)
class KernelCost:
    """What one launch does.  ``flops``: floating-point operations; ``bytes_read`` and ``bytes_written``: of
    device memory, -1: all of the tensors involved, once; ``kernel``: name in the graph, "" for the
    operator's own; ``op_class``: a cost class of :data:`simcore.cost.OP_CLASSES`, "" to go by the name.
    """

    flops: int = 0
    bytes_read: int = -1
    bytes_written: int = -1
    kernel: str = ""
    op_class: str = ""


class KernelListener(Protocol):
    """What the recorder does with a kernel.  ``recording``: whether ops are written down now."""

    recording: bool

    def kernel_launched(
        self, name: str, reads: Sequence[Any], writes: Sequence[Any], cost: KernelCost
    ) -> None:
        """One kernel on the current stream."""
        ...

    def host_passes(self, name: str, num_bytes: int) -> None:
        """The host reads and writes ``num_bytes`` of its memory; nothing is issued meanwhile."""
        ...

    def is_unwritten(self, tensor: Any) -> bool:
        """Whether nothing has touched the memory of ``tensor`` since it was allocated in the step."""
        ...


#: Gives the cost of an operator's call from its arguments.
CostFormula = Callable[..., KernelCost]

_costs: dict[str, CostFormula] = {}


@dataclass(frozen=True)
class LaunchedKernel:
    """One launch of a kernel: the tensors that it ``reads`` and ``writes``, and what it costs."""

    reads: Sequence[Any]
    writes: Sequence[Any]
    cost: KernelCost = KernelCost()


#: Gives the LaunchedKernel of a kernel from the arguments that it is launched with.
LaunchFormula = Callable[..., LaunchedKernel]

_launches: dict[str, LaunchFormula] = {}

#: Names of kernels whose own code was counted.
counted: set[str] = set()


class UnknownKernelError(Exception):
    """A kernel is launched that nobody described; ``kernel`` is its name, ``why`` its code does not tell."""

    def __init__(self, kernel: str, why: str = "") -> None:
        because = f", and its code cannot be followed ({why})" if why else ""
        super().__init__(f"kernel {kernel!r} is launched and not described{because}")
        self.kernel = kernel


def launch(name: str, *, reads: Sequence[Any], writes: Sequence[Any], cost: KernelCost | None = None) -> None:
    """Write down that kernel ``name`` reads and writes these tensors, where a rank is traced."""
    if listener is not None:
        listener.kernel_launched(name, reads, writes, cost or KernelCost())


def is_unwritten(tensor: Any) -> bool:
    """Whether nothing has touched the memory of ``tensor`` since it was allocated in the recorded step."""
    return listener is not None and listener.is_unwritten(tensor)


@contextmanager
def unrecorded() -> Iterator[None]:
    """What is run inside is not the program's: it runs on shapes and is not written down."""
    if listener is None:
        yield
        return
    outer, listener.recording = listener.recording, False
    try:
        yield
    finally:
        listener.recording = outer


def register_cost(operator: str) -> Callable[[CostFormula], CostFormula]:
    """Decorator: the function gives the KernelCost of a call of ``operator`` (``"my_kernels::attention"``)
    from the call's own arguments, tensors without data among them.
    """

    def register(formula: CostFormula) -> CostFormula:
        _costs[operator] = formula
        return formula

    return register


def registered_cost(operator: str) -> CostFormula | None:
    """What :func:`register_cost` was given for ``operator``, overloads included."""
    return _costs.get(operator) or _costs.get(operator.partition(".")[0])


def register_launch(kernel: str) -> Callable[[LaunchFormula], LaunchFormula]:
    """Decorator: the function gives the :class:`LaunchedKernel` of ``kernel``, which Triton launches as
    ``kernel[grid](...)``, from the arguments of the launch.
    """

    def register(formula: LaunchFormula) -> LaunchFormula:
        _launches[kernel] = formula
        return formula

    return register


def is_described(kernel: str) -> bool:
    """Whether :func:`register_launch` was given ``kernel``."""
    return kernel in _launches


def launch_described(kernel: str, args: Sequence[Any], kwargs: dict[str, Any]) -> LaunchedKernel:
    """Launch ``kernel`` as :func:`register_launch` describes it.  UnknownKernelError when nobody did."""
    formula = _launches.get(kernel)
    if formula is None:
        raise UnknownKernelError(kernel)
    described = formula(*args, **kwargs)
    launch(kernel, reads=described.reads, writes=described.writes, cost=described.cost)
    return described
