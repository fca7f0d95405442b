"""What ``examples`` shows runs, and the notebooks hold what came out."""

import json
import re
import runpy
from pathlib import Path

import pytest

import simcore

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(script, tmp_path, monkeypatch, capsys, request):
    if script.stem == "trace":
        request.getfixturevalue("one_pool")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert list(tmp_path.iterdir()) == []


def _shown(page, pattern):
    """The seconds that a page shows where ``pattern`` matches."""
    found = re.search(pattern, (ROOT / page).read_text(encoding="utf-8"))
    assert found, pattern
    return float(found[1])


def test_the_first_pages_show_todays_figures():
    # Within half a percent: what moves an answer further moves these pages, too, and README's pictures
    # (tests/report/pictures.py).
    goldens = json.loads((ROOT / "tests/goldens/catalog.json").read_text(encoding="utf-8"))
    golden = goldens["gpt-175b-pp12-tp8-dp1"]["step_time_s"]
    assert _shown("README.md", r"step time +([\d.]+) s") == pytest.approx(golden, rel=5e-3)
    default = simcore.simulate(simcore.describe("llama3-8b", cluster="h100-64"))
    shown = _shown("docs/getting-started.md", r"says ([\d.]+) s a step")
    assert shown == pytest.approx(default.step_time_s, rel=5e-3)
    large = simcore.describe("llama3-70b", cluster="h100-1024", parallel={"tp": 8, "pp": 4})
    shown = _shown("docs/getting-started.md", r"\n([\d.]+) s and [\d.]+ s; the bands")
    assert shown == pytest.approx(simcore.simulate(large).step_time_s, rel=5e-3)
    found = simcore.diagnose(ROOT / "examples/megatron/train.log", checks=False)
    numbers = [found.measured_s, found.expected_s, found.band.low_s, found.band.high_s]
    for page in ("docs/getting-started.md", "docs/diagnose.md"):
        said = r"\n    step ([\d.]+) s \(.*\n    expected ([\d.]+) s, 80% band ([\d.]+) s to ([\d.]+) s"
        shown = re.search(said, (ROOT / page).read_text(encoding="utf-8"))
        assert shown is not None
        assert [float(one) for one in shown.groups()] == pytest.approx(numbers, rel=5e-3)


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
    client.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert [len([one for one in cell.outputs if one.get("name") != "stderr"]) for cell in cells] == shown
