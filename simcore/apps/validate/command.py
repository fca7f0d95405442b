"""``validate.py``: predicted against measured, errors of the constants in use by family."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from simcore.apps.fit.white_box_nccl import table_6_lines
from simcore.apps.measured.tables import ErrorTable
from simcore.apps.validate.kernels import (
    kernel_errors,
    left_out,
    recorded_errors,
)
from simcore.apps.validate.layers import layer_errors, layer_lines
from simcore.apps.validate.nccl import (
    apart_lines,
    fabric_lines,
    goal_lines,
    nccl_errors,
    summary_line,
)
from simcore.apps.validate.peak_memory import memory_errors, memory_lines
from simcore.apps.validate.runs.asked import show
from simcore.apps.validate.runs.command import validate_runs
from simcore.errors import InputError, SimcoreError
from workloads.jobs.published import read_run_rows

_REASONS_SHOWN = 5


def validate(argv: Sequence[str]) -> int:
    """``--kernels CSV | --traces FILE.. | --layers CSV | --nccl CSV | --runs CSV | --memory CSV``: errors.

    Returns the exit code.
    """
    parser = argparse.ArgumentParser(prog="validate.py", description=validate.__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kernels", metavar="CSV", help="measured GEMM and attention rows")
    what.add_argument("--traces", nargs="+", metavar="FILE", help="recorded traces with shapes")
    what.add_argument("--layers", metavar="CSV", help="measured transformer layers, forward and backward")
    what.add_argument("--nccl", metavar="CSV", help="measured collectives, in the columns of nccl-tests")
    what.add_argument("--runs", metavar="CSV", help="published training runs, a configuration a row")
    what.add_argument("--memory", metavar="CSV", help="published training runs with memory, GiB per GPU")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    parser.add_argument("--family", default="", help="of --runs: only the rows of this family")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="of --runs: N rows of each family")
    parser.add_argument("--show", default="", metavar="ID", help="of --runs: print a row as YAML for run_sim")
    parser.add_argument("--case", type=int, default=1, metavar="N", help="of --show: a row's N-th case")
    parser.add_argument("--page", default="", metavar="FILE", help="of --runs: write the report there")
    parser.add_argument("--cache", default="", metavar="FILE", help="of --runs: keep step times there")
    parser.add_argument(
        "--sample",
        type=int,
        default=0,
        metavar="N",
        help="of --runs --leave-one-out: fit N rows of each family (default all)",
    )
    parser.add_argument(
        "--ablations",
        type=int,
        default=0,
        metavar="N",
        help="of --runs: also N rows of each family without each piece of physics",
    )
    parser.add_argument(
        "--residuals",
        default="",
        metavar="FILE",
        help="of --runs --leave-one-out: write each row's prediction without its family, for bands",
    )
    parser.add_argument(
        "--leave-one-out",
        action="store_true",
        help="of --kernels: also each GPU without its rows; of --traces: each trace by a fit to the others;"
        " of --runs: each family by numbers fitted to the others",
    )
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="rows to show (default 10)")
    options = parser.parse_args(argv)
    try:
        if options.show and options.runs is None:
            raise InputError("--show ID shows a row of --runs CSV")
        if options.show:
            print(show(read_run_rows(options.runs), options.show, options.case), end="")
            return 0
        if options.runs is not None:
            validate_runs(
                options.runs, family=options.family, limit=options.limit, worst=options.worst,
                as_json=options.json, page=options.page, cache=options.cache,
                leave_one_out=options.leave_one_out, sample=options.sample, ablations=options.ablations,
                residuals=options.residuals,
            )  # fmt: skip
            return 0
        table = _errors(options)
    except SimcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    apart: dict[str, Any] = {}
    apart_text: list[str] = []
    if options.kernels is not None and options.leave_one_out:
        apart, apart_text = left_out(options.kernels, table)
    conditions = {} if options.memory else {"conditions": "cool"}
    if options.json:
        print(json.dumps(table.as_dict() | conditions | ({"left_out": apart} if apart else {})))
        return 0
    if options.memory:
        print("\n".join(memory_lines(table, options.worst)))
    else:
        print("\n".join(layer_lines(table)) if options.layers else _text(table, options.worst))
    if conditions:
        print("GPUs at their rated clocks (gpu.conditions=cool), as in the microbenchmarks compared with")
    if apart:
        print("\n".join(["", *apart_text]))
    if options.nccl:
        by_fabric = fabric_lines(table.rows)
        lines = [
            "",
            *goal_lines(table.rows),
            "",
            *by_fabric,
            "",
            *apart_lines(table.rows),
            "",
            *table_6_lines(),
        ]
        print("\n".join(lines))
    return 0


def _errors(options: argparse.Namespace) -> ErrorTable:
    if options.nccl is not None:
        return nccl_errors(options.nccl)
    if options.memory is not None:
        return memory_errors(options.memory)
    if options.traces is not None:
        return recorded_errors(options.traces, leave_one_out=options.leave_one_out)
    return kernel_errors(options.kernels) if options.layers is None else layer_errors(options.layers)


def _text(table: ErrorTable, worst: int) -> str:
    lines = [f"{'family':58}{'n':>7}{'mean %':>9}{'median':>9}{'p90':>9}{'max':>9}"]
    for name, summary in [*table.families.items(), ("overall", table.overall)]:
        if summary["n"]:
            lines.append(summary_line(name, summary))
    lines.append(f"refused: {len(table.skipped)} rows")
    reasons = Counter(row["reason"] for row in table.skipped)
    first = {row["reason"]: row["id"] for row in reversed(table.skipped)}
    lines.extend(
        f"  {count} from line {first[reason]}: {reason}"
        for reason, count in reasons.most_common(_REASONS_SHOWN)
    )
    if len(reasons) > _REASONS_SHOWN:
        lines.append(f"  and {len(reasons) - _REASONS_SHOWN} more reasons (--json has all)")
    lines.extend(
        f"line {row['id']!s:6.60} {row['family']:52} measured {row['measured']:12.2f} us, predicted "
        f"{row['predicted']:12.2f} us ({100 * row['error']:+.0f}%)"
        for row in sorted(table.rows, key=lambda row: -abs(row["error"]))[:worst]
    )
    return "\n".join(lines)
