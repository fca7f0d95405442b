"""``scripts/trace_workload.py``: from a training script, or a recipe's options, to a graph folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simcore.errors import InputError
from simcore.files import check_replaceable
from simcore.graph import Graph, graph_hash, save_graph
from simcore.graph.store import GRAPH
from simcore.units import format_bytes
from workloads.tracing.drive.framework_imports import module_file
from workloads.tracing.drive.progress import shown_progress
from workloads.tracing.drive.rank_classes import TraceReport
from workloads.tracing.drive.script_job import HANG_S, MAX_RANKS_RUN, ScriptJob, parse_steps, parse_values
from workloads.tracing.drive.trace import TracedJob, cpu_s, trace
from workloads.tracing.recipes.megatron.job import MegatronGptJob

#: Recipes that are scripts with options of their own -> (script, what is said to the tracer before them).
#: torchtitan: optimizer states are made in the first step, nothing else changes after it.
_SCRIPTS = {"torchtitan": ("titan.py", ("--steps", "1:2"))}

#: A script's own options are kept for it.
_CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}

#: How the group tells the command that a script is a module: not to be mistaken for an option of a program.
_AS_MODULE = "--run-as-module"

#: Worker processes at most.
_MAX_JOBS = 1024

#: Holders of memory, and values asked for, that a summary lists.
_SHOWN = 5


class _RecipesAndScripts(TyperGroup):
    """A first argument that ends in ``.py`` is a script, ``-m`` stands before a module as it does for Python,
    and anything else names a recipe.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """``-m MODULE`` becomes the command's first argument, and that it is a module."""
        if args[:1] == ["-m"] and len(args) > 1:
            args = ["script", args[1], _AS_MODULE, *args[2:]]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` begin with."""
        if args and args[0] in _SCRIPTS:
            script, options = _SCRIPTS[args[0]]
            args = ["script", str(Path(__file__).parents[1] / "recipes" / script), *options, *args[1:]]
        elif args and args[0].endswith(".py"):
            args = ["script", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_RecipesAndScripts,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Trace a training program without a GPU and write its execution graph.  Give a training script "
    "(my_train.py ARGS... --world-size N --out DIR; all options: script --help), a module as python -m takes "
    "it (-m package.train ARGS...) or a recipe: one of those "
    "below, or torchtitan, with its trainer's own options.",
)


@app.callback()
def recipes() -> None:
    """Recipes are subcommands."""


@app.command("script", context_settings=_CONTEXT)
def trace_user_script(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A training script as torchrun starts it.")],
    world_size: Annotated[int, typer.Option(help="Ranks of the job.")],
    out: Annotated[Path, typer.Option(help="Graph folder to write; an existing graph is replaced.")],
    gpus_per_node: Annotated[int, typer.Option(help="Ranks on a node.")] = 8,
    steps: Annotated[
        str,
        typer.Option(help="The optimizer step to keep, A:A+1, counted from 0; default: 2:3, or the last."),
    ] = "",
    value: Annotated[
        list[str] | None,
        typer.Option(help="Answer for a value that the run does not have: FILE.py:LINE=NUMBER; repeatable."),
    ] = None,
    expert_load: Annotated[
        str, typer.Option(help="Tokens of experts: uniform, zipf[:EXPONENT], or a JSON file of shares.")
    ] = "uniform",
    setup: Annotated[
        Path | None, typer.Option(help="Python file run first: register_fake, stand-ins for modules.")
    ] = None,
    tokens_per_step: Annotated[
        int,
        typer.Option(help="Tokens of a step over all ranks; 0: those that are looked up in the embedding."),
    ] = 0,
    max_ranks: Annotated[int, typer.Option(help="Ranks run at most.")] = MAX_RANKS_RUN,
    hang_s: Annotated[
        float, typer.Option(help="Seconds without a tensor operation before giving up.")
    ] = HANG_S,
    jobs: Annotated[int, typer.Option(help="Worker processes; 0: one per core.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the workload; default: the folder's.")] = "",
    as_module: Annotated[bool, typer.Option(_AS_MODULE, hidden=True)] = False,
) -> None:
    """An unmodified torchrun-style script; its own arguments follow its name.

    Options named here are taken from anywhere on the line; those behind ``--`` all go to the script.
    """

    def job() -> ScriptJob:
        return ScriptJob(
            script=module_file(str(script)) if as_module else script,
            arguments=tuple(context.args),
            world_size=world_size,
            gpus_per_node=gpus_per_node,
            step=parse_steps(steps or "2:3"),
            exact_step=bool(steps),
            setup=setup,
            values=parse_values(value or ()),
            hang_s=hang_s,
            load=expert_load,
            tokens_per_step=tokens_per_step,
            max_ranks=max_ranks,
            module=str(script) if as_module else "",
        )

    _trace(job, out, name, jobs)


@app.command("megatron-gpt")
def megatron_gpt(
    layers: Annotated[int, typer.Option(help="Transformer layers of the whole model.")],
    hidden: Annotated[int, typer.Option(help="Hidden size; the MLP is four times as wide.")],
    heads: Annotated[int, typer.Option(help="Attention heads.")],
    out: Annotated[Path, typer.Option(help="Graph folder to write; an existing graph is replaced.")],
    seq: Annotated[int, typer.Option(help="Tokens per sequence.")] = 2048,
    vocab: Annotated[int, typer.Option(help="Vocabulary size, padded as the job pads it.")] = 51200,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(help="Data-parallel replicas.")] = 1,
    microbatches: Annotated[int, typer.Option(help="Microbatches per step and replica.")] = 1,
    micro_batch_size: Annotated[int, typer.Option(help="Sequences per microbatch.")] = 1,
    precision: Annotated[str, typer.Option(help="fp32 or bf16 (with fp32 main parameters).")] = "fp32",
    sequence_parallel: Annotated[bool, typer.Option(help="Megatron's sequence parallelism.")] = False,
    recompute: Annotated[
        str, typer.Option(help="none, selective (attention) or full (every layer).")
    ] = "full",
    distributed_optimizer: Annotated[bool, typer.Option(help="Shard optimizer states over dp.")] = False,
    overlap_grad_reduce: Annotated[
        bool, typer.Option(help="Reduce gradients during the backward pass.")
    ] = False,
    overlap_param_gather: Annotated[
        bool, typer.Option(help="Gather parameters during the forward pass.")
    ] = False,
    virtual_pipeline: Annotated[int, typer.Option(help="Model chunks per stage; above 1: interleaved.")] = 1,
    first_stage_layers: Annotated[int, typer.Option(help="Layers of the first stage; 0: as the others.")] = 0,
    last_stage_layers: Annotated[int, typer.Option(help="Layers of the last stage; 0: as the others.")] = 0,
    cp: Annotated[int, typer.Option(help="Context-parallel ranks (keys and values go round).")] = 1,
    num_experts: Annotated[int, typer.Option(help="Experts of each layer's MLP; 0: dense.")] = 0,
    moe_top_k: Annotated[int, typer.Option(help="Experts that a token visits.")] = 2,
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks, of cp * dp.")] = 1,
    expert_load: Annotated[
        str, typer.Option(help="Where tokens go: uniform, zipf[:EXPONENT] or a JSON file of shares.")
    ] = "uniform",
    gpus_per_node: Annotated[int, typer.Option(help="What the program is told about its node.")] = 8,
    jobs: Annotated[int, typer.Option(help="Worker processes; 0: one per core.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the workload; default: the folder's.")] = "",
) -> None:
    """GPT trained by Megatron-core 0.16.1: its model, DDP, optimizer and pipeline schedule.

    Defaults are those of echo-gpt-175b-pp12-tp8-dp1, GPT-175B on 96 H800 as evaluated in Echo (arXiv
    2412.12487): FP32 without sequence parallelism and without the distributed optimizer.  That needs more
    than 80 GB without recomputation, so every layer is recomputed ("full").
    """
    said = locals()
    sizes = {field.name: said[field.name] for field in fields(MegatronGptJob)}
    _trace(lambda: MegatronGptJob(**sizes), out, name, jobs)


def _trace(job: Callable[[], TracedJob], out: Path, name: str, jobs: int) -> None:
    """Trace what ``job`` makes, write its graph folder and say what became of it."""
    if jobs < 0:
        raise InputError(f"jobs: {jobs} must not be negative")
    if jobs > _MAX_JOBS:
        raise InputError(f"jobs: {jobs} must be at most {_MAX_JOBS}")
    made = job()
    check_replaceable(out, GRAPH)  # before minutes of tracing
    began, worked = time.monotonic(), cpu_s()
    with shown_progress() as progress:
        graph, report = trace(
            made, name=name or out.resolve().name, num_workers=jobs or None, progress=progress
        )
    save_graph(graph, out, report.write)
    _summarise(graph, report, out)
    typer.echo(
        f"{sum(report.processes.values())} processes "
        f"({', '.join(f'{count} {phase}' for phase, count in report.processes.items())}), "
        f"{time.monotonic() - began:.0f} s, {cpu_s() - worked:.0f} s of processors"
    )


def _summarise(graph: Graph, report: TraceReport, out: Path) -> None:
    size = sum(path.stat().st_size for path in out.iterdir())
    highest = max(graph.programs, key=lambda program: program.memory.peak)
    traced = f", {report.traced_microbatches} of {graph.workload.num_microbatches} microbatches traced"
    typer.echo(f"{out}: {format_bytes(size)}, graph hash {graph_hash(graph)[:16]}")
    typer.echo(
        f"{graph.world_size} ranks in {len(graph.programs)} classes ({len(report.ranks_run)} ranks run), "
        f"{graph.num_templates} templates, {len(graph.ops)} distinct ops"
        f"{traced if report.traced_microbatches else ''}"
    )
    if graph.workload.tokens_per_step and not report.traced_microbatches:
        typer.echo(f"tokens of a step: {graph.workload.tokens_per_step:,}")
    held_by = "; held by" if report.holders else ""
    typer.echo(f"highest memory of a rank: {format_bytes(highest.memory.peak)}{held_by}")
    if report.holders:
        holders = list(report.holders.values())[graph.programs.index(highest)]
        for holder in holders[:_SHOWN]:
            where = " ".join(filter(None, (holder["phase"], holder["module"], *holder["stack"][:1])))
            typer.echo(f"  {format_bytes(holder['num_bytes'])}  {holder['op']}  {where}".rstrip())
    if report.not_run:
        typer.echo(report.not_run)
    for asked in report.values[:_SHOWN]:
        if asked["kind"] == "peers":
            typer.echo(f"at {asked['site']} other ranks are taken to give {asked['rule']}", err=True)
        if asked["kind"] in ("peers", "evaluation", "missing", "refused", "late"):
            continue
        answer = f"{asked['kind']} answered {asked['answer']:g}"
        why = f" ({asked['rule']})" if asked["rule"] else ""
        typer.echo(f"value asked at {asked['site']}: {answer}{why}", err=True)
    if len(report.values) > _SHOWN:
        typer.echo(f"... and {len(report.values) - _SHOWN} more in trace.json", err=True)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
