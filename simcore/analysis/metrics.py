"""Throughput and utilisation of a step, with the conventions spelled out.

* MFU: flops that the model needs (forward and backward, nothing recomputed) per second, over the peak of all
  GPUs.  A causal mask needs half of the attention scores: they are counted once, not twice (``mfu``).
  ``mfu_full_attention`` counts all s x s scores, as Megatron-LM and PaLM (arXiv 2204.02311, appendix B) do.
* HFU: flops that were executed, recomputation and full attention included, over the same peak.
"""

from __future__ import annotations

from simcore.records import dataclass
from simcore.timeline.info import RunInfo
from simcore.units import s_from_ps


@dataclass(frozen=True)
class Throughput:
    """Rates of one step.  Shares are of ``peak_tflops_per_gpu``; 0 where the peak is unknown."""

    mfu: float
    mfu_full_attention: float
    hfu: float
    model_tflops_per_gpu: float
    model_tflops_per_gpu_full_attention: float
    executed_tflops_per_gpu: float
    peak_tflops_per_gpu: float
    tokens_per_s: float


def throughput(info: RunInfo, step_ps: int) -> Throughput:
    """Rates of a run whose step takes ``step_ps``."""
    step_s = s_from_ps(step_ps)
    gpu_seconds = step_s * info.workload.world_size

    def tflops(flops: int) -> float:
        return flops / gpu_seconds / 1e12 if gpu_seconds else 0.0

    peak = info.peak_flops_per_s / 1e12

    def share(flops: int) -> float:
        return tflops(flops) / peak if peak else 0.0

    return Throughput(
        mfu=share(info.flops.model_causal),
        mfu_full_attention=share(info.flops.model),
        hfu=share(info.flops.executed),
        model_tflops_per_gpu=tflops(info.flops.model_causal),
        model_tflops_per_gpu_full_attention=tflops(info.flops.model),
        executed_tflops_per_gpu=tflops(info.flops.executed),
        peak_tflops_per_gpu=peak,
        tokens_per_s=info.workload.tokens_per_step / step_s if step_s else 0.0,
    )
