"""Frameworks that a script imports, found without running it, to be imported once for all ranks."""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Sequence
from pathlib import Path

#: Packages whose import has no effect on others: they start no thread and read no rank.
_SHARED = frozenset({"accelerate", "deepspeed", "megatron", "peft", "torchtitan", "transformers"})

#: (module, names taken from it)
Import = tuple[str, tuple[str, ...]]


def leading_imports(script: Path) -> tuple[Import, ...]:
    """Imports of frameworks at the top of ``script``, up to the first statement that does something else
    (which may be meant to come before later imports).  Empty for a file that is not Python.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError):
        return ()
    found: list[Import] = []
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            found += [(alias.name, ()) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found.append((statement.module, tuple(alias.name for alias in statement.names)))
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            break
    return tuple((module, names) for module, names in found if module.partition(".")[0] in _SHARED)


def import_all(imports: Sequence[Import]) -> None:
    """Import them; one that fails is left to the script, whose error is explained."""
    for module, names in imports:
        with contextlib.suppress(Exception):
            imported = importlib.import_module(module)
            for name in names:
                getattr(imported, name, None)
