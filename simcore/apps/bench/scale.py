"""The command ``bench scale``: one kind of job on more and more GPUs, each size in a process of its own."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simcore.apps.child import run_python
from simcore.apps.options import Json
from simcore.apps.process import alone
from simcore.apps.progress import say
from simcore.errors import InputError

#: Seconds that Echo needs, by GPUs (arXiv 2412.12487, table 8).
ECHO_S: Final = {
    16: 4.4, 64: 42.4, 128: 83.4, 256: 167.6, 1024: 718.7, 4096: 3457.7, 8192: 4976.9,
}  # fmt: skip

_PREFIX: Final = "scale-"
_CLUSTER: Final = "h800"
_UNFOLDED_UP_TO: Final = 1024  # sizes that are measured without folding unless asked for
Row = dict[str, Any]


def scale_workloads() -> dict[int, str]:
    """Catalog workloads of the scale benchmark by GPUs, ascending."""
    from workloads import catalog

    found = {}
    for name in catalog.names():
        if name.startswith(_PREFIX):
            header = json.loads((catalog.path(name) / "graph.json").read_text(encoding="utf-8"))
            found[int(header["workload"]["world_size"])] = name
    return dict(sorted(found.items()))


def measure_size(workload: str, gpus: int, *, fold: bool) -> Row:
    """Simulate ``workload`` on as many H800 as it has ranks, in a new process, with all that a user pays for.

    That is starting Python, loading the graph, mapping kernels, the partition, the simulation, the run
    folder, its analysis and its Perfetto file.  Keys: ``gpus, rank_classes, engine_events, kernels,
    events_per_kernel, wall_s, cpu_s, peak_rss_bytes, step_time_s, timeline_bytes, run_bytes, parts_s{stage:
    wall seconds}``; ``kernels`` are those simulated: of one rank per class.
    """
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        arguments = [workload, str(gpus), "fold" if fold else "no-fold", str(time.time()), folder]
        row: Row = json.loads(run_python(["-m", "simcore.apps.bench.scale", *arguments]).stdout)
    return row


def _simulate_here(workload: str, gpus: int, fold: bool, began_s: float, folder: Path) -> Row:
    """The child's part; ``began_s`` is when its process was asked for, seconds since the epoch."""
    import resource

    from simcore.apps.progress import StageTimer
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.apps.run.simulation import run_scenario

    stages = StageTimer()
    scenario = resolve_scenario(workload, cluster=f"{_CLUSTER}-{gpus}", settings={})
    outcome = run_scenario(scenario, folder / "run", stages, fold=fold)
    wall_s, cpu_s = time.time() - began_s, time.process_time()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    info = outcome.info
    kernels = _num_kernels(outcome.run_dir, each=not fold)
    files = {file.name: file.stat().st_size for file in outcome.run_dir.iterdir()}
    return {
        "gpus": gpus,
        "workload": workload,
        "rank_classes": info.num_rank_classes,
        "engine_events": info.engine_events,
        "kernels": kernels,
        "events_per_kernel": info.engine_events / max(1, kernels),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_rss_bytes": peak_kib * 1024,
        "step_time_s": info.step_ps / 1e12,
        "timeline_bytes": files["timeline.parquet"],
        "run_bytes": sum(files.values()),
        "parts_s": dict(stages.seconds),
    }


def _num_kernels(run_dir: Path, *, each: bool) -> int:
    """Kernels, copies and communication in a timeline, without what only the host does: of those ranks that
    stand for others, or of ``each``.
    """
    from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS
    from simcore.timeline import Timeline

    executed = COMPUTE_KINDS + COMMUNICATION_KINDS
    count = 0
    for rows in Timeline.open(run_dir).representatives(("kind",)):
        codes, names = rows.strings("kind")
        wanted = [code for code, name in enumerate(names) if name in executed]
        count += int(sum((codes == code).sum() for code in wanted)) * (rows.num_ranks if each else 1)
    return count


def growth_exponent(
    rows: Sequence[Mapping[str, Any]], key: str = "wall_s", over: str = "gpus"
) -> float | None:
    """``b`` of the power law ``key = a * over ** b``, by least squares in logarithms; None for one size."""
    points = [(math.log(row[over]), math.log(row[key])) for row in rows]
    mean_x = math.fsum(x for x, _ in points) / max(1, len(points))
    mean_y = math.fsum(y for _, y in points) / max(1, len(points))
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0.0:
        return None
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def echo_beside(gpus: int) -> tuple[int, float] | None:
    """(GPUs, seconds) of the largest job that Echo reports and that is not larger than ``gpus``."""
    size = max((size for size in ECHO_S if size <= gpus), default=None)
    return None if size is None else (size, ECHO_S[size])


def chosen_sizes(asked: Sequence[int], known: Mapping[int, str], *, fold: bool) -> list[int]:
    """Sizes to measure, ascending.  InputError, naming those there are, for one without a graph."""
    for gpus in asked:
        if gpus not in known:
            there = ", ".join(f"{size:,}" for size in known)
            raise InputError(f"no graph of a job on {gpus:,} GPUs to measure; there are {there}")
    return sorted(set(asked)) or [size for size in known if fold or size <= _UNFOLDED_UP_TO]


def bench_scale(
    gpus: Annotated[
        list[int] | None,
        typer.Option("--gpus", metavar="N ...", help="Sizes. Default: all; without folding, up to 1024."),
    ] = None,
    more: Annotated[list[int] | None, typer.Argument(hidden=True)] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Simulate every rank by itself.")] = False,
    as_json: Json = False,
) -> None:
    """What simulating a job costs on more and more GPUs: GPT-175B, PP16 x TP8, 1 to 1,024 replicas."""
    known = scale_workloads()
    rows = []
    for size in chosen_sizes([*(gpus or ()), *(more or ())], known, fold=not no_fold):
        say(f"{known[size]}: {size:,} GPUs ...")
        rows.append(measure_size(known[size], size, fold=not no_fold))
    if as_json:
        report = {
            "rows": rows,
            "folded": not no_fold,
            "growth_exponent": growth_exponent(rows),
            "cpu_growth_exponent": growth_exponent(rows, "cpu_s"),
            "echo_s": {str(size): seconds for size, seconds in ECHO_S.items()},
        }
        print(json.dumps(report))
    else:
        _print_table(rows)


_HEADINGS: Final = (
    "GPUs", "classes", "events", "kernels", "ev/kernel", "wall s", "CPU s", "peak MiB", "run MB", "step s",
    "Echo s",
)  # fmt: skip


def _print_table(rows: Sequence[Row]) -> None:
    print(_line(_HEADINGS))
    for row in rows:
        echo = echo_beside(row["gpus"])
        beside = "" if echo is None else f"{echo[1]:,.1f}"
        if echo is not None and echo[0] != row["gpus"]:
            beside += f" on {echo[0]:,}"
        cells = (
            f"{row['gpus']:,}", f"{row['rank_classes']:,}", f"{row['engine_events']:,}",
            f"{row['kernels']:,}", f"{row['events_per_kernel']:.2f}", f"{row['wall_s']:.1f}",
            f"{row['cpu_s']:.1f}", f"{row['peak_rss_bytes'] / 1024**2:,.0f}",
            f"{row['run_bytes'] / 1e6:.1f}", f"{row['step_time_s']:.3f}", beside,
        )  # fmt: skip
        print(_line(cells))
    for name, key in (("wall time", "wall_s"), ("CPU time", "cpu_s")):
        exponent = growth_exponent(rows, key)
        if exponent is not None:
            print(f"{name} grows as GPUs^{exponent:.2f}")
    print("Echo: arXiv 2412.12487, table 8, at the same or the next smaller size that it reports")


def _line(cells: Sequence[str]) -> str:
    widths = (8, 8, 11, 11, 10, 7, 7, 9, 7, 8, 18)
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _child(workload: str, gpus: int, fold: str, began_s: float, folder: Path) -> None:
    print(json.dumps(_simulate_here(workload, gpus, fold == "fold", began_s, folder)))


if __name__ == "__main__":
    alone("simcore.apps.bench.scale:_child")
