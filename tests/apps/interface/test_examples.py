"""What ``examples`` shows runs, and the notebooks hold what came out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simcore

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(script, tmp_path):
    if script.stem == "trace":
        pytest.importorskip("torch")
    found = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()
    assert list(tmp_path.iterdir()) == []


def test_pages_of_the_interface_are_written(tmp_path, recwarn):
    pdoc = pytest.importorskip("pdoc")
    pdoc.render.configure(docformat="restructuredtext")
    documented = ["simcore.apps.interface", "simcore.rules", "simcore.errors"]  # as `make docs` has it
    assert " ".join(documented) in (ROOT / "Makefile").read_text(encoding="utf-8")
    pdoc.pdoc(*documented, output_directory=tmp_path)
    assert [str(one.message) for one in recwarn if "pdoc" in str(one.filename)] == []
    page = (tmp_path / "simcore/apps/interface.html").read_text(encoding="utf-8")
    for name in simcore.__all__:
        assert f'id="{name}"' in page
    for path in tmp_path.rglob("*.html"):
        assert _dead_links(path) == []


def _dead_links(path):
    """Links of a page to files or names that are not there."""
    ids = {}
    dead = []
    for link in re.findall(r'href="([^"$]+)"', path.read_text(encoding="utf-8")):
        file, _, name = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if "://" in link or not target.name.endswith(".html"):
            continue
        if target not in ids:
            ids[target] = target.is_file() and set(
                re.findall(r'id="([^"]+)"', target.read_text(encoding="utf-8"))
            )
        if ids[target] is False or (name and name not in ids[target]):
            dead.append(link)
    return dead


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_holds_what_came_out(path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [len(cell.outputs) for cell in cells]
    assert all(shown)
    client.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert [len([one for one in cell.outputs if one.get("name") != "stderr"]) for cell in cells] == shown
