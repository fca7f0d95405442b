"""Sizes of communication kernels by the library's calls around their launches.

Before kernels told their own metadata (PyTorch 2.2), PyTorch only annotated NCCL's calls with the shapes of
what they send: "nccl:all_to_all" with "Input Dims" (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, the
profiling titles).  Groups are not told.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

import numpy as np

from simcore.collectives.kinds import SEND_RECV, kind_of
from simcore.cost.framework_op import described_inputs
from workloads.imports.collective_names import LIBRARY_ANNOTATIONS, collective_kind, exchange_kind
from workloads.imports.recording.columns import CollectiveMeta
from workloads.imports.recording.intervals import innermost
from workloads.imports.recording.rank_ops import RankOps

#: The call for lists of tensors, whose annotation in some releases names the first of the list only.
_LISTS: Final = "c10d::alltoall_"


def with_library_calls(ops: RankOps) -> RankOps:
    """With what those calls say of kernels that say nothing themselves.

    A call counts where it names the collective that the kernel's name does; what all ranks of a group give
    together (an all_gather's size) is not known from one rank's part.
    """
    trace, gpu, calls = ops.trace, ops.trace.gpu, ops.trace.framework
    silent = np.flatnonzero(ops.is_comm & (ops.call >= 0) & (gpu.meta[ops.row] < 0))
    is_library = np.array([name.startswith(LIBRARY_ANNOTATIONS) for name in trace.names], dtype=np.bool_)
    around = np.flatnonzero(is_library[calls.name]) if len(calls) else np.zeros(0, dtype=np.int64)
    if not len(silent) or not len(around):
        return ops
    launch = ops.call[silent]
    found = innermost(
        trace.calls.start_ps[launch], trace.calls.thread[launch],
        calls.start_ps[around], calls.end_ps[around], calls.thread[around],
    )  # fmt: skip
    lists = _LISTS in trace.names
    known = {meta: number for number, meta in enumerate(trace.meta)}
    told: dict[tuple[int, int, int, int], CollectiveMeta | None] = {}
    number = gpu.meta.copy()
    for op, at in zip(silent[found >= 0].tolist(), around[found[found >= 0]].tolist(), strict=True):
        row = int(ops.row[op])
        key = int(gpu.name[row]), int(calls.name[at]), int(calls.shapes[at]), int(calls.types[at])
        if key not in told:
            told[key] = _told(*(trace.names[code] for code in key), lists=lists)
        meta = told[key]
        if meta is not None:
            number[row] = known.setdefault(meta, len(known))
    return replace(ops, trace=replace(trace, gpu=replace(gpu, meta=number), meta=tuple(known)))


def _told(kernel: str, call: str, shapes: str, types: str, *, lists: bool) -> CollectiveMeta | None:
    """What a call says of the kernel that it launched; None where that is another collective, or no size."""
    kind = exchange_kind(collective_kind(kernel), call)
    if kind == SEND_RECV.name or collective_kind(call) != kind or (kind != collective_kind(kernel) and lists):
        return None
    inputs = described_inputs(shapes, types)
    if not inputs or len({dtype for _, dtype in inputs}) > 1:
        return None
    elements = sum(prod(shape) for shape, _ in inputs)
    gathered = -1 if kind_of(kind).gives_part else elements
    return CollectiveMeta(call, "", "", inputs[0][1], elements, gathered, -1)
