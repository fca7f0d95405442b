"""Rows of a GPU predicted without any row of it: how far the constants carry.

A GPU whose generation was fitted on another GPU is predicted as always.  Where it is the only one of its
generation, constants come from another generation: shares are the same, latencies are the same number of
clock cycles, and what a generation is known to do (tiles, persistence, multicast, the rows that one read of
operands serves) is its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simcore.apps.measured.kernels import KernelRow, predict_row
from simcore.apps.measured.tables import ErrorTable, error_table
from simcore.cost.parameters import AttentionParameters, GemmParameters, GenerationParameters, load_parameters
from simcore.cost.roofline import RooflineCost
from simcore.hardware import load_gpu
from simcore.hardware.specs import GpuSpec

#: The attention kernels whose code is one for several generations, written for the instructions of each.
_SHARED_ATTENTION = "trtllm"


def left_out_errors(rows: Sequence[KernelRow]) -> ErrorTable:
    """Errors by GPU and op of rows that can be predicted without those of their GPU, microseconds.

    Covers products and the attention whose code several generations share.
    """
    fitted_on: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        last = row.kernels[-1]
        if last.op_class == "gemm" and last.dtype == "bfloat16":
            fitted_on[load_gpu(row.gpu).generation].add(row.gpu)
    costs: dict[str, RooflineCost | None] = {}
    scored = []
    for row in rows:
        last = row.kernels[-1]
        if last.op_class not in ("gemm", "bgemm") and not last.name.startswith(_SHARED_ATTENTION):
            continue
        if row.gpu not in costs:
            costs[row.gpu] = _cost_without(row.gpu, fitted_on)
        cost = costs[row.gpu]
        if cost is not None:
            family, predicted = f"{row.columns['op']} {row.gpu}", predict_row(row, cost)
            scored.append(
                {
                    "id": row.line,
                    "family": family,
                    "measured": row.seconds * 1e6,
                    "predicted": predicted * 1e6,
                }
            )
    return error_table(scored)


def left_out_lines(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Mean errors of the same rows with their GPU out of the fit and in it, for people."""
    lines = [f"{'GPU left out of the fit':58}{'n':>7}{'mean %':>9}{'in fit %':>9}"]
    for name, of in found.items():
        lines.append(f"{name:58}{of['n']:7.0f}{100 * of['mape']:9.1f}{100 * of['in_fit']:9.1f}")
    return lines


def _cost_without(gpu: str, fitted_on: dict[str, set[str]]) -> RooflineCost | None:
    """A cost model without rows of ``gpu``; None when no other GPU has rows."""
    spec = load_gpu(gpu)
    own = load_parameters(spec.generation)
    if fitted_on.get(spec.generation, set()) - {gpu}:
        return RooflineCost(spec, parameters=own)
    others = sorted(
        (name, found) for name, gpus in fitted_on.items() for found in gpus if name != spec.generation
    )
    if not others:
        return None
    generation, source = others[0]
    return RooflineCost(spec, parameters=carried(load_parameters(generation), load_gpu(source), own, spec))


def carried(
    constants: GenerationParameters, of: GpuSpec, target: GenerationParameters, to: GpuSpec
) -> GenerationParameters:
    """``target`` with the fitted constants of another generation, measured on GPU ``of``, for GPU ``to``."""
    cycles = of.boost_clock_hz / to.boost_clock_hz

    def start_s(prologue_s: float) -> float:
        """A kernel starts some cycles after another's end, of which the gap is a part."""
        return max(0.0, (prologue_s + of.kernel_gap_s) * cycles - to.kernel_gap_s)

    source, own = constants.tensor, target.tensor
    tensor: GemmParameters = replace(
        source, tiles=own.tiles, splits=own.splits, multicast=own.multicast, persistent=own.persistent,
        tile_latency_s=source.tile_latency_s * cycles, epilogue_s=source.epilogue_s * cycles,
        split_latency_s=source.split_latency_s * cycles, prologue_s=start_s(source.prologue_s),
    )  # fmt: skip
    attention = dict(target.attention)
    known = constants.attention.get(_SHARED_ATTENTION)
    if known is not None and _SHARED_ATTENTION in attention:
        written = attention[_SHARED_ATTENTION]
        moved: AttentionParameters = replace(
            known, persistent=written.persistent, operand_rows=written.operand_rows, tile_q=written.tile_q,
            tile_k=written.tile_k, wide_head_dim=written.wide_head_dim, block_s=known.block_s * cycles,
            prologue_s=start_s(known.prologue_s),
        )  # fmt: skip
        attention[_SHARED_ATTENTION] = moved
    return replace(target, tensor=tensor, attention=attention)
