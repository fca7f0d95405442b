"""What many, large and simultaneous jobs take: ``check_load.py unfolded | together N | sweep N``.

``unfolded`` simulates 8,192 ranks one by one and tells time and peak memory; ``together N`` runs N
simulations at once in one folder, every other one into the same run folder, and compares what each leaves
with what one alone leaves; ``sweep N`` sweeps over N different jobs and tells how the memory of its processes
grows.  Exit code 1: a limit is exceeded or a run is not whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simcore.apps.bench.scale import measure_size, scale_workloads
from simcore.timeline import Timeline
from simcore.units import GIB, KIB, MIB

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)

_RANKS: Final = 8192
_ROOT: Final = Path(__file__).resolve().parent.parent
#: Cases until caches are as full as they get; memory is compared from then on.
_WARM_UP: Final = 0.5
#: How often memory is looked at, and how long after a look the next may be, seconds.
_POINTS: Final = 50
_LOOK_S: Final = 0.1


@app.command()
def unfolded(most_gib: Annotated[float, typer.Option(help="Peak memory allowed.")] = 3.0) -> None:
    """One step of GPT-175B on 8,192 GPUs, every rank by itself."""
    row = measure_size(scale_workloads()[_RANKS], _RANKS, fold=False)
    peak = row["peak_rss_bytes"]
    print(
        f"{_RANKS:,} ranks unfolded: {row['wall_s']:.0f} s wall, {row['cpu_s']:.0f} s CPU,"
        f" peak memory {peak / GIB:.2f} GiB of {most_gib:g} GiB"
    )
    raise typer.Exit(int(peak > most_gib * GIB))


@app.command()
def together(
    number: Annotated[int, typer.Argument(help="Simulations at once.")],
    workload: Annotated[str, typer.Option(help="What is simulated.")] = "llama3-8b",
) -> None:
    """Simulations at once in one folder: all end well, and leave whole runs and nothing else."""
    with tempfile.TemporaryDirectory(prefix="check-load-") as name:
        folder = Path(name)
        runs = [folder / ("shared" if i % 2 else f"own-{i}") for i in range(number)]
        command = [sys.executable, str(_ROOT / "scripts" / "run_sim.py"), workload, "--json", "--out"]
        alone = folder / "alone"
        subprocess.run([*command, str(alone)], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        expected = Timeline.open(alone).digest()
        began = time.perf_counter()
        started = [
            subprocess.Popen(
                [*command, str(run)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            for run in runs
        ]
        said = [process.communicate()[1] for process in started]
        seconds = time.perf_counter() - began
        flaws = [
            f"{run.name}: exit code {process.returncode}: {text.strip()[-300:]}"
            for run, process, text in zip(runs, started, said, strict=True)
            if process.returncode
        ]
        flaws += [
            f"{run.name}: another timeline than that of a run alone"
            for run in sorted(set(runs))
            if Timeline.open(run).digest() != expected
        ]
        left = sorted(path.name for path in folder.iterdir() if path not in {alone, *runs})
        flaws += [f"left behind: {name}" for name in left]
    print("\n".join([*flaws, f"{number} at once in {seconds:.1f} s: {len(flaws)} flaws"]))
    raise typer.Exit(int(bool(flaws)))


@app.command()
def sweep(
    number: Annotated[int, typer.Argument(min=20, help="Cases; caches fill for a thousand.")] = 3000,
    most_kib: Annotated[float, typer.Option(help="Growth allowed, KiB a case, all processes.")] = 25.0,
) -> None:
    """A sweep of cheap cases that all differ; memory of its processes over time and its slope."""
    points: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(prefix="check-load-") as folder:
        spec, out = Path(folder) / "spec.yaml", Path(folder) / "out"
        spec.write_text(json.dumps(spec_of(number)))
        room = {"SIMCORE_LIMITS": f"text={max(MIB, 2 * spec.stat().st_size)}"}
        process = subprocess.Popen(
            _sweeping(spec, out), stdout=subprocess.DEVNULL, env={**os.environ, **room}
        )
        while process.poll() is None:
            done = _num_lines(out / "simulations.jsonl")
            if done - (points[-1][0] if points else 0) >= max(1, number // _POINTS):
                points.append((done, _held_bytes(process.pid)))
                print(f"{done:7,} cases: {points[-1][1] / MIB:8.1f} MiB", flush=True)
            time.sleep(_LOOK_S)
        done = _num_lines(out / "simulations.jsonl")
    later = [(case, held) for case, held in points if case > _WARM_UP * number]
    slope = _slope(later)
    print(f"growth from case {later[0][0]:,} on: {slope / KIB:.2f} KiB a case, allowed {most_kib:g}")
    if process.returncode or done != number:
        print(f"exit code {process.returncode}, {done:,} of {number:,} cases")
    raise typer.Exit(int(slope > most_kib * KIB or process.returncode != 0 or done != number))


def _sweeping(spec: Path, out: Path) -> list[str]:
    return [sys.executable, str(_ROOT / "scripts" / "sweep.py"), str(spec), "--out", str(out)]


def spec_of(number: int) -> dict[str, object]:
    """A sweep of so many cases."""
    cases = []
    for job in range(1, number + 1):
        gpus, settings = settings_of(job)
        cases.append({"cluster": f"h100-{gpus}", **settings})
    return {"model": "llama3-8b", "cases": cases}


def settings_of(job: int) -> tuple[int, dict[str, str]]:
    """GPUs and settings of job number ``job``; no two jobs have all in common."""
    hidden, heads = 1024 + 128 * (job % 61), 16
    tp, pp = 2 ** (job % 3), 2 ** (job // 3 % 3)
    nodes = 1 + job % 7 if tp * pp <= 8 else 2 * (1 + job % 4)
    gpus = 8 * nodes
    settings = {
        "model.layers": pp * (1 + job % 3), "model.hidden": hidden, "model.heads": heads,
        "model.kv_heads": heads, "model.ffn": 4 * hidden + 64 * (job % 53),
        "parallel.tp": tp, "parallel.pp": pp,
        "training.seq": 1024 + 128 * (job % 11),
        "training.global_batch": gpus // (tp * pp) * pp * (1 + job % 5),
    }  # fmt: skip
    return gpus, {key: str(value) for key, value in settings.items()}


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _held_bytes(process: int) -> int:
    """Memory that a process and its workers hold by themselves; 0 for those that have ended."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for one in (process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())):
            with contextlib.suppress(OSError):
                _, resident, shared, *_ = map(int, Path(f"/proc/{one}/statm").read_text().split())
                total += (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return total


def _slope(points: list[tuple[int, int]]) -> float:
    """The median of the slopes between all pairs of points (Theil and Sen): single peaks do not move it."""
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2))


if __name__ == "__main__":
    app()
