"""Does the rank that stands for others do what they do?
``python -m tests.tracing.every_rank [NAME ...] [random=COUNT megatron=COUNT seed=NUMBER]``.

Each job is traced, and then every rank that was spoken for is run by itself: each must record the program,
op by op, and hold the memory that its class has in the graph.  Dims, microbatches, sequences and their length
must be those of the launch.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simcore.errors import SimcoreError
from simcore.graph import Graph
from simcore.graph.layout import contiguous_text
from tests.tracing.small_jobs import SMALL, gpt_traces, job, read_back
from workloads.tracing import MegatronGptJob, TraceReport
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.framework_imports import Preparation
from workloads.tracing.drive.rounds import Rounds, workers
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parent / "scripts" / "any_layout.py"
AXES = ("pp", "replicate", "shard", "cp", "tp")

LAYOUTS = {
    "fsdp2-64": "shard=64 hidden=48",
    "hsdp-64": "replicate=8 shard=8 hidden=40",
    "fsdp2-tp-64": "shard=16 tp=4 hidden=48",
    "hsdp-tp-64": "replicate=4 shard=4 tp=4 hidden=48",
    "fsdp2-tp-pp-64": "pp=4 shard=4 tp=4 microbatches=8 layers=4",
    "hsdp-tp-pp-128": "pp=4 replicate=2 shard=4 tp=4 chunks=2 microbatches=8 layers=8 hidden=48",
    "cp-64": "shard=16 cp=4",
    "hsdp-ep-64": "shard=64 ep=8",
    "ddp-accumulated-64": "data=ddp replicate=64 microbatches=4 log=1",
    "ddp-pp-64": "data=ddp pp=2 replicate=32 microbatches=8",
    "fsdp1-64": "data=fsdp1 shard=64",
    "odd-names-64": "names=odd pp=2 replicate=2 shard=4 tp=4 microbatches=4",
}

#: DeepSpeed's ZeRO: its script's arguments, and ranks.
ZERO = {
    f"zero{stage}{what}-{ranks}": ScriptJob(
        SCRIPT.with_name("zero.py"),
        (stage, *([what] if what else [])),
        world_size=ranks,
        gpus_per_node=ranks // 2,
    )
    for stage, what, ranks in (
        ("1", "", 12),
        ("2", "", 16),
        ("3", "", 16),
        ("3", "", 12),
        ("2", "offload", 12),
    )
}

_SHARDED: dict[str, Any] = {
    "precision": "bf16", "distributed_optimizer": True, "overlap_grad_reduce": True,
    "overlap_param_gather": True, "recompute": "none",
}  # fmt: skip
MEGATRON = {
    "megatron-tp-pp-64": job(layers=8, tp=2, pp=4, dp=8, microbatches=8, recompute="none"),
    "megatron-vpp-64": job(layers=8, tp=2, pp=4, dp=8, virtual_pipeline=2, microbatches=8, **_SHARDED),
}


def random_gpts(seed: int, count: int) -> Iterator[MegatronGptJob]:
    """Megatron's jobs of up to 32 ranks."""
    draw = random.Random(seed)
    while count:
        pp, tp, cp = draw.choice((1, 2, 4)), draw.choice((1, 2, 4)), draw.choice((1, 1, 2))
        chunks = draw.choice((1, 2, 3)) if pp > 1 else 1
        changes: dict[str, Any] = {
            "layers": pp * chunks * draw.choice((1, 2)), "tp": tp, "pp": pp, "cp": cp,
            "dp": draw.choice((1, 2, 3, 4)), "virtual_pipeline": chunks,
            "microbatches": pp * draw.choice((2, 3)), "hidden": draw.choice((128, 192)),
            "recompute": draw.choice(("none", "selective", "full")), "sequence_parallel": tp > 1,
        }  # fmt: skip
        changes |= {"precision": "bf16"} if draw.random() < 0.5 else _SHARDED
        if draw.random() < 0.3:
            changes |= {"num_experts": 4, "ep": 2}
        try:
            made = job(**changes)
        except SimcoreError:
            continue
        if 2 <= made.world_size <= 32:
            count -= 1
            yield made


def said(text: str) -> dict[str, int]:
    """What a launch says in whole numbers, 1 where it does not."""
    numbers = dict(one.split("=") for one in text.split())
    return {name: int(value) for name, value in numbers.items() if value.isdigit()}


def random_layouts(seed: int, count: int) -> Iterator[str]:
    """Launches of up to 32 ranks that torch can run: DDP takes no tensor-parallel parameters, and its reducer
    stops pipelines of as many microbatches as stages.
    """
    draw = random.Random(seed)
    while count:
        data = draw.choice(("fsdp2", "fsdp2", "fsdp2", "ddp", "fsdp1"))
        pp, tp = draw.choice((1, 1, 2, 4)), draw.choice((1, 1, 2, 4))
        cp = draw.choice((1, 1, 1, 2)) if data == "fsdp2" and pp == 1 and tp == 1 else 1
        replicate = 1 if data == "fsdp1" or cp > 1 else draw.choice((1, 2, 4))
        shard = 1 if data == "ddp" else draw.choice((2, 3, 4, 8))
        pp, tp = {"fsdp1": (1, 1), "ddp": (min(pp, 2), 1)}.get(data, (pp, tp))
        if data == "ddp" and replicate == 1:
            continue
        ep = shard if tp == pp == cp == replicate == 1 and data == "fsdp2" and draw.random() < 0.4 else 1
        chunks = draw.choice((1, 2)) if pp > 1 and data != "ddp" else 1
        more = (2,) if data == "ddp" else (1, 2)
        options = {
            "pp": pp, "tp": tp, "cp": cp, "replicate": replicate, "shard": shard, "ep": ep, "chunks": chunks,
            "microbatches": pp * draw.choice(more) if pp > 1 else draw.choice((1, 3)),
            "layers": max(pp * chunks, draw.choice((2, 3, 4))),
            "hidden": draw.choice((32, 64, 96) if cp > 1 else (16, 32, 40, 48, 80)),
            "heads": 4, "clip": draw.choice((0, 1)) if data == "ddp" else 0, "log": draw.choice((0, 1)),
            "seq": draw.choice((16, 32, 64)), "batch": draw.choice((1, 2, 3)),
        }  # fmt: skip
        if draw.random() < 0.3 and cp == 1:
            data += " names=odd"
        text = f"data={data} " + " ".join(f"{name}={value}" for name, value in options.items())
        if not 2 <= job_of(text).world_size <= 32:
            continue
        count -= 1
        yield text


class Compared(NamedTuple):
    """A traced job beside its ranks that were ``spoken_for``; ``wrong``: those that record or hold something
    else than their class.
    """

    graph: Graph
    report: TraceReport
    spoken_for: list[int]
    wrong: list[int]

    def unlike(self, launch: str) -> list[str]:
        """What the graph says otherwise than the launch of :data:`SCRIPT`."""
        options, work = Counter(said(launch)), self.graph.workload
        at = {name: options[name] or 1 for name in (*AXES, "ep", "microbatches")}
        dims = {"tp": at["tp"], "cp": at["cp"], "pp": at["pp"], "dp": at["replicate"] * at["shard"]}
        sequences, length = options["batch"] or 2, options["seq"] or 32
        tokens = sequences * length * at["microbatches"] * dims["dp"]
        expected = {
            "dims": (work.dims, {name: size for name, size in dims.items() if size > 1}),
            "ep": (work.model.get("ep", 1), at["ep"]),
            "microbatches": (work.num_microbatches, at["microbatches"]),
            "sequences": (work.micro_batch_size, sequences),
            "length": (work.seq_len, length),
            "tokens": (work.tokens_per_step, tokens),
        }
        return [
            f"{name} {found}, not {wanted}" for name, (found, wanted) in expected.items() if found != wanted
        ]


def job_of(launch: str) -> ScriptJob:
    """:data:`SCRIPT` on as many ranks as its degrees need."""
    options = said(launch)
    world = math.prod(options.get(axis, 1) for axis in AXES)
    return ScriptJob(SCRIPT, tuple(launch.split()), world_size=world, gpus_per_node=math.gcd(world, 8))


def compared(pool: WorkerPool, job: ScriptJob | MegatronGptJob) -> Compared:
    """Trace ``job``, and then each of its other ranks by itself."""
    report = TraceReport()
    graph = trace_in(pool, job, report)
    others = sorted({*range(job.world_size)} - {*report.ranks_run})
    if isinstance(job, ScriptJob):
        with tempfile.TemporaryDirectory() as mail:
            rounds = Rounds(pool, lambda _: job, Path(mail))
            rounds.run(others)
        traces = list(rounds.seen.values())
    else:
        traces = gpt_traces(pool, job, [(rank, job.microbatches) for rank in others])
    digests = [read_back(graph, program).digest() for program in graph.programs]
    wrong = []
    for trace in traces:
        number = int(graph.program_of_rank[trace.rank])
        held = trace.memory.static + trace.program.peak_memory()
        if (digests[number], graph.programs[number].memory.peak) != (trace.program.digest(), held):
            wrong.append(trace.rank)
    return Compared(graph, report, others, sorted(wrong))


def line(pool: WorkerPool, job: ScriptJob | MegatronGptJob, launch: str) -> str:
    """What is found about one job."""
    try:
        found = compared(pool, job)
    except SimcoreError as error:
        return f"FAILED: {error}"
    wrong = f"WRONG: ranks {contiguous_text(found.wrong)}" if found.wrong else "all as their class"
    counts = f"{job.world_size} ranks, {len(found.report.ranks_run)} run, {len(found.graph.programs)} classes"
    unlike = found.unlike(launch) if launch else []
    return "; ".join((counts, wrong, *unlike, *found.report.warnings))


def main(arguments: Sequence[str]) -> None:
    """The jobs that are named (none: all), or random ones."""
    numbers = Counter(
        {name: int(value) for name, value in (one.split("=") for one in arguments if "=" in one)}
    )
    named = [one for one in arguments if "=" not in one]
    launches = {name: LAYOUTS[name] for name in LAYOUTS if name in named or not arguments}
    drawn = random_layouts(numbers["seed"], numbers["random"])
    launches |= {f"random {number}": launch for number, launch in enumerate(drawn)}
    with workers(preparation=ScriptJob(SCRIPT).preparation()) as pool:
        for name, launch in launches.items():
            print(f"{name} ({launch}): {line(pool, job_of(launch), launch)}", flush=True)
    zero = {name: job for name, job in ZERO.items() if name in named or not arguments}
    with workers(preparation=Preparation((("deepspeed", ()),))) as pool:
        for name, script in zero.items():
            print(f"{name}: {line(pool, script, '')}", flush=True)
    jobs = {name: MEGATRON[name] for name in MEGATRON if name in named or not arguments}
    jobs |= {f"random {n}": job for n, job in enumerate(random_gpts(numbers["seed"], numbers["megatron"]))}
    with workers(preparation=SMALL.preparation()) as pool:
        for name, case in jobs.items():
            print(
                f"{name} ({case.command().partition('megatron-gpt ')[2]}): {line(pool, case, '')}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
