"""The default cost model: formulas per op class, over the distinct kernels of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import simcore.cost.attention
import simcore.cost.convolution
import simcore.cost.gemm
import simcore.cost.lookups
import simcore.cost.scan  # noqa: F401  (imported, as the lines above, for the formulas they register)
from simcore.cost.classify import OP_CLASSES, classify
from simcore.cost.demand import ORIGINS, Demands
from simcore.cost.kernel import FORMULAS, Context, KernelShape, Work, parse_dtype, parse_shapes
from simcore.cost.like import parameters_of
from simcore.cost.memory_bound import instructions_s, memcpy_work, num_elements
from simcore.cost.parameters import GenerationParameters
from simcore.cost.table import MeasuredTable
from simcore.errors import InputError, nearest
from simcore.graph.kinds import is_priced
from simcore.graph.ops import OpKind, OpTable
from simcore.hardware.covered import covered_sms
from simcore.hardware.specs import GpuSpec
from simcore.units import PS_PER_S, ps_from_s

FP32_MATH = ("ieee", "tf32")

#: A kernel of minutes comes from a mistyped figure, and a step of such kernels overflows 64 bits of ps.
_LONGEST_KERNEL_S = 100.0

_RECORDED, _MEASURED, _FITTED, _EXTRAPOLATED, _ROOFLINE = map(ORIGINS.index, ORIGINS)
#: Classes whose time follows from products.
_MOST_KNOWN = 1 << 12  # different kernels whose prices are remembered
_PRODUCTS = ("gemm", "bgemm", "conv", "attention_fwd", "attention_bwd")


class RooflineCost:
    """Prices compute kernels and copies of one GPU model; implements ``CostModel``.

    ``fp32_math``: "ieee" runs fp32 products on CUDA cores (torch's default for matmul), "tf32" on tensor
    cores.  ``tables``: measured times, the first that covers a kernel wins over the formula.
    ``attention``: family of fused attention kernels where an op's name does not tell (flash2, flash3,
    cudnn; a property of the software, default by generation).  ``parameters``: other constants than the
    generation's own.

    ``Demands.hbm_bytes`` counts traffic over the profile's ``hbm_efficiency``: refresh, row misses and bus
    turnarounds take HBM time too, so a kernel alone lasts ``Demands.alone_ps(gpu.hbm_bytes_per_s)`` and
    what it leaves to others is right.
    Errors: InputError for an unknown option, generation, dtype or op class, or a kernel of minutes.
    """

    def __init__(
        self,
        gpu: GpuSpec,
        fp32_math: str = "ieee",
        tables: Sequence[MeasuredTable] | None = None,
        *,
        attention: str | None = None,
        parameters: GenerationParameters | None = None,
    ) -> None:
        if fp32_math not in FP32_MATH:
            raise InputError(f"fp32_math {fp32_math!r}{nearest(fp32_math, FP32_MATH)}")
        constants = parameters or parameters_of(gpu)
        chosen = attention or constants.default_attention
        if chosen not in constants.attention:
            raise InputError(
                f"attention kernels {chosen!r} unknown on {gpu.name}{nearest(chosen, constants.attention)}"
            )
        self.gpu = gpu
        self.tables = tuple(tables or ())
        known = covered_sms(gpu.table("cost")) if parameters is None else None
        beyond, other_sms = (known.beyond(gpu), not known.holds(gpu)) if known is not None else ({}, False)
        self._context = Context(gpu, constants, fp32_math, chosen, beyond, other_sms)
        self._known: dict[tuple[KernelShape, bool], tuple[int, ...]] = {}  # prices, by what is priced

    def work(self, kernel: KernelShape) -> Work:
        """What the formula of the kernel's class demands; InputError for an unknown class."""
        op_class = kernel.op_class or classify(kernel.name)
        if op_class not in FORMULAS:
            hint = nearest(op_class, OP_CLASSES)
            raise InputError(f"op {kernel.name!r}: unknown op class {op_class!r}{hint}")
        return FORMULAS[op_class](kernel, self._context)

    def seconds(self, kernel: KernelShape) -> float:
        """Time of one kernel alone, launches included, by its formula."""
        work = self.work(kernel)
        busy = max(work.sm_s, work.hbm_bytes / self._context.hbm_bytes_per_s)
        return work.launches * (self.gpu.kernel_gap_s + work.prologue_s) + busy

    def indexing_ps(self, kernel: KernelShape) -> int:
        """SM time, ps, of an elementwise kernel that computes the address of each of its elements."""
        each = self._context.parameters.memory.index_instructions
        return ps_from_s(instructions_s(num_elements(kernel), each, self._context))

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """Demand of every compute and memcpy op; other rows, and rows not ``used``, demand nothing.

        An EVENT_WAIT with a time is a stream's own gap.

        A graph has few distinct kernels: each is priced once.
        """
        priced = is_priced(ops.kind)
        if used is not None:
            priced &= used
        rows = np.flatnonzero(priced)
        demands = Demands.zeros(len(ops))
        gaps = (ops.kind == OpKind.EVENT_WAIT) & (ops.recorded_ps > 0)
        demands.fixed_ps[gaps] = ops.recorded_ps[gaps]
        if len(rows) == 0:
            return demands
        columns = np.stack(
            [
                ops.name.codes[rows], ops.op_class.codes[rows], ops.dtype.codes[rows],
                ops.in_shapes.codes[rows], ops.out_shapes.codes[rows], ops.kind[rows], ops.batch[rows] >= 0,
                ops.flops[rows], ops.bytes_read[rows], ops.bytes_written[rows],
            ],
            axis=1,
        ).astype(np.int64)  # fmt: skip
        index: dict[bytes, int] = {}
        content, width = columns.tobytes(), columns.itemsize * columns.shape[1]
        keys = [content[at : at + width] for at in range(0, len(content), width)]
        inverse = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)
        first = np.zeros(len(index), dtype=np.int64)
        first[inverse[::-1]] = np.arange(len(rows))[::-1]
        distinct = np.array([self._price_row(ops, row) for row in rows[first].tolist()], dtype=np.int64)
        for column, name in enumerate(_COLUMNS):
            getattr(demands, name)[rows] = distinct[inverse, column]
        self._apply_recorded(demands, ops, rows)
        return demands

    def alone_ps(self, kernel: KernelShape, *, is_copy: bool = False) -> int:
        """Time of a kernel, or a copy engine's copy, on an idle GPU, ps, as :meth:`demands` has it."""
        sm_ps, _, _, hbm_bytes, fixed_ps, *_ = self._price(kernel, is_copy=is_copy)
        return fixed_ps + max(sm_ps, round(hbm_bytes * (1e12 / self.gpu.hbm_bytes_per_s)))

    def _price_row(self, ops: OpTable, row: int) -> tuple[int, ...]:
        is_copy = bool(ops.kind[row] == int(OpKind.MEMCPY))
        name = ops.name[row]
        kernel = KernelShape(
            name=name,
            op_class=ops.op_class[row] or ("copy" if is_copy else classify(name)),
            dtype=parse_dtype(ops.dtype[row]),
            in_shapes=parse_shapes(ops.in_shapes[row]),
            out_shapes=parse_shapes(ops.out_shapes[row]),
            flops=int(ops.flops[row]),
            bytes_read=int(ops.bytes_read[row]),
            bytes_written=int(ops.bytes_written[row]),
            replayed=bool(ops.batch[row] >= 0),
        )
        found = self._known.get((kernel, is_copy))
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[kernel, is_copy] = self._price(kernel, is_copy=is_copy)
        return found

    def _price(self, kernel: KernelShape, *, is_copy: bool) -> tuple[int, ...]:
        """One distinct kernel, in the order of ``_COLUMNS``."""
        work = memcpy_work(kernel, self._context) if is_copy else self.work(kernel)
        fixed_s = work.launches * (self.gpu.kernel_gap_s + work.prologue_s)
        seconds = fixed_s + max(work.sm_s, work.hbm_bytes / self._context.hbm_bytes_per_s)
        if not seconds <= _LONGEST_KERNEL_S:
            raise InputError(
                f"op {kernel.name!r} would take {seconds:.3g} s on one {self.gpu.name}, more than the"
                f" {_LONGEST_KERNEL_S:g} s that any kernel may take; check sequence, micro batch, clock,"
                " peak flops and HBM"
            )
        sm_ps = ps_from_s(work.sm_s)
        hbm_bytes = round(work.hbm_bytes / self.gpu.hbm_efficiency)
        fixed_ps = work.launches * ps_from_s(self.gpu.kernel_gap_s + work.prologue_s)
        origin = (_EXTRAPOLATED if self._is_beyond(kernel) else _FITTED) if work.fitted else _ROOFLINE
        measured = next((t for table in self.tables if (t := table.lookup(kernel)) is not None), None)
        if measured is not None:
            sm_ps, hbm_bytes, fixed_ps = self._of_duration(ps_from_s(measured), hbm_bytes, fixed_ps)
            origin = _MEASURED
        return sm_ps, work.blocks, work.blocks_per_sm, hbm_bytes, fixed_ps, int(is_copy), origin

    def _is_beyond(self, kernel: KernelShape) -> bool:
        """Whether a kernel runs on SMs unlike those that its formula was fitted on."""
        beyond = self._context.beyond
        if self._context.other_sms or not beyond:
            return self._context.other_sms
        op_class = kernel.op_class or classify(kernel.name)
        return op_class in _PRODUCTS and self._context.math_mode(kernel.dtype) in beyond

    def _of_duration(self, total_ps: int, hbm_bytes: int, fixed_ps: int) -> tuple[int, int, int]:
        """(sm_ps, hbm_bytes, fixed_ps) that last exactly ``total_ps`` alone, moving at most ``hbm_bytes``."""
        fixed_ps = min(fixed_ps, total_ps)
        rest_ps = total_ps - fixed_ps
        return rest_ps, min(hbm_bytes, int(rest_ps * self.gpu.hbm_bytes_per_s / PS_PER_S)), fixed_ps

    def _apply_recorded(self, demands: Demands, ops: OpTable, rows: npt.NDArray[np.int64]) -> None:
        """A duration recorded in a trace wins; the formula only says what the time was spent on."""
        for row in rows[ops.recorded_ps[rows] >= 0]:
            total_ps = int(ops.recorded_ps[row])
            parts = self._of_duration(total_ps, int(demands.hbm_bytes[row]), int(demands.fixed_ps[row]))
            demands.sm_ps[row], demands.hbm_bytes[row], demands.fixed_ps[row] = parts
            demands.origin[row] = _RECORDED


_COLUMNS = ("sm_ps", "blocks", "blocks_per_sm", "hbm_bytes", "fixed_ps", "copy_engine", "origin")
