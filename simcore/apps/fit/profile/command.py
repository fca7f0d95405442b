"""``profile-gpu``: measure the GPU that torch sees, and fit a hardware profile to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError

_MEASURED = Path(__file__).parents[4] / "hardware_profiles" / "measured"


def profile_gpu(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder. Default: hardware_profiles/measured/<gpu>.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time budget; a later run goes on.")] = 7.5,
    base: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Profile to start from. Default: by the GPU's name.")
    ] = None,
    fit_only: Annotated[
        Path | None, typer.Option("--fit-only", metavar="DIR", help="Fit what was measured before; no GPU.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the GPU that torch sees, and fit a hardware profile to it."""
    import json

    from simcore.apps.fit.profile import fit
    from simcore.apps.fit.profile.tables import read_measured

    folder = fit_only if fit_only is not None else _measure(out, minutes)
    measured = read_measured(folder)
    base = base or fit.base_profile(measured.gpu)
    fitted = fit.fit_numbers(measured, base)
    fit.write_profile(measured, base, fitted, folder / "profile.toml")
    overlaps = fit.fit_overlaps(measured)
    if as_json:
        print(json.dumps(fit.fitted_object(measured, base, fitted, overlaps, folder)))
    else:
        print(fit.fitted_text(measured, base, fitted, overlaps, folder))


def _measure(out: Path | None, minutes: float) -> Path:
    from workloads.profiling.sweep import device_folder, measure_gpu

    if not 0 < minutes <= 60:
        raise InputError(f"--minutes must be between 0 and 60, not {minutes:g}")
    folder = out if out is not None else _MEASURED / device_folder()
    if not measure_gpu(folder, minutes):
        say("not everything is measured yet: run again to go on")
    return folder
