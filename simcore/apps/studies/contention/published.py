"""Published slowdowns of kernels beside communication, and what shared SMs say of each.

A published row names a GPU, a kind of kernel and the communication, but not the kernel's grid.  So the
prediction is a long kernel's, whose work spreads evenly over the SMs that are left (but of a sum, whose
launch is PyTorch's); ``one_wave`` is what a
kernel would take that just fills the GPU with one block per SM, the worst case.
"""

from __future__ import annotations

from simcore.apps.replay.alone import demand_alone
from simcore.apps.studies.contention.beside import FOREVER_PS, Holding, time_beside
from simcore.collectives import NcclPlanner
from simcore.hardware import Topology, load_cluster
from simcore.hardware.sm import ThreadBlock
from simcore.records import dataclass
from simcore.units import MIB, PS_PER_US

_LONG_PS = 1_000 * PS_PER_US
_GEMM, _STREAM, _NORM, _MIXED = "gemm/conv", "elementwise/copy", "reduce/norm", "other"
#: Echo names no type; PyTorch's own is fp32 on CUDA cores.  As recorded on A100: ampere_sgemm_128x64.
_SGEMM = ThreadBlock(128, 122, 12_544)
#: PyTorch's sum of all of a tensor: blocks of 512 threads, as many as reside (ATen/native/cuda/Reduce.cuh).
_SUM_BLOCKS = 4
_SUM = ThreadBlock(512, 0, 0)
_ECHO = "Echo (arXiv 2412.12487): measured slowdowns"
_HTA = "recorded Kineto traces of facebookresearch/HolisticTraceAnalysis at f4d0062c, tests/data"
_V100 = "a recorded V100 trace that is not public"
_PAX = "recorded nsys-jax traces of NVIDIA/JAX-Toolbox at bcbbfa57, pax FSDP on 4 A100"


@dataclass(frozen=True)
class Published:
    """A published slowdown or range of them.  ``sms`` 0: the channels of an all_reduce of 25 MB.

    ``block``: what a thread block takes of its SM, where that is not as usual for its kind; ``each``: blocks
    on each SM of a kernel that is launched to fill the GPU once.
    """

    what: str
    cluster: str
    kind: str
    sms: int
    low: float
    high: float
    source: str
    group: int = 8
    block: ThreadBlock | None = None
    each: int = 0


PUBLISHED = (
    Published("A100 FSDP (XLA): GEMM, two shapes", "a100-8", _GEMM, 0, 1.65, 1.91, _PAX, 4),
    Published("A100 FSDP (XLA): fusions", "a100-8", _STREAM, 0, 1.0, 1.32, _PAX, 4),
    Published("A100 DLRM, up to 24 blocks: all kernels, median and p90", "a100-40gb-8", _MIXED, 24,
              1.16, 1.69, _HTA),
    Published("A100 DDP, 8 blocks: GEMM and convolution", "a100-40gb-8", _GEMM, 8, 1.33, 1.33, _HTA),
    Published("A100 DDP, 8 blocks: all kernels", "a100-40gb-8", _MIXED, 8, 1.04, 1.04, _HTA),
    Published("V100, 2 blocks: all kernels", "v100-16", _MIXED, 2, 1.05, 1.05, _V100),
    Published("A100 beside all_reduce of 25 MB: GEMM", "a100-8", _GEMM, 0, 1.27, 1.27, _ECHO, block=_SGEMM),
    Published("A100 beside all_reduce of 25 MB: transform", "a100-8", _STREAM, 0, 1.14, 1.14, _ECHO),
    Published("A100 beside all_reduce of 25 MB: sum", "a100-8", _NORM, 0, 1.51, 1.51, _ECHO,
              block=_SUM, each=_SUM_BLOCKS),
    Published("A100 beside all_reduce of 25 MB: gradient", "a100-8", _MIXED, 0, 1.61, 1.61, _ECHO),
    Published("A800: GEMM", "a800-8", _GEMM, 0, 1.13, 1.18, _ECHO, block=_SGEMM),
    Published("A800: LayerNorm", "a800-8", _NORM, 0, 1.09, 1.21, _ECHO),
)  # fmt: skip


@dataclass(frozen=True)
class PublishedRow:
    """A published range beside the prediction; ``one_wave`` for a kernel of one block per SM."""

    published: Published
    sms: int
    predicted: float
    one_wave: float

    @property
    def error(self) -> float:
        """Distance of the prediction from the range, relative to its nearer end; 0 inside."""
        row = self.published
        nearest = min(max(self.predicted, row.low), row.high)
        return self.predicted / nearest - 1

    def as_dict(self) -> dict[str, object]:
        """The row as JSON values."""
        row = self.published
        return {
            "what": row.what, "recorded_low": row.low, "recorded_high": row.high, "sms_held": self.sms,
            "predicted": self.predicted, "predicted_one_wave": self.one_wave, "error": self.error,
            "source": row.source,
        }  # fmt: skip


def published_rows() -> list[PublishedRow]:
    """Predictions for all of :data:`PUBLISHED`."""
    return [_predict(row) for row in PUBLISHED]


def _predict(row: Published) -> PublishedRow:
    cluster = load_cluster(row.cluster, {})
    gpu = cluster.gpu
    sms = row.sms
    if not sms:
        plan = NcclPlanner(Topology(cluster)).plan("all_reduce", 25 * MIB, tuple(range(row.group)))
        sms = plan.channels
    beside = [Holding(0, FOREVER_PS, sms)]
    even = demand_alone(_LONG_PS, 0, row.kind, row.each * gpu.num_sms, max(1, row.each), gpu, row.block)
    filling = demand_alone(_LONG_PS, 0, _GEMM, gpu.num_sms, 1, gpu)
    even_ps, filling_ps = (time_beside(gpu, demand, _LONG_PS, beside) for demand in (even, filling))
    return PublishedRow(row, sms, even_ps / _LONG_PS, filling_ps / _LONG_PS)
