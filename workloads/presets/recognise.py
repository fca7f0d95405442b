"""Which preset a published run belongs to, from what its source says about it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from simcore.errors import InputError, nearest
from workloads.presets.preset import preset_names


@dataclass(frozen=True)
class _Rule:
    preset: str
    patterns: tuple[tuple[str, re.Pattern[str]], ...]  # (columns joined by "+", pattern)

    def holds(self, columns: Mapping[str, str]) -> bool:
        return all(
            pattern.search(" | ".join(columns.get(name, "") for name in names.split("+")))
            for names, pattern in self.patterns
        )


def recognise(columns: Mapping[str, str]) -> str:
    """Name of the preset: the first rule of ``recognise.toml`` whose patterns all match.

    ``columns``: text by column name (family, source_repo_or_paper, model, zero_fsdp, notes, ...).  The last
    rule has no pattern, so there always is one.
    """
    return next(rule.preset for rule in _rules() if rule.holds(columns))


@cache
def _rules() -> tuple[_Rule, ...]:
    text = (resources.files("workloads.presets") / "rules" / "recognise.toml").read_text(encoding="utf-8")
    known = preset_names()
    rules = []
    for entry in tomllib.loads(text)["rule"]:
        name = entry.pop("preset")
        if name not in known:
            raise InputError(f"recognise.toml: no preset {name!r}{nearest(name, known)}")
        patterns = tuple((columns, re.compile(pattern, re.IGNORECASE)) for columns, pattern in entry.items())
        rules.append(_Rule(name, patterns))
    return tuple(rules)
