"""What ``validate.py --nccl`` and ``calibrate.py --nccl`` do: errors of predictions, profiles from fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simcore.apps.fit.nccl import NcclFit, fit_nccl, left_out_errors, own_errors, spread_of
from simcore.apps.measured.nccl import (
    NcclRow,
    fabric_of,
    generation_of,
    plan_rows,
    predicted_us,
    read_nccl_rows,
    tells_constants,
    tuner_us,
)
from simcore.apps.measured.tables import ErrorTable, error_table
from simcore.collectives.timing import timing_of
from simcore.units import MIB

#: The generation whose rows span nodes; the others take its hops between nodes.
_BETWEEN_NODES_FROM = "hopper"


def nccl_errors(path: str) -> ErrorTable:
    """Errors of every row that the planner covers, microseconds.  InputError for a bad file.

    Rows that stand apart are in ``rows`` with their reason in ``apart`` and in families of their own
    ("apart: ..."), but not in ``overall``.  ``tuner`` is what NCCL's own tuner expects, microseconds.
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
            "fabric": fabric_of(row),
        }
        for row, plan, predicted, tuner in zip(
            rows, plan_rows(rows), predicted_us(rows), tuner_us(rows), strict=True
        )
    ]
    table = error_table(scored, skipped)
    return replace(table, overall=error_table(row for row in scored if row["apart"] is None).overall)


def goal_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors of healthy rows by nodes, below and from 1 MiB, and those of NCCL's own tuner beside them."""
    healthy = [row for row in rows if row["apart"] is None]
    lines = [f"{'healthy rows':58}{'n':>7}{'mean %':>9}{'median':>9}{'p90':>9}{'max':>9}"]
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


def fabric_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors between nodes by fabric and size, rows that stand apart left out."""
    named = [
        {**row, "family": f"{row['fabric']}, {row['nodes']} nodes, {size}"}
        for row in rows
        if row["apart"] is None and row["fabric"]
        for size in ("all sizes", "below 1 MiB" if float(row["bytes"]) < MIB else "from 1 MiB")
    ]
    if not named:
        return []
    lines = [f"{'between nodes, by fabric':58}{'n':>7}{'mean %':>9}{'median':>9}{'p90':>9}{'max':>9}"]
    return lines + [summary_line(name, found) for name, found in error_table(named).families.items()]


def summary_line(name: str, summary: Mapping[str, float]) -> str:
    """One line of an error table, percent."""
    cells = "".join(f"{100 * summary[key]:9.1f}" for key in ("mape", "median", "p90", "max"))
    return f"{name:58}{summary['n']:7}{cells}"


def apart_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rows that stand apart, each with its reason."""
    picked = [row for row in rows if row["apart"] is not None]
    return [f"apart, by no healthy fabric explained: {len(picked)} rows"] + [
        f"line {row['id']:6} {row['measured']:12.2f} us measured, {row['predicted']:12.2f} predicted:"
        f" {row['apart']}"
        for row in picked
    ]


def print_nccl_fit(generation: str, path: str, cross_validate: bool) -> None:
    """Fit and print a generation's profile; with ``cross_validate`` also errors of left-out sources.

    InputError for a bad file or a generation without rows.
    """
    rows, _ = read_nccl_rows(path)
    fit = fit_nccl(generation, rows, timing_of(_BETWEEN_NODES_FROM))
    print(profile_text(fit, rows))
    if cross_validate:
        _print_cross_validation(rows)


def profile_text(fit: NcclFit, rows: Sequence[NcclRow]) -> str:
    """The profile of a fit, as ``hardware_profiles/nccl/<generation>.toml`` holds it."""
    kept = [row for row in rows if tells_constants(row) and generation_of(row) == fit.generation]
    publishers = ", ".join(dict.fromkeys(row.source.split(" ")[0] for row in kept))
    one_node = all(row.setup.nodes == 1 for row in kept)
    between = f"; network hops and trees: as fitted for {_BETWEEN_NODES_FROM}" if one_node else ""
    source = (
        f"scripts/calibrate.py {fit.generation} --nccl: {fit.num_rows} rows of {publishers}; mean error"
        f" {100 * fit.mean_error:.1f} %; not fitted: Simple.channel_bytes_per_s (a round number) and"
        f" LL128.channel_bytes_per_s (NCCL's tuning table){between}"
    )
    lines = [
        f"# Timing constants of NCCL collectives on the {fit.generation} generation.  Meaning of each key:",
        "# simcore/collectives/timing.py.  Times are seconds, sizes bytes, shares of 1.",
        "",
    ]
    for name, timed in fit.timing.protocols.items():
        lines += [f"[protocol.{name}]", *_assignments(vars(timed)), f'source = "{source}"', ""]
    others = {key: value for key, value in vars(fit.timing).items() if key != "protocols"}
    lines += ["[collectives]", *_assignments(others), f'source = "{source}"']
    return "\n".join(lines)


def _assignments(values: Mapping[str, float]) -> list[str]:
    return [f"{key} = {value:.4g}" for key, value in values.items()]


def _print_cross_validation(rows: Sequence[NcclRow]) -> None:
    left_out: dict[int, tuple[NcclRow, float]] = {}
    print(f"\n# {'left out of the fit':78}{'n':>6}{'mean %':>9}{'median':>9}{'p90':>9}{'max':>9}")
    for source, scored in left_out_errors(rows):
        left_out |= {row.line: (row, error) for row, error in scored}
        table = error_table(
            {"id": row.line, "family": source, "measured": 1.0, "predicted": 1 + error}
            for row, error in scored
        )
        shown = summary_line("", table.overall).strip() if scored else "measured what no other source did"
        print(f"# {source[:78]:78}{shown:>42}", flush=True)
    # A kind of row that one source alone measured has the error of the fit itself.
    errors = [left_out.get(row.line, (row, error)) for row, error in own_errors(rows)]
    print(f"\n# {len(left_out)} of {len(errors)} rows are of kinds that more than one source measured")
    print("# hardware_profiles/measured/nccl_spread.toml")
    for nodes, collectives in spread_of(errors).items():
        for collective, bands in collectives.items():
            print(f"\n[{nodes}.{collective}]")
            print("\n".join(f"{band} = {value:.3f}" for band, value in bands.items()))
