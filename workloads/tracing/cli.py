"""``scripts/trace_workload.py``: from a recipe's options to a graph folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simcore.errors import InputError, SimcoreError
from simcore.graph import Graph, graph_hash, save_graph
from simcore.units import format_bytes
from workloads.tracing.job import MegatronGptJob
from workloads.tracing.progress import check_target, shown_progress
from workloads.tracing.script.cli import CONTEXT, trace_user_script
from workloads.tracing.trace import TraceReport, trace_megatron_gpt

#: Recipes that are scripts with options of their own -> (script, what is said to the tracer before them).
#: torchtitan: optimizer states are made in the first step, nothing else changes after it.
_SCRIPTS = {"torchtitan": ("titan.py", ("--steps", "1:2"))}


class _RecipesAndScripts(TyperGroup):
    """A first argument that ends in ``.py`` is a script, anything else names a recipe."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` begin with."""
        if args and args[0] in _SCRIPTS:
            script, options = _SCRIPTS[args[0]]
            args = ["script", str(Path(__file__).parent / "recipes" / script), *options, *args[1:]]
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
    "(my_train.py ARGS... --world-size N --out DIR; all options: script --help) or a recipe: one of those "
    "below, or torchtitan, with its trainer's own options.",
)


@app.callback()
def recipes() -> None:
    """Recipes are subcommands."""


app.command("script", context_settings=CONTEXT)(trace_user_script)


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
    try:
        if jobs < 0:
            raise InputError(f"jobs: {jobs} must not be negative")
        job = MegatronGptJob(
            layers=layers,
            hidden=hidden,
            heads=heads,
            seq=seq,
            vocab=vocab,
            tp=tp,
            pp=pp,
            dp=dp,
            microbatches=microbatches,
            micro_batch_size=micro_batch_size,
            precision=precision,
            sequence_parallel=sequence_parallel,
            recompute=recompute,
            distributed_optimizer=distributed_optimizer,
            overlap_grad_reduce=overlap_grad_reduce,
            overlap_param_gather=overlap_param_gather,
            virtual_pipeline=virtual_pipeline,
            gpus_per_node=gpus_per_node,
            first_stage_layers=first_stage_layers,
            last_stage_layers=last_stage_layers,
            cp=cp,
            num_experts=num_experts,
            moe_top_k=moe_top_k,
            ep=ep,
            expert_load=expert_load,
        )
        check_target(out)
        with shown_progress() as progress:
            graph, report = trace_megatron_gpt(
                job, name=name or out.resolve().name, num_workers=jobs or None, progress=progress
            )
        save_graph(graph, out)
    except SimcoreError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    _summarise(graph, report, out)


def _summarise(graph: Graph, report: TraceReport, out: Path) -> None:
    size = sum(path.stat().st_size for path in out.iterdir())
    highest = max(program.memory.peak for program in graph.programs)
    for line in (
        f"{out}: {format_bytes(size)}, graph hash {graph_hash(graph)[:16]}",
        f"{graph.world_size} ranks in {len(graph.programs)} classes ({report.ranks_run} ranks run), "
        f"{graph.num_templates} templates, {len(graph.ops)} distinct ops, "
        f"{report.traced_microbatches} of {graph.workload.num_microbatches} microbatches traced",
        f"highest memory of a rank: {format_bytes(highest)}",
    ):
        typer.echo(line)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
