"""What a user's own rules matched, as lines and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from simcore.rules import Matched, Rule

RulesApplied = Sequence[tuple[Rule, tuple[Matched, ...]]]
_WIDTH = 80


def rules_lines(rules: RulesApplied) -> Iterator[str]:
    """For a terminal."""
    for rule, matched in rules:
        yield f"rule: {rule.says}"
        for one in matched:
            yield from textwrap.wrap(str(one), _WIDTH, initial_indent="  ", subsequent_indent="    ")


def rules_object(rules: RulesApplied) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [
        {"says": rule.says, "file": rule.file, "matched": [dataclasses.asdict(one) for one in matched]}
        for rule, matched in rules
    ]
