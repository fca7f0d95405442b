"""Examples of docs/extend.md as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[1] / "docs" / "extend"


def example(name: str) -> ModuleType:
    """The example ``docs/extend/<name>.py``, freshly executed."""
    spec = importlib.util.spec_from_file_location(f"extend_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
