"""What a recording says of one rank's ops, whatever profiler it came from: the neutral side of an import.

An importer turns its format into a graph whose ops last what was recorded, and into these values, which a
replay is compared with.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray, Strings
from simcore.hardware.sm import ThreadBlock
from simcore.records import dataclass

BoolArray = npt.NDArray[np.bool_]
#: A recording of more than a week is a mistake; its times must fit 64 bits of ps, with room to add some.
MAX_SPAN_S = 7 * 24 * 3600
#: No recorded job has more ranks.
MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class Step:
    """A step on the host (a ``ProfilerStep`` annotation, mostly), ps after the recording's origin."""

    number: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True)
class RecordedShapes:
    """Ops of the framework that launched what was recorded, where their shapes were recorded too.

    ``of_op[i]`` is the call that launched op ``i`` (-1: none known); per call the framework's name of it
    ("aten::addmm"), its inputs' shapes (JSON, as in :class:`OpTable`) and types (JSON).
    ``out_shapes`` are those of its outputs, None where not recorded.
    """

    of_op: IntArray
    name: Strings
    in_shapes: Strings
    in_types: Strings
    out_shapes: Strings | None = None


@dataclass(frozen=True)
class RecordedCollectives:
    """What is known of each op that communicates; "", 0 and () where nothing is (of other ops too).

    ``num_bytes`` in nccl-tests' convention; ``dtype`` as recorded; ``members`` are the ranks of its group.
    """

    collective: Strings
    num_bytes: IntArray
    dtype: Strings
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RecordedLaunches:
    """What a thread block of each kernel takes of its SM; 0 in all where not recorded."""

    threads: IntArray
    registers: IntArray
    shared_bytes: IntArray

    def of(self, op: int) -> ThreadBlock | None:
        """The launch of a kernel, as the engine knows it."""
        threads = int(self.threads[op])
        return ThreadBlock(threads, int(self.registers[op]), int(self.shared_bytes[op])) if threads else None

    def take(self, ops: IntArray) -> RecordedLaunches:
        """Those of some ops."""
        return RecordedLaunches(self.threads[ops], self.registers[ops], self.shared_bytes[ops])


@dataclass(frozen=True)
class RecordedOps:
    """One rank's recorded GPU ops (or, in coarser formats, its intervals), sorted by start.

    Times are ps after an origin that all ranks of the import share or that is the rank's own (the report says
    which).  ``is_kernel`` is false for copies and memsets; ``is_comm`` marks communication.  ``stream`` is a
    label.  ``blocks`` are the thread blocks of a kernel and ``blocks_per_sm`` how many of them fit on an SM
    at a time, 0 where not recorded; ``launches`` (None: none recorded) what a block takes of its SM.
    ``traffic`` has two rows, bytes that each op reads and writes, 0 where not recorded (None: nowhere).
    """

    start_ps: IntArray
    end_ps: IntArray
    name: Strings
    stream: Strings
    is_comm: BoolArray
    is_kernel: BoolArray
    blocks: IntArray
    blocks_per_sm: npt.NDArray[np.float64]
    launches: RecordedLaunches | None = None
    shapes: RecordedShapes | None = None
    collectives: RecordedCollectives | None = None
    traffic: IntArray | None = None

    def moved(self, op: int) -> tuple[int, int]:
        """Bytes that an op reads and writes; 0 where not recorded."""
        return (int(self.traffic[0, op]), int(self.traffic[1, op])) if self.traffic is not None else (0, 0)

    def __len__(self) -> int:
        return len(self.start_ps)


@dataclass(frozen=True)
class ImportedRank:
    """One recorded rank: its number, its ops, the flat op of each in the graph, and its steps.

    ``step_ops[k]`` are the ops launched in ``steps[k]``; a trace without steps is one step, its number -1.
    ``gpu`` is its name and ``num_sms`` its size, "" and 0 where not recorded.  ``seen_after[i]`` is the flat
    op from whose end on op ``i`` counts where it was placed before (-1: from its placing; None: all are).
    """

    number: int
    recorded: RecordedOps
    flat: IntArray
    steps: tuple[Step, ...]
    step_ops: tuple[IntArray, ...]
    gpu: str = ""
    num_sms: int = 0
    seen_after: IntArray | None = None
