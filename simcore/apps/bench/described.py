"""The command ``bench described``: from a description on the command line to its result, all in all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simcore.apps.child import RUN_SIM, run_python
from simcore.apps.options import Json
from simcore.apps.progress import say
from simcore.errors import InputError, nearest
from simcore.records import dataclass

Row = dict[str, Any]

_CLUSTER: Final = "h100-1024"
_GOAL_S: Final = 1.0
#: Of all jobs: nothing that a measurement depends on is left to defaults.
_ALL: Final = ("training.seq=2048", "training.micro_batch=1")
_START: Final = """
import gc, os
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
gc.set_threshold(1_000_000)
import simcore.apps.run.run_sim, simcore.apps.run.scenario, simcore.apps.run.simulation
import simcore.timeline.writer, workloads.jobs
gc.freeze()
"""


@dataclass(frozen=True)
class BenchedJob:
    """A described job: a model's name and what is set."""

    model: str
    settings: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """As ``run_sim`` takes them."""
        settings = (*self.settings, *_ALL)
        return [self.model, "--cluster", _CLUSTER, *(f"--set={setting}" for setting in settings)]


#: By name; ``pp8`` and what follows it are Llama-3 70B, GPT-175B and Mixtral on 1,024 H100.
JOBS: Final = {
    "pp8": BenchedJob("llama3-70b", ("parallel.tp=8", "parallel.pp=8", "training.global_batch=512")),
    "pp8-64": BenchedJob("llama3-70b", ("parallel.tp=8", "parallel.pp=8", "training.global_batch=1024")),
    "pp8-interleaved": BenchedJob(
        "llama3-70b",
        ("parallel.tp=8", "parallel.pp=8", "parallel.virtual_stages=5", "training.global_batch=512"),
    ),
    "gpt-interleaved": BenchedJob(
        "gpt3-175b",
        ("parallel.tp=8", "parallel.pp=8", "parallel.virtual_stages=6", "training.global_batch=1024"),
    ),
    "moe-pp8": BenchedJob(
        "mixtral-8x22b", ("parallel.tp=2", "parallel.pp=8", "parallel.ep=8", "training.global_batch=1024")
    ),
    "fsdp": BenchedJob(
        "llama3-70b",
        (
            "software.preset=torchtitan-fsdp2",
            "training.recompute=full",
            "parallel.dp=1024",
            "training.global_batch=1024",
        ),
    ),
    "moe": BenchedJob("mixtral-8x7b", ("parallel.ep=8", "training.global_batch=1024")),
}

#: Stages of a run (``run.json``) and how the table calls them.
_PARTS: Final = {
    "loading": "load",
    "simulating": "simulate",
    "writing the timeline": "write",
    "analysing": "analyse",
    "writing the page": "page",
    "writing for Perfetto": "Perfetto",
}


def measure(arguments: Sequence[str], repeat: int) -> Row:
    """``run_sim`` with ``arguments`` in new processes, files and all; the one that took least CPU time.

    Keys: ``gpus, rank_classes, engine_events, step_time_s, wall_s, cpu_s`` (of the process and its forks),
    ``peak_rss_bytes`` (of the larger one), ``run_bytes{file: bytes}``, ``parts_s{stage: wall seconds}``; the
    part ``start and end`` is what is left: starting Python, imports, arguments, printing, ending.
    """
    best: Row | None = None
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="bench-described-") as folder:
            out = Path(folder) / "run"
            spent = run_python([*RUN_SIM, *arguments, "--json", "--out", str(out)])
            info = json.loads((out / "run.json").read_text(encoding="utf-8"))
            sizes = {file.name: file.stat().st_size for file in sorted(out.iterdir())}
        if best is not None and best["cpu_s"] <= spent.cpu_s:
            continue
        found = json.loads(spent.stdout)
        parts = {name: info["wall_s"].get(stage, 0.0) for stage, name in _PARTS.items()}
        best = {
            **{key: found[key] for key in ("gpus", "rank_classes", "engine_events", "step_time_s")},
            "wall_s": spent.wall_s,
            "cpu_s": spent.cpu_s,
            "peak_rss_bytes": spent.peak_rss_bytes,
            "run_bytes": sizes,
            "parts_s": {"start and end": spent.wall_s - sum(parts.values()), **parts},
        }
    assert best is not None, "at least one run"
    return best


def bench_described(
    jobs: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(JOBS)}. Default: all.", show_default=False)
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each; the best one counts.")] = 3,
    as_json: Json = False,
) -> None:
    """What described jobs on 1,024 GPUs cost, from starting Python to the last file written."""
    for name in jobs or ():
        if name not in JOBS:
            raise InputError(f"unknown job {name!r}{nearest(name, JOBS)}")
    rows = {}
    for name in jobs or JOBS:
        say(f"{name}: {' '.join(JOBS[name].arguments)} ...")
        rows[name] = measure(JOBS[name].arguments, repeat)
    starts = [run_python(["-c", _START]) for _ in range(repeat)]
    start = min(starts, key=lambda spent: spent.cpu_s)
    if as_json:
        print(json.dumps({"rows": rows, "start_s": {"wall_s": start.wall_s, "cpu_s": start.cpu_s}}))
        return
    print_table(rows)
    print(
        f"starting Python and importing what a run needs: {start.wall_s:.2f} s of wall time,"
        f" {start.cpu_s:.2f} s of CPU time; goal for a run: {_GOAL_S:g} s"
    )


def print_table(rows: Mapping[str, Row]) -> None:
    """A row for each job, as :func:`measure` finds it, in 80 columns."""
    print(_line(("job", "classes", "events", "wall", "CPU", "MiB", "start", "load", "simulate", "files")))
    for name, row in rows.items():
        parts = dict(row["parts_s"])
        start, load, simulate = (parts.pop(part) for part in ("start and end", "load", "simulate"))
        seconds = (start, load, simulate, sum(parts.values()))
        cells = (
            name, f"{row['rank_classes']:,}", f"{row['engine_events']:,}", f"{row['wall_s']:.2f}",
            f"{row['cpu_s']:.2f}", f"{row['peak_rss_bytes'] / 1024**2:,.0f}",
            *(f"{part:.2f}" for part in seconds),
        )  # fmt: skip
        print(_line(cells))
    print("seconds; start: Python, imports, end; files: timeline, analysis, page, Perfetto")


def _line(cells: Sequence[str]) -> str:
    widths = (18, 8, 8, 6, 6, 6, 6, 6, 9, 6)
    first, *rest = zip(cells, widths, strict=True)
    return f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in rest)
