"""``scripts/trace_workload.py my_train.py ...``: from a training script to a graph folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simcore.errors import SimcoreError
from simcore.graph import Graph, graph_hash, save_graph
from simcore.units import format_bytes
from workloads.tracing.progress import check_target, shown_progress
from workloads.tracing.script.job import HANG_S, ScriptJob, parse_steps, parse_values
from workloads.tracing.script.trace_script import MAX_RANKS_RUN, ScriptReport, trace_script

#: The script's own options are kept for it.
CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}

_SHOWN = 5


def trace_user_script(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A training script as torchrun starts it.")],
    world_size: Annotated[int, typer.Option(help="Ranks of the job.")],
    out: Annotated[Path, typer.Option(help="Graph folder to write; an existing graph is replaced.")],
    gpus_per_node: Annotated[int, typer.Option(help="Ranks on a node.")] = 8,
    steps: Annotated[str, typer.Option(help="The optimizer step to keep, A:A+1, counted from 0.")] = "2:3",
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
    tokens_per_step: Annotated[int, typer.Option(help="Tokens of a step over all ranks, for reports.")] = 0,
    max_ranks: Annotated[int, typer.Option(help="Ranks run at most.")] = MAX_RANKS_RUN,
    hang_s: Annotated[
        float, typer.Option(help="Seconds without a tensor operation before giving up.")
    ] = HANG_S,
    jobs: Annotated[int, typer.Option(help="Worker processes; 0: one per core.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the workload; default: the folder's.")] = "",
) -> None:
    """An unmodified torchrun-style script; its own arguments follow its name.

    Options named here are taken from anywhere on the line; those behind ``--`` all go to the script.
    """
    try:
        job = ScriptJob(
            script=script,
            arguments=tuple(context.args),
            world_size=world_size,
            gpus_per_node=gpus_per_node,
            step=parse_steps(steps),
            setup=setup,
            values=parse_values(value or ()),
            hang_s=hang_s,
            load=expert_load,
        )
        check_target(out)
        with shown_progress() as progress:
            graph, report = trace_script(
                job,
                name=name or out.resolve().name,
                tokens_per_step=tokens_per_step,
                num_workers=jobs or None,
                max_ranks=max_ranks,
                progress=progress,
            )
        save_graph(graph, out)
        report.write(out)
    except SimcoreError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    _summarise(graph, report, out)


def _summarise(graph: Graph, report: ScriptReport, out: Path) -> None:
    size = sum(path.stat().st_size for path in out.iterdir())
    highest = max(graph.programs, key=lambda program: program.memory.peak)
    typer.echo(f"{out}: {format_bytes(size)}, graph hash {graph_hash(graph)[:16]}")
    typer.echo(
        f"{graph.world_size} ranks in {len(graph.programs)} classes ({len(report.ranks_run)} ranks run), "
        f"{graph.num_templates} templates, {len(graph.ops)} distinct ops"
    )
    typer.echo(f"highest memory of a rank: {format_bytes(highest.memory.peak)}; held by")
    holders = list(report.holders.values())[graph.programs.index(highest)]
    for holder in holders[:_SHOWN]:
        where = " ".join(filter(None, (holder["phase"], holder["module"], *holder["stack"][:1])))
        typer.echo(f"  {format_bytes(holder['num_bytes'])}  {holder['op']}  {where}".rstrip())
    for asked in report.values[:_SHOWN]:
        typer.echo(f"value asked at {asked['site']}: {asked['kind']} answered {asked['answer']:g}", err=True)
    if len(report.values) > _SHOWN:
        typer.echo(f"... and {len(report.values) - _SHOWN} more in trace.json", err=True)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
