"""How far the planner's bounds are below the steps that they bound: of random jobs and of published ones."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from simcore.apps.bench.published import FOLDER
from simcore.apps.progress import Countdown, say
from simcore.errors import InputError, SimcoreError

if TYPE_CHECKING:
    from simcore.hardware import ClusterSpec
    from simcore.run import Setup
    from workloads.jobs import Description
    from workloads.parallel.job import Job

_TINY: Final = {
    "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 4096, "vocab": 32000, "gated": True,
    "tied_embeddings": False,
}  # fmt: skip
_SCHEDULES: Final = ("1f1b", "1f1b", "gpipe", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v")
_EXPERTS: Final = {"num_experts": 8, "top_k": 2, "ffn": 1024}


def tightness(
    count: int, seed: int = 19, *, published: bool = False, runs: str | None = None
) -> dict[str, Any]:
    """Bounds over simulated steps: of ``count`` random jobs, the largest ``published`` ones and of ``runs``.

    ``runs``: a table of published runs, every row that can be described.  ``above``: what no bound may be;
    ``refused``: jobs that cannot be simulated; ``rough`` and ``close`` by source: how many jobs, the least,
    tenth and middle of the shares, and how many have a share of so many whole percent.
    """
    shares: dict[str, list[tuple[float, float]]] = {}
    above: list[str] = []
    refused: list[str] = []
    for source, name, job, cluster, setup in _jobs(count, seed, published, runs):
        try:
            rough, close, step = bounds_and_step(job, cluster, setup)
        except SimcoreError as error:
            refused.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        shares.setdefault(source, []).append((rough / step, close / step))
        if max(rough, close) > step:
            above.append(name)
    told: dict[str, Any] = {"above": above, "refused": refused, "rough": {}, "close": {}}
    for source, pairs in shares.items():
        for column, bound in enumerate(("rough", "close")):
            told[bound][source] = _spread(sorted(pair[column] for pair in pairs))
    return told


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "jobs": len(values),
        "least": values[0],
        "tenth": values[len(values) // 10],
        "median": statistics.median(values),
        "percent": dict(Counter(int(100 * value) for value in values)),
    }


def bounds_and_step(
    job: Description | Job, cluster: ClusterSpec, setup: Setup | None = None
) -> tuple[int, int, int]:
    """(rough bound, close bound, simulated step) of a job, ps."""
    from simcore.planning.bound import Bound
    from simcore.planning.paths import Prices
    from simcore.planning.rough import RoughBounds
    from simcore.run import Setup, priced, run, wired
    from workloads.parallel.generate import generate
    from workloads.parallel.job import Job

    setup = setup or Setup()
    _, planner = wired(cluster, setup.nccl)
    size, precision = job.parallel.world_size, job.training.precision
    prices = Prices(priced(cluster.gpu, size, precision, setup), planner, cluster)
    laid_out = Job.of(job)
    graph = generate(job.model, job.parallel, job.training, job.software)
    step_ps = run(graph, cluster, setup).result.step_ps
    return RoughBounds(prices).step_ps(laid_out), Bound(laid_out, prices).step_ps(), step_ps


_Named = tuple[str, str, "Description | Job", "ClusterSpec", "Setup | None"]


def _jobs(count: int, seed: int, published: bool, runs: str | None) -> Iterator[_Named]:
    """(source, name, job, cluster, setup) of all that are asked for."""
    from simcore.hardware import load_cluster

    if count:
        cluster, countdown = load_cluster("h100-16"), Countdown("random jobs")
        for number, job in zip(range(count), random_jobs(random.Random(seed)), strict=False):
            yield "random", f"random job {number}: {job.parallel!r} {job.training!r}", job, cluster, None
            countdown(number + 1, count)
    if published:
        yield from largest_published()
    if runs is not None:
        yield from published_rows(runs)


def largest_published() -> Iterator[_Named]:
    """The largest job of each family of published runs."""
    from simcore.apps.run.loading import loaded
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.apps.run.simulation import setup_of

    for file in sorted(FOLDER.glob("*.yaml")):
        say(f"{file.stem} ...")
        scenario = resolve_scenario(str(file), settings={})
        found = loaded(scenario)
        assert found.description is not None
        yield "largest published", file.stem, found.description, found.cluster, setup_of(scenario)


def published_rows(path: str) -> Iterator[_Named]:
    """Each row of a table of published runs that can be described, by the first of its cases.

    InputError for a file that cannot be read.
    """
    from simcore.apps.measured.runs.score import describe_rows
    from simcore.hardware import load_cluster
    from workloads.jobs.published import read_run_rows
    from workloads.parallel.job import Job

    described, _ = describe_rows(read_run_rows(path))
    countdown = Countdown("published runs")
    for number, row in enumerate(described, start=1):
        case = row.band.cases[0]
        job = Job.of(case)
        yield "published runs", row.row.id, job, load_cluster(case.cluster, case.overrides), None
        countdown(number, len(described))


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
            "recompute_layers": draw.choice([-1, -1, 1]),
            "recompute_modules": draw.choice([[], [], ["mlp"], ["layernorm", "core_attn"]]),
            "sharding": draw.choice(["ddp", "zero1", "zero2", "fsdp1", "fsdp2", "zero3"]),
            "overlap_grad_reduce": draw.random() < 0.5, "overlap_param_gather": draw.random() < 0.5,
            "tp_overlap": draw.random() < 0.5, "overlap_p2p": draw.random() < 0.5,
            "offload": draw.choice([[], [], [], [], ["layer"], ["core_attn", "mlp_norm"]]),
            "ep_overlap": experts and draw.random() < 0.5, "reshard_after_forward": draw.random() < 0.8,
        }  # fmt: skip
        parallel.update(draw.choice([{}, {}, {"dp_shard": 2}, _uneven(draw, model, parallel)]))
        preset = draw.choice(["megatron-core", "megatron-lm-2022", "torchtitan-fsdp2", "deepspeed"])
        said = {"model": model, "parallel": parallel, "training": training, "software": preset}
        try:
            job = complete(said, "a job", num_gpus=16, generation="hopper")
            job.schedule()
        except InputError:
            continue
        yield job


def _uneven(draw: random.Random, model: dict[str, Any], parallel: dict[str, Any]) -> dict[str, Any]:
    """Stages of which one has a layer more and one a layer less, if that leaves it one."""
    count = parallel["pp"] * parallel["virtual_stages"]
    if model["layers"] < count:
        return {}
    layers = [model["layers"] // count] * count
    fewer, more = draw.randrange(count), draw.randrange(count)
    if layers[fewer] > 1:
        layers[fewer] -= 1
        layers[more] += 1
    return {"stage_layers": layers}


def tightness_lines(told: dict[str, Any]) -> str:
    """For the terminal."""
    lines = [
        f"{bound} bound over the simulated step, {row['jobs']:,} {source} jobs: least {row['least']:.1%},"
        f" a tenth below {row['tenth']:.1%}, middle {row['median']:.1%}"
        for bound in ("rough", "close")
        for source, row in told[bound].items()
    ]
    for name in ("above", "refused"):
        lines += [f"{name}: {len(told[name])}", *told[name]]
    return "\n".join(lines)
