"""Execute the notebooks beside this file and keep what came out: ``python examples/notebooks/execute.py``."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs; CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":  # how far a search is, told on slow machines
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        nbformat.write(executed(path), path)
