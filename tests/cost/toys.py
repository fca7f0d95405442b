"""A GPU and constants with round numbers, so that expected times are sums one can do in the head."""

from __future__ import annotations

from dataclasses import replace

from simcore.cost.parameters import (
    AttentionParameters,
    GemmParameters,
    GenerationParameters,
    MemoryParameters,
    TrafficParameters,
    load_parameters,
)
from simcore.graph.ops import OpKind, OpRows, OpTable
from simcore.hardware import load_gpu
from simcore.hardware.specs import GpuSpec

#: 100 SMs of 1 Tflop/s each, HBM 1 TB/s, L2 100 TB/s, kernels 1 us apart, everything reaches its peak.
TOY_GPU: GpuSpec = replace(
    load_gpu("a100-80"),
    name="toy",
    num_sms=100,
    boost_clock_hz=1e9,
    peak_flops={"fp32": 10e12, "bf16": 100e12, "tf32": 50e12},
    hbm_bytes_per_s=1e12,
    l2_bytes=1_000_000,
    l2_bytes_per_s=100e12,
    kernel_gap_s=1e-6,
    gemm_efficiency=1.0,
    hbm_efficiency=1.0,
)

#: One tile of 100 x 100, no overheads.
TOY_GEMM = GemmParameters(
    tiles=((100, 100),), splits=(1,), tile_k=1, efficiency=1.0, operand_intensity=0.0, l2_share=1.0,
    multicast=1, tile_latency_s=0.0, epilogue_s=0.0, tail_share=1.0, accumulators=0, split_latency_s=0.0,
    warm_l2_share=0.0, hbm_share=1.0, overlap_loss=0.0, throttle_s=1.0, prologue_s=0.0,
    misaligned_slowdown=1.0, persistent="none", fitted=True, source="toy",
)  # fmt: skip

TOY_ATTENTION = AttentionParameters(
    math_efficiency=1.0, operand_rows=64, overlap_loss=0.0, tile_q=128, tile_k=128, block_s=0.0,
    wide_head_dim=128, wide_share=1.0, backward_efficiency=1.0, backward_overlap_loss=0.0, prologue_s=0.0,
    persistent="none", fitted=True, source="toy",
)  # fmt: skip

TOY = GenerationParameters(
    generation="toy",
    tensor=TOY_GEMM,
    simt=TOY_GEMM,
    attention={"flash2": TOY_ATTENTION},
    default_attention="flash2",
    memory=MemoryParameters(
        ramp_bytes=0.0,
        warm_l2_share=0.0,
        prologue_s=0.0,
        index_instructions=0.0,
        index_waits=0.0,
        pcie_bytes_per_s=10e9,
        classes={name: TrafficParameters(1, 1, 1, 1.0) for name in load_parameters("hopper").memory.classes},
        source="toy",
    ),
)


def with_gemm(**changes: object) -> GenerationParameters:
    """The toy constants with other GEMM constants, in both math units."""
    changed = replace(TOY_GEMM, **changes)  # type: ignore[arg-type]
    return replace(TOY, tensor=changed, simt=changed)


def op_table(*rows: dict[str, object]) -> OpTable:
    """A table of ops, compute unless a row says otherwise."""
    written = OpRows()
    for row in rows:
        written.append(**{"kind": int(OpKind.COMPUTE), **row})
    return written.table()
