"""Kernels that ``profile_gpu.py`` measured beside a copy kernel, predicted as a described job's kernels are.

The cost model says what a kernel asks of the GPU: waves of blocks, SM time, HBM bytes.  Its time alone is
the measured one, so that what is compared is the loss beside ``copy_blocks`` SMs gone and the copy's traffic:
what it read, and as much written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simcore.apps.measured.kernels import profiled_gpu, profiled_kernel
from simcore.apps.measured.tables import LEAST_US, MOST_US, number, read_rows, within
from simcore.apps.studies.contention.beside import FOREVER_PS, Holding, time_beside
from simcore.apps.studies.contention.rows import BesideRow
from simcore.cost.kernel import KernelShape
from simcore.cost.roofline import RooflineCost
from simcore.engine.sequence import Demand
from simcore.errors import InputError
from simcore.hardware import load_gpu
from simcore.units import PS_PER_S, PS_PER_US, ps_from_s
from workloads.profiling.sweep import OVERLAP_COLUMNS

_READ_AND_WRITTEN: Final = 2


def copied_rows(folder: Path) -> tuple[list[BesideRow], list[dict[str, Any]]]:
    """Rows of ``overlap.csv`` in a folder that ``profile_gpu.py`` wrote, and those refused.

    Errors: InputError for a missing file or column, or a GPU without a profile.
    """
    name = profiled_gpu(folder)
    gpu = load_gpu(name, {})
    cost = RooflineCost(gpu)

    def row(line: int, columns: dict[str, str]) -> BesideRow:
        kernel = profiled_kernel(columns)
        alone, beside = (
            within(key, number(columns, key), LEAST_US, MOST_US, "us") for key in ("alone_us", "beside_us")
        )
        copying = int(within("copy_blocks", number(columns, "copy_blocks"), 1, gpu.num_sms - 1, "SMs"))
        drawn = _READ_AND_WRITTEN * number(columns, "copy_bytes_per_s")
        if not 0 <= drawn < gpu.hbm_bytes_per_s:
            raise InputError(
                f"copy_bytes_per_s: the copy would move {drawn:.3g} B/s of HBM, more than there are"
            )
        alone_ps = round(alone * PS_PER_US)
        left = replace(gpu, hbm_bytes_per_s=gpu.hbm_bytes_per_s - drawn)
        held = [Holding(0, FOREVER_PS, copying)]
        predicted = time_beside(left, _demand(cost, kernel, alone_ps), alone_ps, held)
        size = columns["in_shapes"] or f"{columns['bytes']} bytes"
        trace = f"{name} {kernel.op_class} {size}"
        return BesideRow(
            line - 2, trace, gpu.name, "good", kernel.op_class, alone, beside, predicted / PS_PER_US
        )

    return read_rows(folder / "overlap.csv", "kernel beside a copy", OVERLAP_COLUMNS, row)


def _demand(cost: RooflineCost, kernel: KernelShape, alone_ps: int) -> Demand:
    """What the cost model says that a kernel asks for, all of it scaled to its measured time alone."""
    work = cost.work(kernel)
    scale = alone_ps / (PS_PER_S * cost.seconds(kernel))
    fixed_s = work.launches * (cost.gpu.kernel_gap_s + work.prologue_s)
    return (
        ps_from_s(work.sm_s * scale), work.blocks, work.blocks_per_sm,
        int(work.hbm_bytes * scale / cost.gpu.hbm_efficiency), ps_from_s(fixed_s * scale), True, 0, 0.0,
    )  # fmt: skip
