"""``validate.py --nccl``: errors of measured collectives, healthy rows by nodes, size and fabric."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simcore.apps.fit.nccl import left_out_errors, own_errors
from simcore.apps.fit.white_box_nccl import table_6_lines
from simcore.apps.measured.nccl import fabric_of, gpu_of, plan_rows, predicted_us, read_nccl_rows, tuner_us
from simcore.apps.measured.tables import ErrorTable, error_table, summary_head, summary_line, worst_lines
from simcore.apps.validate.left_out import left_out_lines
from simcore.units import MIB


def nccl_errors(path: str) -> ErrorTable:
    """Errors of every row that the planner covers, microseconds.  InputError for a bad file.

    Rows that stand apart are in ``rows`` with their reason in ``apart`` and in families of their own
    ("apart: ..."), but not in ``overall``; so are exchanges of tokens by kernels that are not NCCL's
    (``exchange``).  ``tuner`` is what NCCL's own tuner expects, microseconds.
    """
    rows, skipped = read_nccl_rows(path)
    scored = [
        {
            **row.columns,
            "id": row.line,
            "family": row.family,
            "measured": row.measured_us,
            "predicted": predicted,
            "relative_error": plan.relative_error,
            "algorithm": plan.algorithm,
            "protocol": plan.protocol,
            "channels": plan.channels,
            "tuner": tuner,
            "apart": row.apart,
            "exchange": row.exchange,
            "fabric": fabric_of(row),
        }
        for row, plan, predicted, tuner in zip(
            rows, plan_rows(rows), predicted_us(rows), tuner_us(rows), strict=True
        )
    ]
    table = error_table(scored, skipped)
    return replace(table, overall=error_table(_healthy(scored)).overall)


def _healthy(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """NCCL's, on fabrics that explain them."""
    return [row for row in rows if row["apart"] is None and row["exchange"] is None]


def left_out_gpus(path: str) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Errors of each GPU's healthy rows by constants fitted to the other GPUs of its generation, beside those
    of the constants in use: by GPU and size for JSON, and as lines.

    Rows of kinds that no other GPU measured are not scored.  InputError for a bad file.
    """
    rows, _ = read_nccl_rows(path)
    own = {row.line: error for row, error in own_errors(rows)}
    found: dict[str, dict[str, float]] = {}
    for gpu, scored in left_out_errors(rows, gpu_of):
        for size, large in (("below 1 MiB", False), ("from 1 MiB", True)):
            errors = {row.line: error for row, error in scored if (row.num_bytes >= MIB) is large}
            if errors:
                found[f"{gpu}, {size}"] = {
                    "n": len(errors),
                    "mape": sum(map(abs, errors.values())) / len(errors),
                    "in_fit": sum(abs(own[line]) for line in errors) / len(errors),
                }
    return found, left_out_lines(found)


def nccl_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Healthy rows by goal and by fabric, rows that stand apart, and Echo's white box, for people."""
    return ["", *_goal_lines(rows), "", *_fabric_lines(rows), "", *_apart_lines(rows), "", *table_6_lines()]


def _goal_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors of healthy rows by nodes, below and from 1 MiB, and those of NCCL's own tuner beside them."""
    healthy = _healthy(rows)
    lines = [summary_head("healthy rows")]
    for nodes, single in (("one node", True), ("several nodes", False)):
        for size, large in (("below 1 MiB", False), ("from 1 MiB", True)):
            picked = [
                {**row, "family": f"{nodes}, {size}"}
                for row in healthy
                if (float(row["nodes"]) == 1) is single and (float(row["bytes"]) >= MIB) is large
            ]
            by_tuner = [
                {**row, "family": f"{row['family']}: NCCL's tuner", "predicted": row["tuner"]}
                for row in picked
            ]
            for table in (error_table(picked), error_table(by_tuner)):
                lines += [summary_line(name, summary) for name, summary in table.families.items()]
    return lines


def _fabric_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors between nodes by fabric and size, rows that stand apart left out."""
    named = [
        {**row, "family": f"{row['fabric']}, {row['nodes']} nodes, {size}"}
        for row in _healthy(rows)
        if row["fabric"]
        for size in ("all sizes", "below 1 MiB" if float(row["bytes"]) < MIB else "from 1 MiB")
    ]
    if not named:
        return []
    families = error_table(named).families
    return [summary_head("between nodes, by fabric"), *(summary_line(*found) for found in families.items())]


def _apart_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rows that stand apart, each with its reason."""
    picked = [row for row in rows if row["apart"] is not None]
    lines = [f"apart, by no healthy fabric explained: {len(picked)} rows"]
    for reason in dict.fromkeys(row["apart"] for row in picked):
        lines += [
            "",
            *textwrap.wrap(reason, 78),
            *worst_lines(row for row in picked if row["apart"] == reason),
        ]
    return lines
