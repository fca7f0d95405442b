"""``contention-study``: slowdowns beside communication, predicted against recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.apps.options import Json


def contention_study(
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="TRACE", help="Files or folders, a job each.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="For traces that name no GPU.")
    ] = None,
    learned: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A learned interference. Default: cross-validated.")
    ] = None,
    overlap: Annotated[
        Path | None,
        typer.Option(metavar="CSV|DIR", help="Kernels alone and beside others: a table, or measured."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write kernels of the traces alone and beside, as --overlap reads."),
    ] = None,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="Fit the model's numbers without each trace, try them on it.")
    ] = False,
    worth: Annotated[
        bool, typer.Option("--worth", help="Also predict without each mechanism of the model.")
    ] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Also replay the steps with shared GPUs.")] = False,
    sms_per_channel: Annotated[float, typer.Option(metavar="N", help="What if a channel took N SMs.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Kernels beside communication: predicted slowdown against recorded and published ones."""
    import json

    from simcore.apps.studies.contention.study import contention_object
    from simcore.apps.studies.contention.summary import study_text

    study = contention_object(
        traces or (), cluster, learned, steps=steps, sms_per_channel=sms_per_channel, overlap=overlap,
        without=left_out, table=table,
        mechanisms=worth,
    )  # fmt: skip
    print(json.dumps(study) if as_json else study_text(study))
