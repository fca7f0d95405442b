"""What the commands say about a Perfetto file, and what they put into it."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import simcore.apps.run.beside
import simcore.report
from simcore.graph import one_f_one_b, save_graph
from tests.pipelines import pipeline_graph
from tests.ring import write_ring_run


def test_host_lanes_are_in_the_perfetto_file_when_asked_for(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    write_ring_run(tmp_path / "ring")
    for options, lanes in (((), 0), (("--host",), 1)):
        result = run("report", tmp_path / "ring", "--perfetto", "p.json.gz", "--ranks", "0", *options)
        assert result.exit_code == 0, result.output
        assert gzip.decompress(Path("p.json.gz").read_bytes()).count(b'"name":"host"') == lanes


def test_what_perfetto_does_not_show_is_said(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = functools.partial(simcore.report.write_perfetto, max_counter_rows=1)
    monkeypatch.setattr(simcore.apps.run.beside, "write_perfetto", few)
    told = "too much for Perfetto, see counters.parquet: counters of NVLink and NIC ("
    graph = pipeline_graph(one_f_one_b(2, 3), forward=10**9, backward=10**9, num_bytes=1 << 20, name="tiny")
    save_graph(graph, tmp_path / "tiny")
    assert told in run("run-sim", tmp_path / "tiny", "--out", "done").stdout
    assert told not in run("report", "done", "--perfetto", "p.json.gz").stdout
    monkeypatch.setattr(simcore.report, "write_perfetto", few)
    assert told in run("report", "done", "--perfetto", "p.json.gz").stdout
