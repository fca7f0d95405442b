"""The command ``bench published``: what users pay for jobs as people run them, file by file."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Final

import typer

from simcore.apps.bench.described import Row, measure, print_table
from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError, nearest

#: The largest job of each family of published runs, as ``run_sim`` takes it; its first lines say its source.
FOLDER: Final = Path(__file__).with_name("published_jobs")
_WORST_S, _MEDIAN_S, _MOST_BYTES = 8.0, 1.0, 500e6  # goals; times are wall times on two cores


def bench_published(
    families: Annotated[
        list[str] | None, typer.Argument(help="Families of published runs. Default: all.", show_default=False)
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each; the best one counts.")] = 1,
    no_perfetto: Annotated[bool, typer.Option("--no-perfetto", help="Without files for Perfetto.")] = False,
    as_json: Json = False,
) -> None:
    """What the largest published job of each family costs, from starting Python to the last file written."""
    files = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
    for name in families or ():
        if name not in files:
            raise InputError(f"unknown family {name!r}{nearest(name, files)}")
    rows: dict[str, Row] = {}
    for name in families or files:
        say(f"{name} ...")
        rows[name] = measure([str(files[name]), *(["--no-perfetto"] if no_perfetto else [])], repeat)
    told = summary(rows)
    if as_json:
        print(json.dumps({"rows": rows, **told}))
        return
    print_table(rows)
    print(
        f"wall time: median {told['median_wall_s']:.2f} s (goal {_MEDIAN_S:g} s), worst"
        f" {told['worst_wall_s']:.2f} s (goal {_WORST_S:g} s)\n"
        f"CPU time: median {told['median_cpu_s']:.2f} s, worst {told['worst_cpu_s']:.2f} s\n"
        f"most memory of a process: {told['most_peak_rss_bytes'] / 1e6:,.0f} MB"
        f" (goal {_MOST_BYTES / 1e6:g} MB)"
    )


def summary(rows: dict[str, Row]) -> dict[str, float]:
    """Median and worst wall and CPU seconds, most memory of a process in bytes."""
    told: dict[str, float] = {}
    for kind in ("wall_s", "cpu_s"):
        times = [row[kind] for row in rows.values()]
        told |= {f"median_{kind}": statistics.median(times), f"worst_{kind}": max(times)}
    return {**told, "most_peak_rss_bytes": max(row["peak_rss_bytes"] for row in rows.values())}
