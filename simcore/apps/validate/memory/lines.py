"""The comparison of memory for a terminal of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from simcore.apps.validate.memory.found import MemoryRow, MemoryTable
from simcore.units import GIB

_REASONS_SHOWN: Final = 8
_WIDTH: Final = 80


def memory_lines(table: MemoryTable, worst: int) -> list[str]:
    """Errors by family, who is said not to fit, what was skipped, and the worst rows with their parts."""
    lines = [f"{'family':34}{'n':>5}{'mean %':>9}{'signed':>9}{'p90':>9}{'max':>9}"]
    for name, found in {**table.families(), **table.overall()}.items():
        if found["n"]:
            lines.append(_line(name, found))
    lines.append("nothing is fitted to these rows: each family is predicted without its own")
    lines += [*_fits(table), *_skipped(table)]
    for row in sorted(table.compared, key=lambda row: -abs(row.error or 0.0))[:worst]:
        lines += _row(row)
    return lines


def _line(name: str, found: Mapping[str, float]) -> str:
    cells = "".join(f"{100 * found[key]:9.1f}" for key in ("mape", "bias", "p90", "max"))
    return f"{name:34.34}{found['n']:5.0f}{cells}"


def _fits(table: MemoryTable) -> list[str]:
    asked = [row for row in table.rows if row.fits is not None]
    if not asked:
        return []
    of_a = sum(row.quality == "A" for row in table.false_alarms)
    said = (
        f"{len(asked)} rows ran: {len(table.false_alarms)} are said not to fit ({of_a} of quality A),"
        f" {len(table.near_misses)} that they may not"
    )
    alarms = [(row, row.verdict) for row in table.false_alarms if row.verdict is not None]
    return [said] + [
        f"  {row.id:46.46} {row.quality:1} needs {said.need.needs_bytes / GIB:6.1f} of"
        f" {said.available_bytes / GIB:6.1f} GiB"
        for row, said in sorted(alarms, key=lambda pair: pair[1].room_bytes / pair[1].available_bytes)
    ]


def _skipped(table: MemoryTable) -> list[str]:
    reasons = Counter(row.skipped_reason for row in table.skipped)
    lines = [f"skipped: {len(table.skipped)} rows"]
    lines += [f"  {count} x {reason}"[:_WIDTH] for reason, count in reasons.most_common(_REASONS_SHOWN)]
    if len(reasons) > _REASONS_SHOWN:
        lines.append(f"  and {len(reasons) - _REASONS_SHOWN} more reasons (--json has all)")
    return lines


def _row(row: MemoryRow) -> list[str]:
    predicted, measured = (row.predicted_bytes or 0) / GIB, (row.measured_bytes or 0) / GIB
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in row.parts_bytes.items() if size > GIB / 20)
    error = 100 * (row.error or 0.0)
    return [
        f"{row.id[-_WIDTH:]}",
        f"  {row.what} {measured:.2f} GiB, predicted {predicted:.2f} ({error:+.1f}%)",
        *(f"  {line}" for line in _wrapped(parts)),
    ]


def _wrapped(text: str) -> list[str]:
    lines: list[str] = []
    for word in text.split(", "):
        if lines and len(lines[-1]) + len(word) + 2 <= _WIDTH - 4:
            lines[-1] += f", {word}"
        elif word:
            lines.append(word)
    return lines
