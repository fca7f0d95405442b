"""``calibrate.py``: constants fitted to measurements, printed as the tables of profiles."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from simcore.apps.fit.runs import print_runs_fit
from simcore.apps.fit.watts import print_watts
from simcore.apps.measured.runs.cache import StepTimes, default_cache
from simcore.apps.validate.kernels import fit_kernels, fit_traces
from simcore.apps.validate.nccl import print_nccl_fit
from simcore.apps.validate.runs.command import spread
from simcore.errors import InputError, SimcoreError
from workloads.jobs.published import read_run_rows


def calibrate(argv: Sequence[str]) -> int:
    """``GENERATION --kernels CSV``, ``GENERATION --nccl CSV [--cross-validate]`` ``all --traces FILE..``
    ``DIE --runs CSV [--leave-one-out]`` or ``all --watts KERNELS LIMITS``.

    Prints fitted TOML tables.  Returns the exit code.
    """
    parser = argparse.ArgumentParser(prog="calibrate.py", description=calibrate.__doc__)
    parser.add_argument("generation", help="volta, ampere, hopper; with --runs a die (gh100, ga100) or all")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kernels", metavar="CSV", help="measured GEMM and attention rows")
    what.add_argument("--traces", nargs="+", metavar="FILE", help="traces with shapes: memory-bound kernels")
    what.add_argument("--nccl", metavar="CSV", help="measured collectives, in the columns of nccl-tests")
    what.add_argument(
        "--runs", metavar="CSV", help="published training runs: a die's clock and fp8 rate under load"
    )
    what.add_argument("--watts", nargs=2, metavar="CSV", help="kernels with watts; times by power limit")
    parser.add_argument("--leave-one-out", action="store_true", help="of --runs: also without each family")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="of --runs: N rows of each family")
    parser.add_argument(
        "--cache",
        default="",
        metavar="FILE",
        help=f"of --runs: step times simulated before (default {default_cache()})",
    )
    parser.add_argument("--rounds", type=int, default=3, help="restarts of the simplex (default 3)")
    parser.add_argument("--only", choices=("gemm", "attention"), help="fit one part of the kernels")
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help="also leave each source of --nccl out of the fit once (all generations; minutes)",
    )
    options = parser.parse_args(argv)
    try:
        if options.runs is not None:
            rows = spread(read_run_rows(options.runs), options.limit)
            times = StepTimes(Path(options.cache) if options.cache else default_cache())
            print_runs_fit(options.generation, rows, left_out=options.leave_one_out, times=times)
        elif options.watts is not None:
            print_watts(*options.watts)
        elif options.nccl is not None:
            print_nccl_fit(options.generation, options.nccl, options.cross_validate)
        elif options.traces is not None:
            if options.generation != "all":
                raise InputError("--traces fits one set of constants for all generations: write all")
            fit_traces(options.traces, options.rounds)
        else:
            fit_kernels(options.generation, options.kernels, options.rounds, options.only)
    except SimcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
