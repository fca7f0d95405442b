"""Memory-bound kernels of recorded traces: framework op, shapes and the time that the kernel really took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simcore.calibrate.kernels import profile_of
from simcore.cost.framework_op import kernel_of_op
from simcore.cost.kernel import Kernel
from simcore.errors import InputError
from workloads.imports import import_traces
from workloads.imports.recorded import ImportedRank

_MATH = ("gemm", "bgemm", "attention_fwd", "attention_bwd", "conv", "other")

#: PyTorch's elementwise kernel for tensors that are not contiguous (aten/src/ATen/native/cuda/Loops.cuh).
_STRIDED = "::elementwise_kernel<"


@dataclass(frozen=True)
class MemoryRow:
    """One op with its shapes in one trace: the median time of ``count`` undisturbed launches, seconds.

    ``strided``: its kernel computes the address of every element, as its name says.
    """

    trace: str
    gpu: str  # name of the profile
    kernel: Kernel
    strided: bool
    seconds: float
    count: int


def read_memory_rows(paths: Sequence[str]) -> list[MemoryRow]:
    """Memory-bound kernels of the traces at ``paths``, each path a recording of its own.

    Only launches that no other kernel or copy overlapped count.
    Errors: InputError for what cannot be imported, a GPU without a profile, or no usable kernel at all.
    """
    rows: list[MemoryRow] = []
    for path in paths:
        times: dict[tuple[str, Kernel, bool], list[float]] = defaultdict(list)
        for rank in import_traces([Path(path)]).ranks:
            if rank.recorded.shapes is not None:
                gpu = profile_of(rank.gpu)
                for kernel, strided, seconds in _undisturbed(rank):
                    times[gpu, kernel, strided].append(seconds)
        rows += [
            MemoryRow(
                Path(path).name.split(".")[0], gpu, kernel, strided, float(np.median(found)), len(found)
            )
            for (gpu, kernel, strided), found in times.items()
        ]
    if not rows:
        raise InputError("no memory-bound kernel with recorded shapes in these traces")
    return rows


def _undisturbed(rank: ImportedRank) -> list[tuple[Kernel, bool, float]]:
    recorded, shapes = rank.recorded, rank.recorded.shapes
    assert shapes is not None
    disturbed = _overlapped(recorded.start_ps, recorded.end_ps)
    of_call: dict[int, list[int]] = defaultdict(list)
    for op in np.flatnonzero(recorded.is_kernel & ~recorded.is_comm & (shapes.of_op >= 0)).tolist():
        of_call[int(shapes.of_op[op])].append(op)
    found = []
    for call, ops in of_call.items():
        if disturbed[ops].any():
            continue
        outs = shapes.out_shapes[call] if shapes.out_shapes is not None else None
        kernel = kernel_of_op(shapes.name[call], shapes.in_shapes[call], shapes.in_types[call], outs)
        lasted = int((recorded.end_ps[ops] - recorded.start_ps[ops]).sum())
        if kernel is None or kernel.op_class in _MATH or kernel.bytes_read + kernel.bytes_written == 0:
            continue
        if "fbgemm" in kernel.name or not lasted:  # what its tables and offsets move is not in the shapes
            continue
        found.append((kernel, any(_STRIDED in recorded.name[op] for op in ops), lasted * 1e-12))
    return found


def _overlapped(start_ps: npt.NDArray[np.int64], end_ps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether another op ran during each of the ops, which are sorted by start."""
    latest = np.maximum.accumulate(end_ps)
    before = np.concatenate([[False], latest[:-1] > start_ps[1:]])
    after = np.concatenate([start_ps[1:] < end_ps[:-1], [False]])
    overlapped: npt.NDArray[np.bool_] = before | after
    return overlapped
