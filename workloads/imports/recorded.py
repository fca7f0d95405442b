"""What a recording says of one rank's ops, whatever profiler it came from: the neutral side of an import.

An importer turns its format into a graph whose ops last what was recorded, and into these values, which a
replay is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray, Strings
from workloads.imports.recording import Step

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RecordedOps:
    """One rank's recorded GPU ops (or, in coarser formats, its intervals), sorted by start.

    Times are ps after an origin that all ranks of the import share or that is the rank's own (the report says
    which).  ``is_kernel`` is false for copies and memsets; ``is_comm`` marks communication.  ``stream`` is a
    label.  ``blocks`` are the thread blocks of a kernel and ``blocks_per_sm`` how many of them fit on an SM
    at a time, 0 where not recorded.
    """

    start_ps: IntArray
    end_ps: IntArray
    name: Strings
    stream: Strings
    is_comm: BoolArray
    is_kernel: BoolArray
    blocks: IntArray
    blocks_per_sm: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True)
class ImportedRank:
    """One recorded rank: its number, its ops, the flat op of each in the graph, and its steps.

    ``step_ops[k]`` are the ops launched in ``steps[k]``; a trace without steps is one step, its number -1.
    """

    number: int
    recorded: RecordedOps
    flat: IntArray
    steps: tuple[Step, ...]
    step_ops: tuple[IntArray, ...]
