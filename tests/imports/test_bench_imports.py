"""The import benchmark: every file that it writes is read, and counts what was written."""

import json

import pytest
from typer.testing import CliRunner

from simcore.apps.bench.command import app
from simcore.apps.bench.imports import FORMATS
from workloads.imports import import_traces


@pytest.mark.parametrize(
    ("name", "gpu_ops"), [("kineto", 30), ("nsys", 60), ("execution-trace", 120), ("chakra", 120)]
)
def test_files_hold_what_is_measured(tmp_path, name, gpu_ops):
    file, write = FORMATS[name]
    assert write(tmp_path / file, 120) == 120
    job = import_traces([tmp_path / file])
    (rank,) = job.report.ranks
    # Every twelfth kernel is a collective; an execution trace has products alone.
    assert (rank.gpu_ops, rank.communication_kernels) == (
        gpu_ops,
        0 if name == "execution-trace" else gpu_ops // 12,
    )


def test_the_command_measures_a_process_of_its_own():
    result = CliRunner().invoke(app, ["imports", "nsys", "--events", "1000", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["format"], row["events"], row["gpu_ops"]) == ("nsys", 1000, 500)
    assert row["cpu_s"] > 0 and 1 << 20 < row["peak_rss_bytes"] < 2 << 30


def test_an_unknown_format_is_refused():
    result = CliRunner().invoke(app, ["imports", "nsis"])
    assert result.exit_code == 2 and "did you mean 'nsys'?" in result.output
