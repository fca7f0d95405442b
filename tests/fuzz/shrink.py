"""What fails made small: files, lines, values and bytes taken away while it fails as before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.cases import Case

BUDGET_S = 30.0
_SMALL_BYTES = 1 << 16


def shrunk(case: Case, fails: Callable[[Case], bool], budget_s: float = BUDGET_S) -> Case:
    """The smallest case found in ``budget_s`` seconds that ``fails`` still."""
    until = time.monotonic() + budget_s
    again = True
    while again and time.monotonic() < until:
        again = False
        for candidate in _smaller(case):
            if time.monotonic() > until:
                break
            if fails(candidate):
                case, again = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with something taken away, much of it first."""
    for name in case.files:
        yield replace(case, files={other: data for other, data in case.files.items() if other != name})
    for at in range(len(case.words)):
        if len(case.words) > 1:
            yield replace(case, words=case.words[:at] + case.words[at + 1 :])
    for name, data in case.files.items():
        if len(data) <= _SMALL_BYTES:
            for less in _less(data):
                yield replace(case, files={**case.files, name: less})


def _less(data: bytes) -> Iterator[bytes]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict | list):
        for smaller in _without(value):
            yield json.dumps(smaller).encode()
        return
    parts = data.split(b"\n") if data.count(b"\n") > 2 else [data[i : i + 1] for i in range(len(data))]
    joint = b"\n" if data.count(b"\n") > 2 else b""
    size = len(parts) // 2
    while size:
        for start in range(0, len(parts), size):
            yield joint.join(parts[:start] + parts[start + size :])
        size //= 2


def _without(value: Any) -> Iterator[Any]:
    """The value without one of what it holds, at any depth, the largest first."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    if isinstance(value, list) and len(value) > 3:
        half = len(value) // 2
        yield value[:half]
        yield value[half:]
    for key in keys:
        yield (
            {k: v for k, v in value.items() if k != key}
            if isinstance(value, dict)
            else value[:key] + value[key + 1 :]
        )
    for key in keys:
        inner = value[key]
        if isinstance(inner, dict | list):
            for less in _without(inner):
                yield (
                    {**value, key: less}
                    if isinstance(value, dict)
                    else [*value[:key], less, *value[key + 1 :]]
                )
