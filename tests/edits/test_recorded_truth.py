"""Recordings edited, against what would have been recorded: simulated programs as profiler traces."""

import pytest
from typer.testing import CliRunner

from simcore.cli.edits import edit_recording
from simcore.cli.main import app
from simcore.report import write_kineto
from simcore.timeline import Timeline
from tests.edits.test_programs import GRAPHS
from workloads.imports import import_traces


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Simulates a small GPT, maybe edited: its step time, and its ranks as a profiler would record them."""
    known = {}

    def simulated(name, *edits):
        if (name, edits) not in known:
            folder = tmp_path_factory.mktemp("run")
            arguments = ["run-sim", str(GRAPHS / name), "--cluster", "h800-96", "--out", str(folder / "run")]
            done = CliRunner().invoke(app, [*arguments, *(part for e in edits for part in ("--edit", e))])
            assert done.exit_code == 0, done.output
            known[name, edits] = Timeline.open(folder / "run"), folder
        return known[name, edits]

    return simulated


def recording(timeline, folder):
    if not (folder / "traces").exists():
        (folder / "traces").mkdir()
        write_kineto(timeline, folder / "traces" / "t.json.gz", range(timeline.info.workload.world_size))
    return import_traces([folder / "traces"])


@pytest.mark.parametrize(
    ("edit", "truth"),
    [
        ("layers=8:16", "layers=16"),
        ("layers=8:4", "layers=4"),
        ("num_microbatches=8:16", "num_microbatches=16"),
    ],
)
def test_layers_and_microbatches_of_a_pipeline(run, edit, truth):
    """Four ranks, tp2 pp2, told by kernel names alone; programs edited so equal traced ones within 0.02%."""
    _, (done,) = edit_recording(recording(*run("base")), [edit], None)
    timeline, _ = run("base", truth)
    assert done.after_s == pytest.approx(timeline.info.step_ps / 1e12, rel=2e-3)
    assert abs(done.after_s / done.before_s - 1) > 0.3
