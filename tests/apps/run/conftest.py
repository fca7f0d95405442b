"""Fixtures of this area."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from simcore.apps.main import app
from simcore.graph import one_f_one_b, save_graph
from tests.pipelines import pipeline_graph
from tests.synthetic import two_stage_run

__all__ = ["graph_dir", "run", "two_stage_run"]

MS = 10**9


@pytest.fixture
def graph_dir(tmp_path: Path) -> Path:
    """1F1B on 2 stages, 3 microbatches, forward 1 ms, backward 2 ms."""
    graph = pipeline_graph(one_f_one_b(2, 3), forward=MS, backward=2 * MS, num_bytes=1024, name="tiny")
    save_graph(graph, tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call ``simcore`` in an empty working folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])
