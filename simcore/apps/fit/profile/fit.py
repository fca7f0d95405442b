"""A hardware profile from measurements: a datasheet's profile with what was measured in its place."""

from __future__ import annotations

import math
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from simcore.apps.fit.profile.tables import MeasuredGpu, OverlapRow
from simcore.errors import InputError
from simcore.files import whole_text
from simcore.hardware import load_gpu, named_board
from simcore.records import dataclass

_GPU_PROFILES = Path(__file__).parents[4] / "hardware_profiles" / "gpu"
#: A product this large runs long enough for its clock to settle.
_LARGE_FLOPS = 5e11
_STREAMING = ("elementwise", "copy")


@dataclass(frozen=True)
class Fitted:
    """A number that was measured, in the unit of the profile's key, and the one that the datasheet gave."""

    key: str
    value: float
    unit: str
    before: float
    how: str


@dataclass(frozen=True)
class SmsPerBlock:
    """SMs that a kernel loses to each thread block beside it, from the slope of 1 - 1/slowdown over blocks.

    1 where a block takes one SM and the kernel's work spreads over the others; 0 where memory is what counts.
    """

    kernel: str
    sms: float
    worst_residual: float


def base_profile(gpu: str) -> str:
    """The project's profile of a GPU by its name.  InputError, with the known ones, for none."""
    found = named_board(gpu)
    if found is None:
        known = ", ".join(sorted(path.stem for path in _GPU_PROFILES.glob("*.toml")))
        raise InputError(f"there is no profile of {gpu!r} to start from: name one with --base ({known})")
    return found.gpu


def fit_numbers(measured: MeasuredGpu, base: str) -> list[Fitted]:
    """What the measurements say of a profile's numbers; nothing for what was not measured.

    * ``gemm_efficiency``: median over bf16 products of 0.5 Tflop and more, of the datasheet's peak
    * ``hbm_efficiency``: 90th percentile over streaming kernels of 64 MiB and more, of the datasheet's rate
    * ``launch_overhead_s``: host time of one launch; ``launch_latency_s``: a launch and the wait for it,
      less that and the kernel, whose time is the spacing of queued ones

    Errors: InputError for an unknown base, or times that beat the datasheet by more than a tenth: then it is
    another GPU.
    """
    profile = load_gpu(base)
    found = []
    if measured.num_sms != profile.num_sms:
        raise InputError(f"{measured.gpu} has {measured.num_sms} SMs, profile {base!r} {profile.num_sms}")
    peak = profile.peak_flops.get("bf16") or profile.peak_flops.get("fp16", 0.0)
    rates = [
        row.flops_per_s
        for row in measured.kernels
        if row.op_class == "gemm" and row.dtype in ("bfloat16", "float16") and row.flops >= _LARGE_FLOPS
    ]
    if rates and peak:
        share = _share("bf16 GEMM", float(np.median(rates)), peak, "flop/s")
        how = f"median of {len(rates)} products of at least 0.5 Tflop"
        found.append(Fitted("gemm_efficiency", share, "ratio", profile.gemm_efficiency, how))
    rates = [
        row.bytes_per_s
        for row in measured.kernels
        if row.op_class in _STREAMING and row.num_bytes >= 64 << 20
    ]
    if rates:
        share = _share("streaming kernel", float(np.quantile(rates, 0.9)), profile.hbm_bytes_per_s, "bytes/s")
        how = f"90th percentile of {len(rates)} elementwise and copy kernels of at least 64 MiB"
        found.append(Fitted("hbm_efficiency", share, "ratio", profile.hbm_efficiency, how))
    launch = measured.launch
    if launch.get("launch_us"):
        before = profile.launch_overhead_s * 1e6
        found.append(
            Fitted(
                "launch_overhead_s", launch["launch_us"], "us", before, "mean of 200 launches of a small op"
            )
        )
        latency = (
            launch.get("round_trip_us", 0.0) - launch["launch_us"] - launch.get("stream_spacing_us", 0.0)
        )
        if latency > 0:
            before = profile.launch_latency_s * 1e6
            how = "median of 50: launch and wait for it, less the launch call and the kernel"
            found.append(Fitted("launch_latency_s", latency, "us", before, how))
    return found


def _share(what: str, rate: float, peak: float, unit: str) -> float:
    share = rate / peak
    if share > 1.1:
        raise InputError(
            f"a {what} reaches {rate:.3g} of {peak:.3g} {unit}: the base is another GPU's profile"
        )
    return min(1.0, share)


def fit_overlaps(measured: MeasuredGpu) -> list[SmsPerBlock]:
    """SMs lost per copying block, by kernel, worst first."""
    by_kernel: dict[str, list[OverlapRow]] = defaultdict(list)
    for row in measured.overlaps:
        by_kernel[f"{row.op} {row.shapes}"].append(row)
    found = []
    for kernel, rows in by_kernel.items():
        blocks = np.array([row.copy_blocks for row in rows], dtype=np.float64)
        lost = np.array([1.0 - 1.0 / max(1.0, row.slowdown) for row in rows]) * measured.num_sms
        slope = float((blocks * lost).sum() / (blocks * blocks).sum())
        left = np.maximum(1.0, measured.num_sms - slope * blocks)
        modelled = measured.num_sms / left
        actual = np.array([row.slowdown for row in rows])
        found.append(SmsPerBlock(kernel, slope, float(np.abs(modelled / actual - 1).max())))
    return sorted(found, key=lambda one: -one.sms)


def write_profile(measured: MeasuredGpu, base: str, fitted: list[Fitted], path: Path) -> None:
    """Write the base profile with the fitted numbers in place of its own, each with its source."""
    try:
        content = tomllib.loads((_GPU_PROFILES / f"{base}.toml").read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read profile {base!r}: {error.strerror}") from None
    content["name"] = f"{content['name']}, measured"
    day = measured.measured or "day not recorded"
    for one in fitted:
        source = f"scripts/profile_gpu.py on {measured.gpu} ({day}): {one.how}"
        content[one.key] = {"value": _rounded(one.value), "unit": one.unit, "source": source}
    lines = [f"# {measured.gpu}: profile {base!r} with what scripts/profile_gpu.py measured ({day})."]
    tables = {key: value for key, value in content.items() if _is_table(value)}
    lines += [f"{key} = {_toml(value)}" for key, value in content.items() if key not in tables]
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    whole_text(path, "\n".join(lines) + "\n")
    load_gpu(str(path))  # what was written is a profile


def fitted_object(
    measured: MeasuredGpu, base: str, fitted: list[Fitted], overlaps: list[SmsPerBlock], folder: Path
) -> dict[str, Any]:
    """What was fitted, for JSON."""
    return {
        "gpu": measured.gpu,
        "base": base,
        "profile": str(folder / "profile.toml"),
        "fitted": [vars(one) for one in fitted],
        "sms_per_copy_block": [vars(one) for one in overlaps],
        "kernels": len(measured.kernels),
        "overlaps": len(measured.overlaps),
    }


def fitted_text(
    measured: MeasuredGpu, base: str, fitted: list[Fitted], overlaps: list[SmsPerBlock], folder: Path
) -> str:
    """What was fitted, for people."""
    lines = [
        f"{measured.gpu}: {len(measured.kernels)} kernels, {len(measured.overlaps)} overlaps; base {base!r}"
    ]
    lines += [
        f"  {one.key:20} {one.value:8.4g} {one.unit:6} (profile {base}: {one.before:.4g}) {one.how}"
        for one in fitted
    ]
    lines += [
        f"  {kernel.kernel[:60]:60} loses {kernel.sms:.2f} SMs a copying block"
        f" (worst residual {kernel.worst_residual:.1%})"
        for kernel in overlaps
    ]
    return "\n".join([*lines, f"profile written to {folder / 'profile.toml'}"])


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "value" not in value


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if math.isfinite(value) else value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
