"""The command ``profile_gpu``: measure the GPU that torch sees, and fit a hardware profile to it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcore.apps.fit.profile.fit import (
    Fitted,
    SmsPerBlock,
    base_profile,
    fit_numbers,
    fit_overlaps,
    write_profile,
)
from simcore.apps.fit.profile.tables import MeasuredGpu, read_measured
from simcore.errors import InputError, SimcoreError

_MEASURED = Path(__file__).parents[4] / "hardware_profiles" / "measured"


def profile_gpu(argv: Sequence[str]) -> int:
    """``[--out DIR] [--minutes M] [--base PROFILE] [--fit-only DIR] [--json]``.  Returns the exit code."""
    parser = argparse.ArgumentParser(prog="profile_gpu.py", description="Measure a GPU and fit its profile.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: hardware_profiles/measured/<gpu>")
    parser.add_argument("--minutes", type=float, default=7.5, help="time budget; a later run goes on")
    parser.add_argument("--base", metavar="PROFILE", help="profile to start from; default: by the GPU's name")
    parser.add_argument("--fit-only", type=Path, metavar="DIR", help="fit what was measured before; no GPU")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    options = parser.parse_args(argv)
    try:
        folder = options.fit_only if options.fit_only is not None else _measure(options.out, options.minutes)
        measured = read_measured(folder)
        base = options.base or base_profile(measured.gpu)
        fitted = fit_numbers(measured, base)
        write_profile(measured, base, fitted, folder / "profile.toml")
        overlaps = fit_overlaps(measured)
    except SimcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(_object(measured, base, fitted, overlaps, folder)))
    else:
        print(_text(measured, base, fitted, overlaps, folder))
    return 0


def _measure(out: Path | None, minutes: float) -> Path:
    from workloads.profiling.sweep import device_folder, measure_gpu

    if not 0 < minutes <= 60:
        raise InputError(f"--minutes must be between 0 and 60, not {minutes:g}")
    folder = out if out is not None else _MEASURED / device_folder()
    if not measure_gpu(folder, minutes):
        print("not everything is measured yet: run again to go on", file=sys.stderr)
    return folder


def _object(
    measured: MeasuredGpu, base: str, fitted: list[Fitted], overlaps: list[SmsPerBlock], folder: Path
) -> dict[str, Any]:
    return {
        "gpu": measured.gpu,
        "base": base,
        "profile": str(folder / "profile.toml"),
        "fitted": [vars(one) for one in fitted],
        "sms_per_copy_block": [vars(one) for one in overlaps],
        "kernels": len(measured.kernels),
        "overlaps": len(measured.overlaps),
    }


def _text(
    measured: MeasuredGpu, base: str, fitted: list[Fitted], overlaps: list[SmsPerBlock], folder: Path
) -> str:
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
