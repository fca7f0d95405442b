"""Kernels of recorded traces: framework op, shapes and the time that the kernels of a launch really took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from simcore.apps.measured.row_kernels import profile_of
from simcore.apps.replay.alone import overlapped
from simcore.apps.replay.shapes import STRIDED, TF32_WORDS, kernel_of_call
from simcore.cost.kernel import KernelShape
from simcore.errors import InputError
from simcore.records import dataclass
from workloads.imports import import_traces
from workloads.imports.recorded import ImportedRank

#: Classes that products bound; they have rows of their own in benchmarks, and are not fitted to traces.
MATH = ("gemm", "bgemm", "attention_fwd", "attention_bwd", "conv")


@dataclass(frozen=True)
class RecordedRow:
    """One op with its shapes in one trace: the median time of ``count`` undisturbed launches, seconds.

    ``tf32``: it multiplies fp32 on tensor cores, as the recorded kernel's name says.
    """

    trace: str
    gpu: str  # name of the profile
    kernel: KernelShape
    tf32: bool
    seconds: float
    count: int


def read_recorded_rows(paths: Sequence[str]) -> list[RecordedRow]:
    """Kernels with recorded shapes of the traces at ``paths``, each path a recording of its own.

    Only launches that no other kernel or copy overlapped count.
    Errors: InputError for what cannot be imported, a GPU without a profile, or no usable kernel at all.
    """
    rows: list[RecordedRow] = []
    for path in paths:
        times: dict[tuple[str, KernelShape, bool], list[float]] = defaultdict(list)
        for rank in import_traces([Path(path)]).ranks:
            if rank.recorded.shapes is not None:
                gpu = profile_of(rank.gpu)
                for kernel, tf32, seconds in _undisturbed(rank):
                    times[gpu, kernel, tf32].append(seconds)
        trace = Path(path).name.split(".")[0]
        rows += [
            RecordedRow(trace, gpu, kernel, tf32, float(np.median(found)), len(found))
            for (gpu, kernel, tf32), found in times.items()
        ]
    if not rows:
        raise InputError("no undisturbed kernel with recorded shapes in these traces")
    return rows


def memory_bound(rows: Sequence[RecordedRow]) -> list[RecordedRow]:
    """Those that move data rather than multiply."""
    return [row for row in rows if row.kernel.op_class not in MATH]


def _undisturbed(rank: ImportedRank) -> list[tuple[KernelShape, bool, float]]:
    recorded, shapes = rank.recorded, rank.recorded.shapes
    assert shapes is not None
    disturbed = overlapped(recorded, np.ones(len(recorded), dtype=np.bool_))
    of_call: dict[int, list[int]] = defaultdict(list)
    for op in np.flatnonzero(recorded.is_kernel & ~recorded.is_comm & (shapes.of_op >= 0)).tolist():
        of_call[int(shapes.of_op[op])].append(op)
    found = []
    for call, ops in of_call.items():
        lasted = int((recorded.end_ps[ops] - recorded.start_ps[ops]).sum())
        if disturbed[ops].any() or not lasted:
            continue
        kernel = kernel_of_call(shapes, call)
        # What fbgemm's tables and offsets move is not in their shapes.
        if kernel is None or kernel.op_class == "other" or "fbgemm" in kernel.name:
            continue
        if kernel.op_class not in MATH and kernel.bytes_read + kernel.bytes_written == 0:
            continue
        names = [recorded.name[op] for op in ops]
        tf32 = any(word in name for word in TF32_WORDS for name in names)
        strided = any(STRIDED in name for name in names)
        found.append((replace(kernel, strided=strided), tf32, lasted * 1e-12))
    return found
