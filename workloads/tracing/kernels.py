"""Kernels that torch has no operator for, or no cost: what they read, write and compute.

Imports nothing but the standard library where it is not used, so that scripts may import it anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
    """What the recorder does with a kernel."""

    def kernel_launched(
        self, name: str, reads: Sequence[Any], writes: Sequence[Any], cost: KernelCost
    ) -> None:
        """One kernel on the current stream."""
        ...


#: Gives the cost of an operator's call from its arguments.
CostFormula = Callable[..., KernelCost]

_costs: dict[str, CostFormula] = {}


def launch(name: str, *, reads: Sequence[Any], writes: Sequence[Any], cost: KernelCost | None = None) -> None:
    """Write down that kernel ``name`` reads and writes these tensors, where a rank is traced."""
    if listener is not None:
        listener.kernel_launched(name, reads, writes, cost or KernelCost())


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
