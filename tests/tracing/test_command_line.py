"""Scripts from the command line: a module as ``python -m`` runs it, and one that fails on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.apps.errors import as_app
from simcore.graph import load_graph
from workloads.tracing.drive import cli

pytest.importorskip("torch")

app = as_app(cli.app)


def test_a_module_is_run_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative imports, the current folder first, and a framework that reads the command line when it is
    imported, which is once for all ranks, in a process of our own.
    """
    package = tmp_path / "accelerate"  # a name that is imported once for all ranks
    package.mkdir()
    (package / "__init__.py").write_text("import sys\n\ndef read(line=sys.argv[1:]):\n    return line\n")
    (package / "sizes.py").write_text("import torch\n\nwidth = 4\n")
    (package / "train.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "graph"
    ran = CliRunner().invoke(
        app, ["-m", "accelerate.train", "--width", "6", "--world-size", "1", "--out", str(target)]
    )
    assert ran.exit_code == 0, ran.output
    graph = load_graph(target)
    assert graph.workload.command.startswith("python scripts/trace_workload.py -m accelerate.train --width 6")
    # batch 2, 4 -> 6, forward and the weight's gradient
    assert sum(graph.ops.flops) == 2 * (2 * 2 * 4 * 6)


MODULE = """
from accelerate import read
from .sizes import torch, width

assert __name__ == "__main__" and __package__ == "accelerate"
_, wide = read()
model = torch.nn.Linear(width, int(wide)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(2, width, device="cuda")).sum().backward()
    optimizer.step()
"""


WIDE = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 5)

    def forward(self, x):
        return self.inner(x) + x  # 5 and 4

print("begun")
Block().cuda()(torch.zeros(2, 4, device="cuda"))
"""


def test_shapes_that_do_not_fit_are_said_once(
    one_pool: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of one rank, the script's own lines first; torch's own words of every rank are not heard."""
    script = tmp_path / "wide.py"
    script.write_text(WIDE)
    ran = CliRunner().invoke(app, [str(script), "--world-size", "8", "--out", str(tmp_path / "graph")])
    assert ran.exit_code == 2 and capfd.readouterr().err == ""
    said = ran.output.splitlines()
    assert [line for line in said if "rank " in line] == [said[0]] and "RuntimeError" in said[0]
    assert said[1:3] == ["  in the script: wide.py:10 in forward", "  called from: wide.py:13 in <module>"]
