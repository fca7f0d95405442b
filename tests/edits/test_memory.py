"""What edited programs hold, against those really traced so; and jobs that no longer fit."""

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.memory import peak_memory
from tests.edits.test_programs import GRAPHS, edited, load


@pytest.mark.parametrize(
    ("start", "edit", "truth", "within"),
    [
        ("base", "pp=4", "pp4", 0.01),
        ("pp4", "pp=2", "base", 0.01),
        ("base", "tp=4", "tp4", 0.01),
        ("base", "batch.micro=2", "mbs2", 0.01),
        ("mbs2", "batch.micro=1", "base", 0.01),
        ("base", "dp=2", "dp2", 0.0),
    ],
)
def test_activations_of_the_first_stage(start, edit, truth, within):
    """The first stage holds most; so small a model's other stages peak in their optimizers."""

    def first(graph):
        return max(found.activations for found in peak_memory(graph) if found.stage == 0)

    assert first(edited(start, edit)) == pytest.approx(first(load(truth)), rel=within)


@pytest.mark.parametrize(("start", "edit", "truth"), [("base", "pp=4", "pp4"), ("pp4", "pp=2", "base")])
def test_activations_of_every_stage(start, edit, truth):
    """Later stages hold fewer microbatches; what one backward needs besides is there all the same.

    Off most, 7%: stages between, which no stage of two is like.
    """
    made, real = (
        {found.stage: found.activations for found in peak_memory(graph)}
        for graph in (edited(start, edit), load(truth))
    )
    assert made == pytest.approx(real, rel=0.08)


def test_what_does_not_fit_says_so():
    # 2.2 MB of activations for one sequence of 64 tokens: 65,536 sequences are 147 GB, on GPUs of 80 GB.
    arguments = ["run-sim", str(GRAPHS / "base"), "--edit", "batch.micro=65536", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 3, result.output
    assert "memory" in result.output
