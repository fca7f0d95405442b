"""Ranks that a script's own code names: ``if rank == 3`` does on one rank what its neighbours do not show."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from workloads.tracing.sites import owner

#: Characters of code that are read at most, and ranks that are run for what it names.
_MOST_CODE, _MOST_RANKS = 1 << 20, 8


def named_ranks(script: Path, world_size: int) -> tuple[int, ...]:
    """Ranks of ``world_size`` that code of ``script``, and of modules in its folder that are loaded, compares
    a rank with; the lowest come first.
    """
    found: set[int] = set()
    left = _MOST_CODE
    for path in _own_files(script):
        try:
            code = path.read_text(encoding="utf-8")
            left -= len(code)
            if left < 0:
                break
            found |= set(_compared(ast.parse(code))) if "rank" in code.lower() else set()
        except (OSError, SyntaxError, ValueError):
            continue
    return tuple(rank for rank in sorted(found) if 0 < rank < world_size - 1)[:_MOST_RANKS]


def _own_files(script: Path) -> Iterator[Path]:
    yield script
    folder = script.resolve().parent
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for name in sorted(one for one in loaded if isinstance(one, str) and one.endswith(".py")):
        path = Path(name)
        if owner(name) == "script" and path != script and folder in path.resolve().parents:
            yield path


def _compared(tree: ast.Module) -> Iterator[int]:
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _says_rank(node.value, ())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(_says_rank(side, names) for side in sides):
                for side in sides:
                    yield from _numbers(side)


def _says_rank(node: ast.expr, names: Iterable[str]) -> bool:
    """Whether an expression reads what is called a rank, or one of ``names``."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            text = one.value
        elif isinstance(one, ast.Attribute):
            text = one.attr
        else:
            text = one.id if isinstance(one, ast.Name) else ""
        if "rank" in text.lower() or text in names:
            return True
    return False


def _numbers(side: ast.expr) -> Iterator[int]:
    """Whole numbers that are written there, alone, as texts or in a list."""
    for one in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else (side,):
        if isinstance(one, ast.Constant) and str(one.value).isdecimal():
            yield int(str(one.value)[:9])
