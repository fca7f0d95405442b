"""What a collective carries, as the shapes of the framework's op around its launch tell."""

from __future__ import annotations

import re
from math import prod

from simcore.collectives.kinds import SEND_RECV, kind_of
from simcore.cost.framework_op import described_inputs
from simcore.cost.kernel import ELEMENT_BYTES
from workloads.imports.collective_kinds import among_several
from workloads.imports.recorded import RecordedOps

_ALL_TO_ALL = re.compile(r"all_?(to|2)_?all", re.IGNORECASE)


def collective_by_shapes(ops: RecordedOps, op: int, kind: str, num_ranks: int) -> tuple[str, int]:
    """Collective, and size in nccl-tests' convention: 0 where the shapes do not tell it.

    ``kind`` is what the kernel's name says; a SendRecv kernel may be an all_to_all.
    """
    call = int(ops.shapes.of_op[op]) if ops.shapes is not None else -1
    if ops.shapes is None or call < 0:
        return kind, 0
    if kind == SEND_RECV.name and _ALL_TO_ALL.search(ops.shapes.name[call]):
        kind = among_several(kind)
    inputs = described_inputs(ops.shapes.in_shapes[call], ops.shapes.in_types[call])
    size = prod(inputs[0][0]) * ELEMENT_BYTES[inputs[0][1]] if inputs else 0
    return kind, size * (num_ranks if kind_of(kind).gives_part else 1)
