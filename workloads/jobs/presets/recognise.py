"""Which preset a published run belongs to, from what its source says about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from simcore.records import dataclass
from simcore.tables import TEXT, Each, Rows, Text, load
from workloads.jobs.presets.preset import preset_names


@dataclass(frozen=True)
class _Rule:
    preset: str
    assumed: str
    patterns: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]  # columns, and what they must match

    def holds(self, columns: Mapping[str, str]) -> bool:
        return all(
            pattern.search(" | ".join(columns.get(name, "") for name in names))
            for names, pattern in self.patterns
        )


def recognise(columns: Mapping[str, str]) -> str:
    """Name of the preset: the first rule of ``recognise.toml`` whose patterns all match.

    ``columns``: text by column name (family, source_repo_or_paper, model, zero_fsdp, notes, ...).  The last
    rule has no pattern, so there always is one.
    """
    return _first(columns).preset


def assumption(columns: Mapping[str, str]) -> str:
    """Why :func:`recognise` chose its preset where the run does not name its software; "" where it does."""
    return _first(columns).assumed


def _first(columns: Mapping[str, str]) -> _Rule:
    return next(rule for rule in _rules() if rule.holds(columns))


@cache
def _rules() -> tuple[_Rule, ...]:
    schema = {"rule": Rows(Each(TEXT, must={"preset": Text(preset_names())}))}
    rules = []
    for entry in load(schema, "workloads.jobs.presets", "rules/recognise.toml")["rule"]:
        name, assumed = entry.pop("preset"), entry.pop("assumed", "")
        patterns = tuple(
            (tuple(columns.split("+")), re.compile(pattern, re.IGNORECASE))
            for columns, pattern in entry.items()
        )
        rules.append(_Rule(name, assumed, patterns))
    return tuple(rules)
