"""Ranks that a script's own code names: ``if rank == 3`` does on one rank what its neighbours do not show."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from workloads.tracing.sites import owner

#: Characters of code that are read at most, and ranks that are run for what it names.
_MOST_CODE, _MOST_RANKS = 1 << 20, 8


def named_ranks(script: Path, world_size: int, arguments: Sequence[str] = ()) -> tuple[int, ...]:
    """Ranks of ``world_size`` that code of ``script``, and of modules in its folder that are loaded, compares
    a rank with, as a number or by the name of one of its ``arguments``; the lowest come first.
    """
    found: set[int] = set()
    given = _options(arguments)
    left = _MOST_CODE
    for path in _own_files(script):
        try:
            code = path.read_text(encoding="utf-8")
            left -= len(code)
            if left < 0:
                break
            found |= set(_compared(ast.parse(code), given)) if "rank" in code.lower() else set()
        except (OSError, SyntaxError, ValueError):
            continue
    return tuple(rank for rank in sorted(found) if 0 < rank < world_size - 1)[:_MOST_RANKS]


def _own_files(script: Path) -> Iterator[Path]:
    yield script
    folders = tuple(f"{one.parent}{os.sep}" for one in (script.resolve(), script.absolute()))
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for name in sorted(one for one in loaded if isinstance(one, str) and one.endswith(".py")):
        path = Path(name)
        if str(path.absolute()).startswith(folders) and owner(name) == "script" and path != script:
            yield path


def _options(arguments: Sequence[str]) -> dict[str, int]:
    """Numbers that are given by name, ``--profile-rank 3`` or ``profiler.rank=3``, as code names them."""
    found = {}
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.partition("=")
        if equals or name.startswith("-"):
            value = value if equals else following
            if value.isdecimal():
                found[name.lstrip("-").rpartition(".")[2].replace("-", "_")] = int(value[:9])
    return found


def _defaults(tree: ast.Module) -> dict[str, int]:
    """Numbers that options have which are not given (``add_argument``, ``click.option``)."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            flags = [one.value for one in node.args if isinstance(one, ast.Constant)]
            value = next((one.value for one in node.keywords if one.arg == "default"), None)
            number = value.value if isinstance(value, ast.Constant) else None
            for flag in flags:
                if isinstance(flag, str) and flag.startswith("-") and type(number) is int and number >= 0:
                    found[flag.lstrip("-").replace("-", "_")] = number
    return found


def _compared(tree: ast.Module, given: dict[str, int]) -> Iterator[int]:
    options = {**_defaults(tree), **given}
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target, value in _assigned(node)
        if isinstance(target, ast.Name) and _says_rank(value, ())
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(_says_rank(side, names) for side in sides):
                for side in sides:
                    yield from _numbers(side)
                    if isinstance(node.ops[0], ast.Eq | ast.NotEq):
                        yield from _named(side, options)


def _assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned what, each of several at once by itself (``r, w = get_rank(), get_world_size()``)."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


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


def _named(side: ast.expr, options: dict[str, int]) -> Iterator[int]:
    """What the option is given that ``side`` reads (``args.profile_rank``, ``config["profile_rank"]``)."""
    if isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Constant):
        name = str(side.slice.value)
    else:
        name = getattr(side, "attr", getattr(side, "id", ""))
    if name in options:
        yield options[name]


def _numbers(side: ast.expr) -> Iterator[int]:
    """Whole numbers that are written there, alone, as texts or in a list."""
    for one in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else (side,):
        if isinstance(one, ast.Constant) and str(one.value).isdecimal():
            yield int(str(one.value)[:9])
