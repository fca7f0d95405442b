"""Backward and optimizer among the ops of a recording, by what the host was doing when it launched them.

PyTorch's profiler notes every node that the autograd engine evaluates
(``autograd::engine::evaluate_function: AddmmBackward0``; recomputed forwards are inside) and every optimizer
step (``Optimizer.step#Adam.step``).  Frameworks annotate backwards themselves
("backward_step", "Backward 3").
Nothing marks a forward: it is the rest.
"""

from __future__ import annotations

import re
from array import array

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray

#: Phases told, as the graph names them; the first is what nothing else is said of.
PHASES = ("fwd", "bwd", "optimizer")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|backward", re.IGNORECASE)
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#")


class PhaseSpans:
    """Intervals of backwards and optimizer steps on the host, ps after the recording's origin."""

    def __init__(self) -> None:
        self._found: tuple[array[int], array[int]] = array("q"), array("q")
        self._known: dict[str, int] = {}

    def phase(self, name: str) -> int:
        """The phase of a host event of this name, as number in :data:`PHASES`; 0 also: of none."""
        phase = self._known.get(name)
        if phase is None:
            phase = 1 if _BACKWARD.search(name) else 2 if _OPTIMIZER.match(name) else 0
            self._known[name] = phase
        return phase

    def add(self, phase: int, start_ps: int, end_ps: int) -> None:
        """Note an interval of a phase other than 0."""
        self._found[phase - 1].extend((start_ps, end_ps))

    def backwards(self) -> IntArray:
        """Starts and ends (columns) of all backwards."""
        return np.frombuffer(self._found[0], dtype=np.int64).reshape(-1, 2)

    def of(self, launched_ps: IntArray) -> npt.NDArray[np.int32]:
        """By op, launched when: its phase, as number in :data:`PHASES`."""
        phase = np.zeros(len(launched_ps), dtype=np.int32)
        for number, found in reversed(list(enumerate(self._found, start=1))):
            if not len(found):
                continue
            spans = np.frombuffer(found, dtype=np.int64).reshape(-1, 2)
            spans = spans[np.argsort(spans[:, 0], kind="stable")]
            until = np.maximum.accumulate(spans[:, 1])  # nested intervals end with the outermost
            at = np.searchsorted(spans[:, 0], launched_ps, side="right") - 1
            phase[(at >= 0) & (launched_ps < until[at])] = number
        return phase
