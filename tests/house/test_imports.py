"""Who imports what: heavy libraries in one place each, and none of them to start the simulator."""

import ast
import configparser
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST

ROOT = Path(__file__).parents[2]
PRODUCT = ("simcore", "workloads", "hardware_profiles", "scripts")

#: Import name -> distribution, where they differ.
DISTRIBUTION = {
    "fbgemm_gpu": "fbgemm-gpu-cpu",
    "google": "protobuf",
    "megatron": "megatron-core",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def python_files(*tops):
    return [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


@functools.cache
def imports(path):
    """Top-level names of everything that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def importers(library):
    return [p.relative_to(ROOT).as_posix() for p in python_files(*PRODUCT) if library in imports(p)]


@pytest.mark.parametrize("library", ["torch", "megatron"])
def test_only_tracing_and_profiling_import_the_framework(library):
    wanted = ("workloads/tracing/", "workloads/profiling/")
    assert all(path.startswith(wanted) for path in importers(library))


@pytest.mark.parametrize("library", ["matplotlib", "plotly", "ray", "perfetto"])
def test_at_most_one_module_imports_a_heavy_library(library):
    assert len(importers(library)) <= 1, importers(library)


def test_the_scan_sees_what_it_looks_for():
    assert "simcore/timeline/schema.py" in importers("pyarrow")
    assert importers("torch")


def test_every_third_party_import_is_declared_and_pinned():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    declared = set(re.findall(r"^[\w-]+", config["options"]["install_requires"], re.M))
    for packages in config["options.extras_require"].values():
        declared |= set(packages.split())
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text().lower(), re.M)
    own = {"simcore", "workloads", "hardware_profiles", "tests"}  # scripts that test import tests
    used = {name for path in python_files(*PRODUCT) for name in imports(path)}
    third_party = {
        DISTRIBUTION.get(name, name) for name in used - sys.stdlib_module_names - own - {"__future__"}
    }
    # megatron-core is installed with --no-deps by the Makefile (see setup.cfg); so is torchrec, which asks
    # for FBGEMM's build for GPUs (docs/recommendation.md).
    assert third_party - declared <= {"megatron-core", "torchrec", "fbgemm-gpu-cpu"}
    assert declared | third_party <= set(pinned)


def test_the_simulator_starts_without_torch_or_plots():
    # A fresh interpreter in which importing torch, megatron or matplotlib is an error.
    program = """
import sys
for name in ("torch", "megatron", "matplotlib", "ray"):
    sys.modules[name] = None
import importlib, pkgutil, simcore
for module in pkgutil.walk_packages(simcore.__path__, "simcore."):
    if "plot" not in module.name and not module.name.endswith(".on_ray"):
        importlib.import_module(module.name)
from simcore.hardware import Topology, load_cluster
print(Topology(load_cluster()).num_gpus)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "96\n"


def test_files_are_short():
    long = {
        path.relative_to(ROOT).as_posix(): length
        for path in python_files(*PRODUCT, "tests")
        if (length := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}


def test_files_that_begin_first_exist():
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []


def test_every_folder_with_code_is_a_package():
    folders = {path.parent for path in python_files("simcore", "workloads", "hardware_profiles")}
    assert [f for f in sorted(folders) if not (f / "__init__.py").exists()] == []
