"""Rows of a GPU predicted without any row of it: how far the constants carry.

A GPU that no fit has seen (``fitted_on`` of its generation's file) is predicted as always.  Where others of
its generation were fitted, too, the constants are fitted anew to their rows alone, and the share that long
products keep under the power limit (``gemm_efficiency``) is theirs.  Where it is the only one of its
generation, constants come from another generation: shares are the same, latencies are the same number of
clock cycles, and what a generation is known to do (tiles, persistence, multicast, the rows that one read of
operands serves) is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from simcore.apps.fit.kernels import GEMM_CONSTANTS, fit_attention, fit_gemm, tells
from simcore.apps.measured.kernels import KernelRow, held_at_the_limit, predict_row
from simcore.apps.measured.tables import ErrorTable, error_table
from simcore.cost.parameters import AttentionParameters, GemmParameters, GenerationParameters, load_parameters
from simcore.cost.roofline import RooflineCost
from simcore.hardware import load_gpu
from simcore.hardware.specs import GpuSpec
from simcore.tables import names

#: The attention kernels whose code is one for several generations, written for the instructions of each.
_SHARED_ATTENTION = "trtllm"


def left_out_errors(rows: Sequence[KernelRow], rounds: int = 2) -> ErrorTable:
    """Errors by GPU and op of rows that can be predicted without those of their GPU, microseconds.

    Covers products and the attention whose code several generations share.  ``rounds``: of a fit to others.
    """
    scored = []
    for gpu in dict.fromkeys(row.gpu for row in rows):
        known = _without(gpu, rows, rounds)
        for row in rows if known is not None else ():
            last = row.kernels[-1]
            if row.gpu != gpu or not (
                last.op_class in ("gemm", "bgemm") or last.name.startswith(_SHARED_ATTENTION)
            ):
                continue
            assert known is not None
            spec, constants = known
            held = held_at_the_limit(constants) if row.sustained else constants
            predicted = predict_row(row, RooflineCost(spec, parameters=held))
            scored.append(
                {
                    "id": row.line,
                    "family": f"{row.columns['op']} {gpu}",
                    "measured": row.seconds * 1e6,
                    "predicted": predicted * 1e6,
                }
            )
    return error_table(scored)


def left_out_lines(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Mean errors of the same rows with their GPU out of the fit and in it, for people."""
    lines = [f"{'GPU left out of the fit':42}{'n':>7}{'mean %':>9}{'in fit %':>9}"]
    for name, of in found.items():
        lines.append(f"{name:42}{of['n']:7.0f}{100 * of['mape']:9.1f}{100 * of['in_fit']:9.1f}")
    return lines


def _without(gpu: str, rows: Sequence[KernelRow], rounds: int) -> tuple[GpuSpec, GenerationParameters] | None:
    """A GPU and its constants as if it had no rows; None when no other GPU has any."""
    spec = load_gpu(gpu)
    own = load_parameters(spec.table("cost"))
    if gpu not in own.fitted_on:
        return spec, own
    tell = [row for row in rows if row.gpu != gpu and row.gpu in own.fitted_on]
    if tell:
        others = [load_gpu(name) for name in dict.fromkeys(row.gpu for row in tell)]
        shares = [other.gemm_efficiency for other in others]
        return replace(spec, gemm_efficiency=fmean(shares)), _refitted(own, tell, rounds)
    for generation in names("hardware_profiles", "cost"):
        source = next((name for name in load_parameters(generation).fitted_on if name != gpu), None)
        if generation != own.generation and any(row.gpu == source for row in rows):
            assert source is not None
            return spec, carried(load_parameters(generation), load_gpu(source), own, spec)
    return None


def _refitted(own: GenerationParameters, rows: Sequence[KernelRow], rounds: int) -> GenerationParameters:
    """``own`` with what ``rows`` alone tell."""
    for unit in GEMM_CONSTANTS:
        if getattr(own, unit) is not None and tells(own.generation, rows, unit):
            values, _ = fit_gemm(own, rows, unit, rounds)
            own = replace(own, **{unit: replace(getattr(own, unit), **values)})
    attention = dict(own.attention)
    for family, values, _ in fit_attention(own, rows, rounds):
        attention[family] = replace(attention[family], **values)  # type: ignore[arg-type]
    return replace(own, attention=attention)


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
