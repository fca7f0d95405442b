"""Rows that contradict their neighbours: flagged, never dropped."""

from __future__ import annotations

import re
from functools import cache

from simcore.tables import TEXT, Each, Rows, load
from workloads.jobs.published.row import RunRow


def oddity(row: RunRow) -> str:
    """Why a row stands apart; "" for most.  The rules are data: ``odd.toml``."""
    for rule in _rules():
        patterns = {key: pattern for key, pattern in rule.items() if key != "reason"}
        if all(re.search(pattern, _value(row, key), re.IGNORECASE) for key, pattern in patterns.items()):
            return rule["reason"]
    return ""


def _value(row: RunRow, key: str) -> str:
    if key == "head_size":
        hidden, heads = row.number("hidden", 0), row.number("heads", 0)
        return "misaligned" if heads and hidden % (8 * heads) else "aligned"
    return " ".join(row.text(name) for name in key.split("+"))


@cache
def _rules() -> tuple[dict[str, str], ...]:
    schema = {"odd": Rows(Each(TEXT, must={"reason": TEXT}))}
    rules: tuple[dict[str, str], ...] = load(schema, "workloads.jobs.published", "odd.toml")["odd"]
    return rules
