"""``calibrate``: constants fitted to measurements, printed as the tables of profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from simcore.apps.errors import one_option
from simcore.apps.progress import say


def calibrate(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GENERATION", help="volta, ampere, hopper; with --runs a die (gh100, ga100) or all."
        ),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(metavar="CSV", help="Measured GEMM and attention rows.")
    ] = None,
    traces: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE ...", help="Traces with shapes: memory-bound kernels, of all generations."
        ),
    ] = None,
    nccl: Annotated[
        str | None, typer.Option(metavar="CSV", help="Measured collectives, in the columns of nccl-tests.")
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(metavar="CSV", help="Published training runs: a die's clock and fp8 rate under load."),
    ] = None,
    watts: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="CSV CSV", help="Kernels with watts; times by power limit."),
    ] = None,
    interference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACE ...", help="Traces: slowdowns of kernels beside communication, without GENERATION."
        ),
    ] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Of --runs: also without each family.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="Of --runs: N rows of each family.")] = 0,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of --runs: step times simulated before. Default: simcore/runs.jsonl in the user's cache.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Restarts of the simplex.")] = 3,
    only: Annotated[
        Literal["gemm", "attention"] | None, typer.Option(help="Fit one part of the kernels.")
    ] = None,
    cross_validate: Annotated[
        bool,
        typer.Option(
            "--cross-validate",
            help="Also leave each source of --nccl out of the fit once (all generations; minutes).",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of --interference: where to write the model.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Of --interference: for traces that name no GPU.")
    ] = None,
) -> None:
    """Fit constants to one of --kernels, --traces, --nccl, --runs, --watts, and print them as TOML.

    With --interference, learn a function instead and write it to --out.
    """
    from simcore.errors import InputError

    given = {
        "--kernels": kernels, "--traces": traces, "--nccl": nccl, "--runs": runs, "--watts": watts,
        "--interference": interference,
    }  # fmt: skip
    _, *more = arguments or [""]
    one_option(given, more=more, of=["--traces", "--interference"])
    if interference:
        if out is None:
            raise InputError("--interference needs --out FILE")
        _learn_interference([Path(trace) for trace in (*interference, *(arguments or ()))], out, cluster)
        return
    if not arguments:
        raise InputError("GENERATION is missing: volta, ampere, hopper, a die or all")
    generation = arguments[0]
    if runs is not None:
        from simcore.apps.fit.runs import print_runs_fit
        from simcore.apps.measured.runs.cache import StepTimes, default_cache
        from simcore.apps.measured.runs.score import spread
        from workloads.jobs.published import read_run_rows

        rows, times = spread(read_run_rows(runs), limit), StepTimes(cache or default_cache())
        print_runs_fit(generation, rows, left_out=leave_one_out, times=times)
    elif watts is not None:
        from simcore.apps.fit.watts import print_watts

        print_watts(*watts)
    elif nccl is not None:
        from simcore.apps.fit.nccl import print_nccl_fit

        print_nccl_fit(generation, nccl, cross_validate)
    elif traces:
        from simcore.apps.fit.memory import print_memory_fit

        if generation != "all":
            raise InputError("--traces fits one set of constants for all generations: write all")
        print_memory_fit([*traces, *more], rounds)
    else:
        from simcore.apps.fit.kernels import print_kernel_fit

        assert kernels is not None
        print_kernel_fit(generation, kernels, rounds, only)


def _learn_interference(traces: list[Path], out: Path, cluster: str | None) -> None:
    """Learn how much communication slows kernels, and write that to ``out``."""
    from simcore.apps.studies.contention.rows import read_trace_sets
    from simcore.interference.train import train

    found, skipped = read_trace_sets(traces, cluster)
    rows = [row for trace, _, _ in found for row in trace.training_rows()]
    names = sorted({row.trace for row in rows})
    model = train(rows, "scripts/calibrate.py --interference on " + ", ".join(names))
    model.write(out)
    for line in skipped:
        say(f"left out {line['trace']}: {line['reason']}")
    print(f"{out}: {len(model.trees)} trees from {model.num_rows} kernels of {len(names)} traces")
