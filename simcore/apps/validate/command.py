"""``validate``: predicted against measured, errors of the constants in use by family."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcore.apps.errors import one_option
from simcore.apps.options import Json
from simcore.apps.process import collect_as_usual
from simcore.outside import printable

if TYPE_CHECKING:
    from simcore.apps.measured.tables import ErrorTable

_REASONS_SHOWN = 5
_COOL = "GPUs at their rated clocks (gpu.conditions=cool), as microbenchmarks run them"


def validate(
    kernels: Annotated[
        str | None,
        typer.Option(metavar="CSV", help="Measured kernels, or a folder that profile_gpu.py wrote."),
    ] = None,
    traces: Annotated[
        list[str] | None, typer.Option(metavar="FILE ...", help="Recorded traces with shapes.")
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="CSV", help="Measured transformer layers, forward and backward.")
    ] = None,
    nccl: Annotated[
        str | None, typer.Option(metavar="CSV", help="Measured collectives, in the columns of nccl-tests.")
    ] = None,
    runs: Annotated[
        str | None, typer.Option(metavar="CSV", help="Published training runs, a configuration a row.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="CSV", help="Peaks of memory by rank, or published runs with memory."),
    ] = None,
    strategies: Annotated[
        list[str] | None,
        typer.Option(metavar="CSV ...", help="Measured strategies, in groups or as published runs."),
    ] = None,
    as_json: Json = False,
    family: Annotated[str, typer.Option(help="Of --runs: only the rows of this family.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", help="Of --runs: N rows of each family.")] = 0,
    show: Annotated[str, typer.Option(metavar="ID", help="Of --runs: print a row as YAML for run_sim.")] = "",
    case: Annotated[int, typer.Option(metavar="N", help="Of --show: a row's N-th case.")] = 1,
    page: Annotated[str, typer.Option(metavar="FILE", help="Of --runs: write the report there.")] = "",
    cache: Annotated[
        str, typer.Option(metavar="FILE", help="Of --runs and --strategies: keep step times there.")
    ] = "",
    sample: Annotated[
        int, typer.Option(metavar="N", help="Of --runs --leave-one-out: fit N rows of each family (0: all).")
    ] = 0,
    ablations: Annotated[
        int,
        typer.Option(
            metavar="N", help="Of --runs: also N rows of each family without each piece of physics."
        ),
    ] = 0,
    residuals: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Of --runs --leave-one-out: write each row's prediction without its family, for bands; rows"
            " of other families that FILE has stay.",
        ),
    ] = "",
    leave_one_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-out",
            help="Of --kernels, --nccl: also each GPU without its rows; of --traces: each trace by a fit"
            " to the others; of --runs: each family by numbers fitted to the others.",
        ),
    ] = False,
    worst: Annotated[int, typer.Option(metavar="N", help="Rows to show.")] = 10,
) -> None:
    """Errors of predictions by family; of --strategies, what choosing by predictions costs."""
    import json

    collect_as_usual()  # hundreds of simulations
    files = {
        "--kernels": kernels, "--traces": traces, "--layers": layers, "--nccl": nccl, "--runs": runs,
        "--memory": memory, "--strategies": strategies,
    }  # fmt: skip
    one_option(files, more=more, of=["--traces", "--strategies"])
    if show:
        _show(runs, show, case)
    elif runs is not None:
        from simcore.apps.validate.runs.command import validate_runs

        validate_runs(
            runs, family=family, limit=limit, worst=worst, as_json=as_json, page=page, cache=cache,
            leave_one_out=leave_one_out, sample=sample, ablations=ablations, residuals=residuals,
        )  # fmt: skip
    elif strategies:
        from simcore.apps.validate.runs.choices import validate_strategies

        found, lines = validate_strategies([*strategies, *(more or ())], cache=cache)
        print(json.dumps(found) if as_json else printable("\n".join(lines)))
    elif memory is not None:
        from simcore.apps.validate.memory import memory_errors, memory_lines

        peaks = memory_errors(memory)
        print(json.dumps(peaks.record()) if as_json else printable("\n".join(memory_lines(peaks, worst))))
    else:
        found, lines = _cool(
            kernels,
            [*(traces or ()), *(more or ())],
            layers,
            nccl,
            leave_one_out=leave_one_out,
            worst=worst,
        )
        print(json.dumps(found) if as_json else printable("\n".join(lines)))


def _show(runs: str | None, row: str, case: int) -> None:
    from simcore.apps.validate.runs.asked import show
    from simcore.errors import InputError
    from workloads.jobs.published import read_run_rows

    if runs is None:
        raise InputError("--show ID shows a row of --runs CSV")
    print(printable(show(read_run_rows(runs), row, case)), end="")


def _cool(
    kernels: str | None,
    traces: list[str],
    layers: str | None,
    nccl: str | None,
    *,
    leave_one_out: bool,
    worst: int,
) -> tuple[dict[str, Any], list[str]]:
    """What is compared at rated clocks: the JSON object, and the lines for people."""
    cool = {"conditions": "cool"}
    if layers is not None:
        from simcore.apps.validate.layers import layer_errors, layer_lines

        table = layer_errors(layers)
        return vars(table) | cool, [*layer_lines(table), _COOL]
    if nccl is not None:
        from simcore.apps.validate.nccl import left_out_gpus, nccl_errors, nccl_lines

        table = nccl_errors(nccl)
        found, lines = vars(table) | cool, [*_lines(table, worst), _COOL, *nccl_lines(table.rows)]
        if leave_one_out:
            gpus, told = left_out_gpus(nccl)
            return found | {"left_out": gpus}, [*lines, "", *told]
        return found, lines
    from simcore.apps.validate.kernels import kernel_errors, left_out, recorded_errors

    if kernels is None:
        table = recorded_errors(traces, leave_one_out=leave_one_out)
        return vars(table) | cool, [*_lines(table, worst), _COOL]
    table = kernel_errors(kernels)
    found, lines = vars(table) | cool, [*_lines(table, worst), _COOL]
    if leave_one_out:
        apart, told = left_out(kernels, table)
        return found | {"left_out": apart}, [*lines, "", *told]
    return found, lines


def _lines(table: ErrorTable, worst: int) -> list[str]:
    from simcore.apps.measured.tables import summary_lines, worst_lines

    reasons = Counter(row["reason"] for row in table.skipped)
    first = {row["reason"]: row["id"] for row in reversed(table.skipped)}
    lines = [*summary_lines(table), f"refused: {len(table.skipped)} rows"]
    lines += [
        f"  {count} from line {first[reason]}: {reason}"
        for reason, count in reasons.most_common(_REASONS_SHOWN)
    ]
    if len(reasons) > _REASONS_SHOWN:
        lines.append(f"  and {len(reasons) - _REASONS_SHOWN} more reasons (--json has all)")
    if worst and table.rows:
        lines += worst_lines(sorted(table.rows, key=lambda row: -abs(row["error"]))[:worst])
    return lines
