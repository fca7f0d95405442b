"""Act on a framework once it has been imported, without importing it where no script does."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType


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
