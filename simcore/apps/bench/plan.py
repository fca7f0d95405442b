"""The command ``bench plan``: what a plan costs, and how far bounds are below the steps that they bound."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simcore.apps.bench.published import FOLDER
from simcore.apps.child import run_python
from simcore.apps.progress import say
from simcore.errors import InputError, SimcoreError, nearest

if TYPE_CHECKING:
    from simcore.hardware import ClusterSpec
    from simcore.run import Setup
    from workloads.jobs import Description

#: Plans by name: what is asked, and in how many seconds it should be answered on two cores.
PLANS: Final = {
    "llama3-70b": (("--cluster", "h100-1024", "--global-batch", "1024", "--seq", "8192"), 60.0),
    "deepseek-v3": (("--cluster", "h800-2048", "--global-batch", "15360", "--seq", "4096"), 180.0),
}
_GAP: Final = 0.02
_COMMAND: Final = ("-c", "from simcore.apps.process import alone; alone('simcore.apps.plan.command:plan')")
_TINY: Final = {
    "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 4096, "vocab": 32000, "gated": True,
    "tied_embeddings": False,
}  # fmt: skip
_SCHEDULES: Final = ("1f1b", "1f1b", "gpipe", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v")
_EXPERTS: Final = {"num_experts": 8, "top_k": 2, "ffn": 1024}


def bench_plan(
    plans: Annotated[
        list[str] | None, typer.Argument(help="Plans by name. Default: all.", show_default=False)
    ] = None,
    bounds: Annotated[
        int, typer.Option(min=0, help="Instead: bounds of so many random jobs and of the published ones.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What a plan costs from starting Python to its last file; or how tight bounds are, all in order."""
    if bounds:
        told = tightness(bounds)
        print(json.dumps(told) if as_json else _tightness_lines(told))
        return
    for name in plans or ():
        if name not in PLANS:
            raise InputError(f"unknown plan {name!r}{nearest(name, PLANS)}")
    rows = {}
    for name in plans or PLANS:
        say(f"{name} ...")
        rows[name] = measure_plan(name)
    if as_json:
        print(json.dumps({"rows": rows}))
        return
    for name, row in rows.items():
        print(
            f"{name}: {row['num_candidates']:,} candidates in {row['wall_s']:.0f} s (goal"
            f" {PLANS[name][1]:g} s), {row['candidates_per_s']:,.0f} a second bounded,"
            f" {row['num_simulated']} simulated,"
            f" gap {row['gap']:.1%} (goal {_GAP:.0%}), {row['cpu_s']:.0f} s of CPU time"
        )


def measure_plan(name: str) -> dict[str, Any]:
    """One plan in a process of its own and a folder that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as folder:
        spent = run_python([*_COMMAND, name, *PLANS[name][0], "--json", "--out", folder])
    found = json.loads(spent.stdout)
    return {
        "wall_s": spent.wall_s,
        "cpu_s": spent.cpu_s,
        "num_candidates": found["num_candidates"],
        "num_simulated": found["num_simulated"],
        "candidates_per_s": found["num_candidates"] / found["seconds"]["appraising"],
        "gap": found["certificate"]["gap"],
        "best": found["best"]["strategy"],
        "step_time_s": found["best"]["step_time_s"],
    }


def tightness(count: int, seed: int = 19) -> dict[str, Any]:
    """Bounds over simulated steps: of ``count`` random jobs, and of the published ones.

    ``above``: what no bound may be; ``refused``: jobs that cannot be simulated; ``rough`` and ``close`` by
    source: least, tenth, middle of the shares.
    """
    from simcore.hardware import load_cluster

    shares: dict[str, list[tuple[float, float]]] = {"random": [], "published": []}
    above: list[str] = []
    refused: list[str] = []

    def note(source: str, name: str, job: Description, on: ClusterSpec, setup: Setup | None = None) -> None:
        try:
            rough, close, step = bounds_and_step(job, on, setup)
        except SimcoreError as error:
            refused.append(f"{name}: {str(error).splitlines()[0]}")
            return
        shares[source].append((rough / step, close / step))
        if max(rough, close) > step:
            above.append(name)

    cluster = load_cluster("h100-16")
    for number, job in zip(range(count), random_jobs(random.Random(seed)), strict=False):
        note("random", f"random job {number}: {job.parallel!r} {job.training!r}", job, cluster)
    for name, job, on, setup in _published():
        say(f"{name} ...")
        note("published", name, job, on, setup)
    told: dict[str, Any] = {"above": above, "refused": refused}
    for source, pairs in shares.items():
        for column, bound in enumerate(("rough", "close")):
            values = sorted(pair[column] for pair in pairs)
            told.setdefault(bound, {})[source] = {
                "jobs": len(values), "least": values[0], "tenth": values[len(values) // 10],
                "median": statistics.median(values),
            }  # fmt: skip
    return told


def bounds_and_step(
    job: Description, cluster: ClusterSpec, setup: Setup | None = None
) -> tuple[int, int, int]:
    """(rough bound, close bound, simulated step) of a job, ps."""
    from simcore.planning.bound import Bound
    from simcore.planning.paths import Prices
    from simcore.planning.rough import RoughBounds
    from simcore.run import Setup, priced, run, wired
    from workloads.parallel.job import Job

    setup = setup or Setup()
    _, planner = wired(cluster, setup.nccl)
    size, precision = job.parallel.world_size, job.training.precision
    prices = Prices(priced(cluster.gpu, size, precision, setup), planner, cluster)
    laid_out = Job(job.model, job.parallel, job.training, job.software)
    step_ps = run(job.graph(), cluster, setup).result.step_ps
    return RoughBounds(prices).step_ps(laid_out), Bound(laid_out, prices).step_ps(), step_ps


def random_jobs(draw: random.Random) -> Iterator[Description]:
    """Jobs of a few layers on 16 GPUs: any schedule, sharding, overlap and preset that go together."""
    from workloads.jobs import complete

    while True:
        experts = draw.random() < 0.3
        model = {**_TINY, "layers": 4 * draw.choice([1, 1, 2]), **({"moe": _EXPERTS} if experts else {})}
        parallel = {
            "tp": draw.choice([1, 2, 4]), "pp": draw.choice([1, 2, 4]), "cp": draw.choice([1, 1, 2]),
            "ep": draw.choice([2, 4]) if experts else 1, "virtual_stages": draw.choice([1, 1, 2]),
            "schedule": draw.choice(_SCHEDULES),
            "sequence_parallel": draw.random() < 0.5,
        }  # fmt: skip
        training = {
            "seq": draw.choice([1024, 4096]), "micro_batch": draw.choice([1, 2]),
            "global_batch": draw.choice([16, 32]), "precision": draw.choice(["bf16", "bf16", "fp8"]),
            "recompute": draw.choice(["none", "selective", "full"]),
            "sharding": draw.choice(["ddp", "zero1", "zero2", "fsdp1", "fsdp2", "zero3"]),
            "overlap_grad_reduce": draw.random() < 0.5, "overlap_param_gather": draw.random() < 0.5,
            "tp_overlap": draw.random() < 0.5, "overlap_p2p": draw.random() < 0.5,
            "ep_overlap": experts and draw.random() < 0.5,
        }  # fmt: skip
        preset = draw.choice(["megatron-core", "megatron-lm-2022", "torchtitan-fsdp2", "deepspeed"])
        said = {"model": model, "parallel": parallel, "training": training, "software": preset}
        try:
            job = complete(said, "a job", num_gpus=16, generation="hopper")
            job.schedule()
        except InputError:
            continue
        yield job


def _published() -> Iterator[tuple[str, Description, ClusterSpec, Setup]]:
    from simcore.apps.run.loading import loaded
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.apps.run.simulation import setup_of

    for file in sorted(FOLDER.glob("*.yaml")):
        scenario = resolve_scenario(str(file), settings={})
        found = loaded(scenario)
        assert found.description is not None
        yield file.stem, found.description, found.cluster, setup_of(scenario)


def _tightness_lines(told: dict[str, Any]) -> str:
    lines = [
        f"{bound} bound over the simulated step, {row['jobs']} {source} jobs: least {row['least']:.1%},"
        f" a tenth below {row['tenth']:.1%}, middle {row['median']:.1%}"
        for bound in ("rough", "close")
        for source, row in told[bound].items()
    ]
    for name in ("above", "refused"):
        lines += [f"{name}: {len(told[name])}", *told[name]]
    return "\n".join(lines)
