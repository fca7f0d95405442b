"""Frameworks that a script imports: imported once for all ranks, and acted on right after they are."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from simcore.errors import InputError
from simcore.records import dataclass

#: Packages whose import has no effect on others: they start no thread and read no rank.
_SHARED = frozenset({"accelerate", "deepspeed", "megatron", "peft", "torchtitan", "transformers"})

#: Modules that other imports do not ask for what a program told them, and calls that change nothing.
_OF_LOGS = frozenset({"warnings", "logging", "time"})
_READING = frozenset({"int", "float", "str", "bool", "len", "os.environ.get", "os.getenv"})

#: (module, names taken from it)
Import = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Preparation:
    """What the process of which every rank is a fork does once for all of them.

    ``imports``: frameworks that it imports.  ``argv`` and ``folder``: ``sys.argv`` and the first place of
    ``sys.path`` that they find, which are the script's: what a framework reads of the command line while it
    is imported (defaults of functions, registries of options) stays with every rank.  ``recipe``: the module
    that readies the process for a program known by name ("": none).
    """

    imports: tuple[Import, ...] = ()
    argv: tuple[str, ...] = ()
    folder: str = ""
    recipe: str = ""

    def enter(self) -> None:
        """Be started as the script is, and import."""
        if self.argv:
            sys.argv = list(self.argv)
        if self.folder:
            sys.path.insert(0, self.folder)
        import_all(self.imports)


def module_file(name: str) -> Path:
    """The file that ``python -m name`` runs, looked for here and where Python looks, nothing imported.

    InputError when there is none.
    """
    parts = name.split(".")
    for folder in (str(Path.cwd()), *sys.path):
        place = Path(folder, *parts)
        for file in (place.with_name(f"{parts[-1]}.py"), place / "__main__.py"):
            if file.is_file():
                return file
    raise InputError(f"-m {name}: no such module here, in PYTHONPATH or among the installed packages")


def leading_imports(script: Path) -> tuple[Import, ...]:
    """Imports of frameworks at the top of ``script``, up to the first statement that may be meant to come
    before later imports.  Empty for a file that is not Python.
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
        elif not _concerns_nobody(statement):
            break
    return tuple((module, names) for module, names in found if module.partition(".")[0] in _SHARED)


def _concerns_nobody(statement: ast.stmt) -> bool:
    """Whether what is imported later does the same without it: texts, definitions, names for numbers, clocks
    and the rank, and what is said of warnings and logs.
    """
    if isinstance(statement, ast.FunctionDef):
        defaults = (*statement.args.defaults, *filter(None, statement.args.kw_defaults))
        return not statement.decorator_list and all(map(_calls_no_other, defaults))
    if isinstance(statement, ast.If):
        inside = (*statement.body, *statement.orelse)
        return _calls_no_other(statement.test) and all(map(_concerns_nobody, inside))
    if isinstance(statement, ast.Assign):
        return _calls_no_other(statement.value) and all(map(_is_own, statement.targets))
    return isinstance(statement, ast.Expr) and _calls_no_other(statement.value)


def _is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) or ast.unparse(target).partition(".")[0] in _OF_LOGS


def _calls_no_other(value: ast.expr) -> bool:
    called = [ast.unparse(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)]
    return all(name in _READING or name.partition(".")[0] in _OF_LOGS for name in called)


def import_all(imports: Sequence[Import]) -> None:
    """Import them; one that fails is left to the script, whose error is explained."""
    for module, names in imports:
        with contextlib.suppress(Exception):
            imported = importlib.import_module(module)
            for name in names:
                getattr(imported, name, None)


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``actions[name](module)`` right after module ``name`` has been executed."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = dict(actions)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """The spec that other finders give, its loader wrapped."""
        action = self._actions.pop(fullname, None)  # gone: asking the other finders asks this one again
        if action is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(actions: dict[str, Callable[[ModuleType], None]]) -> None:
    """From now on; on modules that have been imported already, at once."""
    imported = actions.keys() & sys.modules.keys()
    for name in imported:
        actions[name](sys.modules[name])
    sys.meta_path.insert(0, AfterImport({name: actions[name] for name in actions.keys() - imported}))
