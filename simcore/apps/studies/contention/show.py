"""The contention study as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = (
    f"{'':44}{'n':>6}{'5%':>6}{'10%':>6}{'15%':>6}{'median':>9}{'slow':>7}{'p90':>7}{'added':>8}{'pred.':>8}"
    f"{'lost/held':>11}"
)


def study_text(study: Mapping[str, Any]) -> str:
    """Tables of published rows, then of each trace."""
    lines = ["Published slowdowns", f"  {'':58}{'recorded':>12}{'predicted':>11}{'one wave':>10}{'error':>8}"]
    for row in study["published"]:
        low, high = row["recorded_low"], row["recorded_high"]
        recorded = f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"
        lines.append(
            f"  {row['what']:58}{recorded:>12}{row['predicted']:>11.3f}{row['predicted_one_wave']:>10.2f}"
            f"{row['error']:>8.1%}"
        )
    echo = ", ".join(f"{name} {_shares(shares)}" for name, shares in study["echo_within"].items())
    lines += ["", f"Echo's shares of kernels within 5/10/15%: {echo}", f"Learned: {study['learned']}"]
    for trace in study["traces"]:
        lines += ["", *_trace_lines(trace)]
    lines += [f"left out {line['trace']}: {line['reason']}" for line in study["skipped"]]
    return "\n".join(lines)


def _trace_lines(trace: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{trace['trace']} on {trace['gpu']}: {trace['kernels']} kernels beside communication;"
        f" {trace['never_alone']} more never seen alone, {trace['beside_compute']} beside compute too",
        f"  repeats of the same kernels alone within 5/10/15%: {_shares(trace['repeats_within'])}",
    ]
    for name, found in trace["scores"].items():
        lines += [f"  {name}", f"  {_HEAD}"]
        for row in found:
            shares = "".join(f"{share:>6.0%}" for share in row["within"])
            lines.append(
                f"  {row['what']:44}{row['num_kernels']:>6}{shares}{row['median_error']:>9.1%}"
                f"{row['recorded_median']:>7.2f}{row['recorded_p90']:>7.2f}{row['recorded_excess']:>8.1%}"
                f"{row['predicted_excess']:>8.1%}{row['lost_per_held']:>11.2f}"
            )
    for name, effect in trace["step_effect"].items():
        if effect:
            lines.append(
                f"  all compute time, {name}: communication adds {effect['recorded_added']:.2%} recorded,"
                f" {effect['predicted_added']:.2%} predicted; error {effect['compute_error']:+.2%}"
            )
    for step in trace["steps"]:
        if "error" in step:
            lines.append(f"  steps: {step['error']}")
        else:
            recorded, predicted = step["recorded_s"], step["predicted_s"]
            lines.append(
                f"  rank {step['rank']} step {step['step']}: {recorded * 1e3:.2f} ms recorded,"
                f" {predicted * 1e3:.2f} ms predicted ({predicted / recorded - 1:+.1%})"
            )
    return lines


def _shares(shares: Sequence[float]) -> str:
    return "/".join(f"{share:.0%}" for share in shares) if shares else "not known"
