"""Programs traced and described; ``python -m tests.models.traced_cases [CASE ...]`` traces them again.

Each is kept as a listing of its first rank's step in ``traced``, a file of a few KiB.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.models import listing
from workloads.models import ModelSpec
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate
from workloads.parallel.job import Job
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.framework_imports import Preparation
from workloads.tracing.drive.rounds import workers
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("traced")
LLAMA = "tests/tracing/scripts/llama.py"
TRAINER = "workloads/tracing/recipes/trainer.py"
MODEL = ModelSpec(
    name="llama", family="llama", layers=3, hidden=256, heads=8, kv_heads=4, ffn=512, gated=True,
    activation="silu", norm="rmsnorm", bias=False, positions="none", vocab=1024, tied_embeddings=False,
)  # fmt: skip
LLAMA3 = ModelSpec(
    name="llama3", family="llama", layers=2, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True,
    activation="silu", norm="rmsnorm", bias=False, positions="rotary", vocab=128256, tied_embeddings=False,
)  # fmt: skip
#: What plain PyTorch launches.
EAGER = SoftwareSpec(
    attention="flash", fused_qkv=False, fused_gate_up=False, grad_accumulation_fusion=False,
    cross_entropy="unfused", vocab_multiple=1, qkv_grad_copy=False, swiglu_fusion=False,
    async_tp_reduce=False, recompute_early_stop=True, gradient_scaling=False,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A script with its arguments, and what a description says of the same job.

    ``needs``: modules without which it cannot be traced.
    """

    arguments: str
    parallel: dict[str, Any]
    training: dict[str, Any]
    software: dict[str, Any] = field(default_factory=dict)
    script: str = LLAMA
    model: ModelSpec = MODEL
    needs: tuple[str, ...] = ("torch",)

    @property
    def command(self) -> str:
        """How a user would trace it."""
        world = ParallelSpec(**self.parallel).world_size
        return f"trace_workload.py {self.script} {self.arguments} --world-size {world}"

    @property
    def is_traceable(self) -> bool:
        """Whether its frameworks are installed."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def job(self, **software: Any) -> Job:
        """What the description says, its build with ``software``."""
        parallel = ParallelSpec(**self.parallel)
        given = {"micro_batch": 2, "seq": 128, "clip_gradients": False, "optimizer": "sgd", **self.training}
        microbatches = given.pop("microbatches", 1)
        given["global_batch"] = given["micro_batch"] * parallel.dp * microbatches
        build = EAGER.model_copy(update={**self.software, **software})
        return Job(self.model, parallel, TrainingSpec(**given), build)

    def made(self) -> listing.Listing:
        """What the description generates."""
        job = self.job()
        return listing.of_graph(generate(job.model, job.parallel, job.training, job.software))

    def traced(self, pool: WorkerPool) -> listing.Listing:
        """What tracing gives now."""
        world = ParallelSpec(**self.parallel).world_size
        job = ScriptJob(ROOT / self.script, tuple(self.arguments.split()), world_size=world, max_ranks=1)
        return listing.of_graph(trace_in(pool, job), self.command)


#: PyTorch's DDP: gradients in the model's dtype, divided as they are copied into buckets of 25 MiB.
DDP = {"sharding": "ddp", "grad_dtype": "bf16", "grad_reduce_dtype": "bf16", "bucket_bytes": 25 * 2**20}
DDP |= {"overlap_grad_reduce": True}
SCALED = {"gradient_scaling": True}
FSDP2 = {"sharding": "fsdp2", "grad_reduce_dtype": "fp32"}
FSDP1 = {"sharding": "fsdp1", "grad_reduce_dtype": "bf16"}
DEEPSPEED = {"engine": "deepspeed", "grad_dtype": "bf16", "grad_reduce_dtype": "bf16", "microbatches": 3}
DEEPSPEED |= {"bucket_parameters": 500_000_000}
EIGHT: dict[str, Any] = {"dp": 8}


def _of_deepspeed(stage: int, more: dict[str, Any]) -> Case:
    training = DEEPSPEED | {"sharding": f"zero{stage}"} | more
    return Case(f"zero{stage} accumulate", EIGHT, training, SCALED, needs=("torch", "deepspeed"))


def _of_trainer(more: str, training: dict[str, Any]) -> Case:
    """Hugging Face's Llama under its Trainer: products in bf16 by autocast, fp32 between them."""
    return Case(
        f"--model llama3-8b --layers 2 --seq 512 {more}", EIGHT, {"micro_batch": 1, "seq": 512} | training,
        SCALED, script=TRAINER, model=LLAMA3, needs=("torch", "transformers", "accelerate"),
    )  # fmt: skip


CASES: dict[str, Case] = {
    "ddp": Case("ddp", EIGHT, DDP, SCALED),
    "ddp-accumulate": Case("ddp accumulate", EIGHT, DDP | {"microbatches": 3}, SCALED),
    "ddp-checkpoint-first": Case(
        "ddp checkpoint-first", EIGHT, DDP | {"recompute": "full", "recompute_layers": 1}, SCALED
    ),
    "ddp-frozen": Case(
        "ddp frozen", EIGHT, DDP | {"trainable": r"layers\.[12]\..*linear|output_layer"}, SCALED
    ),
    "ddp-lora": Case(
        "ddp lora", EIGHT,
        DDP | {"trainable": "lora", "lora_rank": 16, "lora_targets": r"linear_[qv]$"}, SCALED,
    ),
    "ddp-compile": Case("ddp compile", EIGHT, DDP, SCALED | {"swiglu_fusion": True}),
    "fsdp1": Case("fsdp1", EIGHT, FSDP1),
    "fsdp1-accumulate": Case("fsdp1 accumulate", EIGHT, FSDP1 | {"microbatches": 3}),
    "fsdp2": Case("fsdp2", EIGHT, FSDP2),
    "fsdp2-accumulate": Case("fsdp2 accumulate", EIGHT, FSDP2 | {"microbatches": 3}),
    "fsdp2-checkpoint": Case("fsdp2 checkpoint adam clip", EIGHT, FSDP2 | {"recompute": "full"}),
    "fsdp2-checkpoint-ops": Case("fsdp2 checkpoint-ops", EIGHT, FSDP2 | {"recompute": "ops"}),
    "fsdp2-compile": Case("fsdp2 compile", EIGHT, FSDP2, {"swiglu_fusion": True}),
    "hsdp": Case("hsdp", {"dp": 8, "dp_shard": 4}, FSDP2),
    "tp": Case("tp", {"tp": 4}, DDP),
    "zero1": _of_deepspeed(1, {}),
    "zero2": _of_deepspeed(2, {}),
    # What is gathered stays for what comes within 1e9 parameters: a small model is gathered once.
    "zero3": _of_deepspeed(3, {"reshard_after_forward": False}),
    "trainer-ddp": _of_trainer(
        "--accumulate 2", DDP | {"microbatches": 2, "grad_dtype": "fp32", "grad_reduce_dtype": "fp32"}
    ),
    "trainer-fsdp2": _of_trainer("--fsdp", FSDP2 | {"grad_reduce_dtype": "bf16", "fsdp_ends_apart": True}),
}  # fmt: skip


def trace(
    names: Iterable[str], pool: WorkerPool | None = None
) -> Iterator[tuple[str, listing.Listing]]:  # fmt: skip
    """(name, listing) of the cases whose frameworks are installed; ``pool``: for those of torch alone."""
    chosen = [name for name in names if CASES[name].is_traceable]
    for needs, together in groupby(sorted(chosen, key=_needs), _needs):
        imports = tuple((need, ()) for need in needs if need != "torch")
        own = workers(1, preparation=Preparation(imports)) if imports or pool is None else nullcontext(pool)
        with own as prepared:
            for name in together:
                yield name, CASES[name].traced(prepared)


def _needs(name: str) -> tuple[str, ...]:
    return CASES[name].needs


def main() -> None:
    """Trace the cases that are named, or all, and write their listings."""
    FOLDER.mkdir(exist_ok=True)
    for name, found in trace(sys.argv[1:] or CASES):
        listing.write(found, FOLDER / f"{name}.csv")
        print(name, sum(len(lines) for _, lines in found.actions))


if __name__ == "__main__":
    main()
