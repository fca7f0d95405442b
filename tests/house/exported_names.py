"""The public surface: every package's ``__all__``, as text.  Run this file to bless a change."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("exported_names.txt")


def packages() -> list[str]:
    """Dotted names of all packages of the product, sorted."""
    folders = [f.parent for top in ("simcore", "workloads") for f in (ROOT / top).rglob("__init__.py")]
    return sorted(".".join(folder.relative_to(ROOT).parts) for folder in folders)


def declared(package: str) -> list[str]:
    """``__all__`` as written in the package, without importing it (it may need torch); [] if none."""
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            assert isinstance(node, ast.Assign)
            return list(ast.literal_eval(node.value))
    return []


def render() -> str:
    """One block per package that exports something, names sorted."""
    blocks = [
        "\n".join([package, *(f"    {name}" for name in sorted(declared(package)))]) for package in packages()
    ]
    return "\n\n".join(block for block in blocks if "\n" in block) + "\n"


def missing(package: str) -> list[str]:
    """Exported names that the package does not have once imported."""
    module = importlib.import_module(package)
    return [name for name in declared(package) if not hasattr(module, name)]


if __name__ == "__main__":
    GOLDEN.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"wrote {GOLDEN.relative_to(ROOT)}\n")
