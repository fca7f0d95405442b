"""The command ``bench``: what a simulation costs, part by part."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from simcore.apps.bench.answers import bench_candidates, bench_curve
from simcore.apps.bench.described import bench_described
from simcore.apps.bench.imports import bench_imports
from simcore.apps.bench.plan import bench_plan
from simcore.apps.bench.published import bench_published
from simcore.apps.bench.recipes import bench_recipes
from simcore.apps.bench.runs import bench_runs
from simcore.apps.bench.scale import bench_scale
from simcore.apps.errors import as_app
from simcore.apps.options import Json


def measure(
    workload: str | None, cluster: str | None = None, *, shortcuts: str = "all", fold: bool = True
) -> dict[str, Any]:
    """Run the parts of a simulation up to its result and say what each cost.

    Keys: ``gpus, rank_classes, kernels`` (simulated, of one rank per class), ``engine_events,
    events_per_kernel, step_time_s, digest, parts{name: {wall_s, cpu_s}}, peak_rss_bytes``.  ``digest`` covers
    every start and end of every rank, so that modes can be compared.
    """
    from hashlib import sha256

    from simcore.apps.run.loading import loaded
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.graph import apply_kernels, usual_kernels
    from simcore.run import Setup, run, shortcuts_of

    parts: dict[str, dict[str, float]] = {}

    @contextmanager
    def part(name: str) -> Iterator[None]:
        """Time what happens inside."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        parts[name] = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}

    scenario = resolve_scenario(workload, cluster=cluster, settings={})
    with part("load graph"):
        found = loaded(scenario)
        graph, hardware = found.graph, found.cluster
    with part("map kernels"):
        if not scenario.described:
            graph = apply_kernels(graph, usual_kernels(graph))
    with part("simulate"):
        result = run(graph, hardware, Setup(shortcuts=shortcuts_of(shortcuts), fold=fold)).result
    of_class = [sha256(times.start_ps.tobytes() + times.end_ps.tobytes()).digest() for times in result.times]
    digest = sha256(b"".join(of_class[number] for number in result.class_of.tolist()))
    kernels = sum(len(times.end_ps) for times in result.times)
    return {
        "gpus": graph.world_size,
        "rank_classes": len(result.times),
        "kernels": kernels,
        "engine_events": result.engine_events,
        "events_per_kernel": result.engine_events / max(1, kernels),
        "step_time_s": result.step_ps / 1e12,
        "digest": digest.hexdigest(),
        "parts": parts,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def bench_run(
    workload: Annotated[
        str | None,
        typer.Argument(help="Catalog name or graph folder. Default: the main job.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Cluster profile. Default: h800-96.")
    ] = None,
    shortcuts: Annotated[
        str,
        typer.Option(
            metavar="all|none|NAMES",
            help="What may answer for the engine (runs,cells,steady), for comparison: the same digest.",
        ),
    ] = "all",
    no_fold: Annotated[
        bool, typer.Option("--no-fold", help="Every rank by itself, for comparison: the same digest again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time the parts of one simulation of WORKLOAD (default: the catalog's main job), without writing it."""
    found = measure(workload, cluster, shortcuts=shortcuts, fold=not no_fold)
    if as_json:
        print(json.dumps(found))
        return
    for name, cost in found["parts"].items():
        print(f"{name:16} {cost['wall_s']:8.2f} s wall {cost['cpu_s']:8.2f} s CPU")
    print(
        f"{found['gpus']} GPUs in {found['rank_classes']} classes, {found['kernels']:,} kernels"
        f" simulated, {found['engine_events']:,} events ({found['events_per_kernel']:.3f} a kernel),"
        f" peak memory {found['peak_rss_bytes'] / 1024**2:.0f} MiB\n"
        f"step {found['step_time_s']:.6f} s, digest {found['digest'][:16]}"
    )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
app.command("run")(bench_run)
app.command("scale")(bench_scale)
app.command("described")(bench_described)
app.command("published")(bench_published)
app.command("candidates")(bench_candidates)
app.command("curve")(bench_curve)
app.command("imports")(bench_imports)
app.command("runs")(bench_runs)
app.command("plan")(bench_plan)
app.command("recipes")(bench_recipes)
as_app(app)


@app.callback()
def bench() -> None:
    """What the simulator itself costs."""
