"""The recipes at full size: do they trace, do their gradients add up, how long and how large?"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from simcore.errors import InputError, SimcoreError, nearest
from simcore.graph import Graph, save_graph
from simcore.records import dataclass
from simcore.units import format_bytes
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import cpu_s, trace

_RECIPES = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class RecipeCase:
    """One recipe.  ``parameters``: of the whole model, from its paper or configuration (0: not checked);
    ``bytes_each``: of a gradient in all reductions of a step; ``tensor_parallel`` splits the model;
    ``load``: of experts.
    """

    script: str
    arguments: str
    world_size: int
    parameters: int
    bytes_each: int = 4
    tensor_parallel: int = 1
    load: str = "uniform"

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules without which the case is skipped."""
        return (*_NEEDS.get(self.script, ("torch",)), *(("peft",) if "--lora" in self.arguments else ()))

    def path(self, programs: Path | None) -> Path:
        """The script: a recipe of ours, or one in a checkout among ``programs``."""
        return _RECIPES / self.script if self.script in _NEEDS else (programs or Path()) / self.script


_NEEDS = {
    "vision.py": ("torch",),
    "hugging_face.py": ("torch", "transformers"),
    "trainer.py": ("torch", "transformers", "accelerate"),
    "deepspeed_zero.py": ("torch", "transformers", "deepspeed"),
    "titan.py": ("torch", "torchtitan"),
}
#: torchtitan says itself where its steps are; nothing changes after the first.
_STEP = {"titan.py": 1}


_TITAN = "--module llama3 --config"
_VGG19, _RESNET152, _GPT2, _GPT2_XL = 143_667_240, 60_192_808, 124_439_808, 1_557_611_200
_BERT_LARGE, _LLAMA_8B = 335_174_458, 8_030_261_248
#: Embedding, output and final norm; then four Llama layers, two Mixtral layers.
_LLAMA_4 = 2 * 128256 * 4096 + 4096 + 4 * 218_112_000
_MIXTRAL_2 = 2 * 32000 * 4096 + 4096 + 2 * 1_451_270_144
_QWEN3_2 = 2 * 151936 * 2048 + 2048 + 2 * 623_120_640
#: Adapters of rank 16 of a Llama-3 8B layer: queries 4096 to 4096, values 4096 to 1024.
_LORA_16 = 16 * (4096 + 4096 + 4096 + 1024)
#: Llama-3 70B's first of four stages: the embedding and 20 layers.
_LLAMA_70B_FIRST = 128256 * 8192 + 20 * 855_654_400
CASES = {
    "vgg19-ddp": RecipeCase("vision.py", "--model vgg19", 128, _VGG19),
    "resnet152-ddp": RecipeCase("vision.py", "--model resnet152", 128, _RESNET152),
    "resnet152-ddp-amp": RecipeCase("vision.py", "--model resnet152 --amp", 128, _RESNET152),
    "vgg19-fsdp2": RecipeCase("vision.py", "--model vgg19 --parallel fsdp2", 64, _VGG19),
    "resnet152-fsdp2": RecipeCase("vision.py", "--model resnet152 --parallel fsdp2", 64, _RESNET152),
    "bert-large-ddp": RecipeCase("hugging_face.py", "--model bert-large --seq 512", 128, _BERT_LARGE),
    "gpt2-xl-ddp": RecipeCase("hugging_face.py", "--model gpt2-xl", 256, _GPT2_XL),
    "gpt2-ddp-accumulate": RecipeCase("hugging_face.py", "--model gpt2 --accumulate 4", 256, _GPT2),
    "gpt2-fsdp1": RecipeCase("hugging_face.py", "--model gpt2 --parallel fsdp1", 64, _GPT2, 2),
    "gpt2-xl-fsdp2": RecipeCase("hugging_face.py", "--model gpt2-xl --parallel fsdp2", 64, _GPT2_XL),
    "gpt2-hsdp": RecipeCase("hugging_face.py", "--model gpt2 --parallel hsdp", 64, _GPT2),
    "llama3-fsdp2-checkpointing": RecipeCase(
        "hugging_face.py",
        "--model llama3-8b --layers 4 --parallel fsdp2 --seq 8192 --checkpointing",
        *(512, _LLAMA_4),
    ),
    "llama3-8b-fsdp2-tp8": RecipeCase(
        "hugging_face.py",
        "--model llama3-8b --parallel fsdp2 --tensor-parallel 8 --seq 8192",
        *(64, _LLAMA_8B, 4, 8),
    ),
    "mixtral-fsdp2": RecipeCase(
        "hugging_face.py", "--model mixtral-8x7b --layers 2 --parallel fsdp2 --seq 4096", 8, _MIXTRAL_2
    ),
    "mixtral-zipf": RecipeCase(
        "hugging_face.py",
        "--model mixtral-8x7b --layers 2 --parallel fsdp2 --seq 1024 --experts eager",
        *(8, _MIXTRAL_2, 4, 1, "zipf:1"),
    ),
    "qwen3-moe-fsdp2": RecipeCase(
        "hugging_face.py", "--model qwen3-30b-a3b --layers 2 --parallel fsdp2 --seq 1024", 8, _QWEN3_2
    ),
    "llama3-fsdp1": RecipeCase(
        "hugging_face.py", "--model llama3-8b --layers 4 --parallel fsdp1 --seq 2048", 8, _LLAMA_4, 2
    ),
    "bert-large-fsdp2": RecipeCase(
        "hugging_face.py", "--model bert-large --seq 512 --parallel fsdp2", 8, _BERT_LARGE
    ),
    "llama3-lora-ddp": RecipeCase(
        "hugging_face.py", "--model llama3-8b --layers 4 --seq 2048 --lora 16", 64, 4 * _LORA_16
    ),
    "gpt2-trainer": RecipeCase("trainer.py", "--accumulate 2", 64, _GPT2),
    # bf16; ZeRO-1 reduces once a step, ZeRO-2 and 3 in each of its two microbatches.
    "gpt2-zero1": RecipeCase("deepspeed_zero.py", "--stage 1 --accumulate 2", 8, _GPT2, 2),
    "gpt2-zero2": RecipeCase("deepspeed_zero.py", "--stage 2 --accumulate 2", 8, _GPT2, 4),
    "gpt2-zero3": RecipeCase("deepspeed_zero.py", "--stage 3 --accumulate 2", 64, _GPT2, 4),
    "titan-llama3-8b-fsdp2-tp8": RecipeCase(
        "titan.py", f"{_TITAN} llama3_8b --parallelism.tensor_parallel_degree 8", 64, _LLAMA_8B, 4, 8
    ),
    "titan-llama3-8b-hsdp": RecipeCase(
        "titan.py", f"{_TITAN} llama3_8b --parallelism.data_parallel_replicate_degree 4", 32, _LLAMA_8B
    ),
    "titan-llama3-8b-cp4": RecipeCase(
        "titan.py", f"{_TITAN} llama3_8b --parallelism.context_parallel_degree 4", 32, _LLAMA_8B
    ),
    "titan-llama3-70b-fsdp2-tp8-pp4": RecipeCase(
        "titan.py",
        f"{_TITAN} llama3_70b --training.local_batch_size 8 --parallelism.tensor_parallel_degree 8 "
        "--parallelism.pipeline_parallel_degree 4",
        *(256, _LLAMA_70B_FIRST, 4, 8),
    ),
    "titan-llama3-debug-interleaved": RecipeCase(
        "titan.py",
        f"{_TITAN} llama3_debugmodel --parallelism.pipeline_parallel_degree 2 "
        "--parallelism.pipeline_parallel_schedule Interleaved1F1B",
        *(8, 0),
    ),
    "titan-qwen3-moe-ep4": RecipeCase(
        "titan.py",
        "--module qwen3 --config qwen3_moe_debug --parallelism.expert_parallel_degree 4",
        *(8, 0),
    ),
    "titan-deepseek-v3-ep4": RecipeCase(
        "titan.py",
        "--module deepseek_v3 --config deepseek_v3_debugmodel --parallelism.expert_parallel_degree 4",
        *(8, 0),
    ),
}

_EXAMPLES = "examples/distributed"  # of github.com/pytorch/examples
_MINGPT = f"{_EXAMPLES}/minGPT-ddp/mingpt"
#: Embeddings of 1024 tokens and 64 positions with a norm, width 16; ten layers of attention, two products
#: with biases and two norms.
_FSDP2_EXAMPLE = 1024 * 16 + 64 * 16 + 2 * 16 + 1024 * 16 + 10 * (4 * 16**2 + 2 * 16 * 64 + 64 + 16 + 4 * 16)
#: 8 layers of width 512 with a second product behind attention, 59 characters, 128 positions.
_MINGPT_DDP = (
    8 * (13 * 512**2 + 3 * 512 + 512 + 512 + 4 * 512 + 512 + 4 * 512) + 2 * 59 * 512 + 128 * 512 + 2 * 512
)
#: Programs of others, unmodified, in checkouts (``--programs``).
PROGRAMS = {
    "examples-fsdp2": RecipeCase(f"{_EXAMPLES}/FSDP2/example.py", "", 4, _FSDP2_EXAMPLE),
    "examples-fsdp2-mixed": RecipeCase(
        f"{_EXAMPLES}/FSDP2/example.py", "--explicit-prefetching --mixed-precision", 4, _FSDP2_EXAMPLE
    ),
    # Adam has no gradients to share where every rank sees the same batch.
    "examples-tp": RecipeCase(f"{_EXAMPLES}/tensor_parallelism/tensor_parallel_example.py", "", 4, 0),
    "examples-sp": RecipeCase(f"{_EXAMPLES}/tensor_parallelism/sequence_parallel_example.py", "", 4, 0),
    "examples-mingpt-ddp": RecipeCase(
        f"{_MINGPT}/main.py",
        f"data_config.path={{programs}}/{_MINGPT}/data/input.txt "
        "hydra.output_subdir=null hydra/job_logging=disabled",
        16,
        _MINGPT_DDP,
    ),
}
_NEEDS_OF_PROGRAMS = {"examples-mingpt-ddp": ("torch", "hydra", "boto3", "fsspec")}

#: FSDP pads rows to the ranks of a shard: what is reduced may exceed the gradients by this share.
_PADDING = 0.05


@dataclass(frozen=True)
class RecipeOutcome:
    """One case: "passed", "skipped" or "failed" with the reason; seconds on the wall and of processors,
    bytes of the folder, ops.
    """

    case: str
    verdict: str
    reason: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    graph_bytes: int = 0
    ranks_run: int = 0
    classes: int = 0
    ops: int = 0
    peak_memory_bytes: int = 0


def check(name: str, programs: Path | None = None) -> RecipeOutcome:
    """Trace one case and compare the bytes of reduced gradients with the model's parameters.

    ``programs``: the folder of checkouts, without which programs of others are skipped.
    """
    case = CASES.get(name) or PROGRAMS[name]
    needs = _NEEDS_OF_PROGRAMS.get(name, case.needs)
    missing = [module for module in needs if importlib.util.find_spec(module) is None]
    if missing:
        return RecipeOutcome(name, "skipped", f"{missing[0]} is not installed")
    if not case.path(programs).is_file():
        return RecipeOutcome(name, "skipped", f"{case.script} is not there (--programs FOLDER)")
    job = ScriptJob(
        case.path(programs),
        tuple(case.arguments.format(programs=programs).split()),
        case.world_size,
        step=_STEP.get(case.script, 2),
        load=case.load,
    )
    began, worked = time.monotonic(), cpu_s()
    try:
        with tempfile.TemporaryDirectory() as folder:
            graph, report = trace(job, name=name)
            save_graph(graph, Path(folder) / name, report.write)
            wall_s = time.monotonic() - began
            size = sum(path.stat().st_size for path in (Path(folder) / name).iterdir())
    except SimcoreError as error:
        return RecipeOutcome(name, "failed", str(error))
    reduced = reduced_bytes(graph)
    expected = case.parameters * case.bytes_each
    low, high = expected / case.tensor_parallel, expected * (1 + _PADDING)
    if case.tensor_parallel == 1:
        high = expected * (1 + (0 if "ddp" in name else _PADDING))
    fits = not expected or low <= reduced <= high
    return RecipeOutcome(
        name,
        "passed" if fits else "failed",
        "" if fits else f"{reduced} bytes of gradients are reduced, expected {low:.0f} to {high:.0f}",
        round(wall_s, 1),
        round(cpu_s() - worked, 1),
        size,
        len(report.ranks_run),
        len(graph.programs),
        len(graph.ops),
        max(program.memory.peak for program in graph.programs),
    )


def reduced_bytes(graph: Graph) -> int:
    """Bytes that the first rank gives to be reduced among data-parallel ranks: reduce_scatter's input where
    there is one, all_reduce's else.
    """
    program = graph.programs[int(graph.program_of_rank[0])]
    rows = graph.flat_ops(program).row
    phases = np.array(graph.ops.phase.tolist(), dtype=object)[rows]
    calls = np.array(graph.ops.collective.tolist(), dtype=object)[rows]
    sizes = graph.ops.num_bytes[rows]
    for collective in ("reduce_scatter", "all_reduce"):
        chosen = (calls == collective) & (phases == "grad_sync")
        if chosen.any():
            return int(sizes[chosen].sum())
    return 0


def run(
    cases: Annotated[list[str] | None, typer.Argument(help="Names of cases; none: all.")] = None,
    programs: Annotated[
        Path | None, typer.Option(help="Folder of checkouts: programs of others are traced, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Trace the recipes at full size: minutes, and needs torch; Hugging Face cases need transformers."""
    known = (*CASES, *PROGRAMS)
    for name in cases or ():
        if name not in known:
            raise InputError(f"unknown case {name!r}{nearest(name, known)}")
    outcomes = []
    for name in cases or (CASES if programs is None else known):
        typer.echo(f"{name} ...", err=True)
        outcomes.append(check(name, programs.resolve() if programs is not None else None))
        if not as_json:
            typer.echo(_line(outcomes[-1]))
    if as_json:
        typer.echo(json.dumps({"rows": [asdict(one) for one in outcomes]}))
    if any(one.verdict == "failed" for one in outcomes):
        raise typer.Exit(1)


def _line(one: RecipeOutcome) -> str:
    if one.verdict == "skipped" or not one.wall_s:
        return f"{one.case:32}{one.verdict}: {one.reason}"
    return (
        f"{one.case:32}{one.verdict}  {one.wall_s:6.1f} s ({one.cpu_s:.1f} of processors)  "
        f"{format_bytes(one.graph_bytes):>10}  {one.ops:6} ops  {one.ranks_run} ranks run, "
        f"{one.classes} classes, peak {format_bytes(one.peak_memory_bytes)}  {one.reason}"
    )
