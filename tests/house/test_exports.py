"""The public surface is what the golden says, and every name of it exists."""

import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "exported_names", Path(__file__).with_name("exported_names.py")
)
assert _spec is not None
exported_names = importlib.util.module_from_spec(_spec)
sys.modules["exported_names"] = exported_names
_spec.loader.exec_module(exported_names)


def test_exported_names_are_those_of_the_golden():
    # A wanted change is blessed with: .venv/bin/python tests/house/exported_names.py
    assert exported_names.render().splitlines() == exported_names.GOLDEN.read_text().splitlines()


@pytest.mark.parametrize("package", exported_names.packages())
def test_every_exported_name_exists(package):
    assert exported_names.missing(package) == []


@pytest.mark.parametrize("package", [p for p in exported_names.packages() if p.count(".") == 1])
def test_every_package_says_what_it_exports_once(package):
    names = exported_names.declared(package)
    assert len(names) == len(set(names))
