"""Pauses of a host in a pipeline's log, when the log is written anew in another order."""

import pytest

from simcore.apps.replay.edits import edit_recording
from simcore.graph.schedules import one_f_one_b
from tests.imports.test_pipeline_log import logged, write
from workloads.imports import import_traces


def test_a_stall_stays_in_the_order_that_it_was_logged_in(tmp_path):
    """One pass of 100 ms for 10 is left out of other orders; a long microbatch is long on every stage."""

    def long_sequence(stage, action):
        return 3 if action.microbatch == 3 else 1

    def stalled(stage, action):
        return 10 if (stage, action.kind, action.microbatch) == (2, "F", 6) else long_sequence(stage, action)

    found = {}
    for name, longer in (("even", lambda *_: 1), ("long", long_sequence), ("stalled", stalled)):
        folder = tmp_path / name
        folder.mkdir()
        job = import_traces(write(folder, logged(one_f_one_b(4, 8), 1, longer), num_mbs=8))
        _, steps = edit_recording(job, ["schedule=gpipe"], None)
        found[name] = (1e3 * steps[0].before_s, 1e3 * steps[0].after_s, " ".join(steps[0].applied.assumed))
    # Every stage has 20 ms more of forwards and 40 ms of backwards.
    assert found["long"][1] >= found["even"][1] + 20 + 40
    assert found["stalled"][0] > found["long"][0] + 40  # the rest stands in bubbles
    assert found["stalled"][1] == pytest.approx(found["long"][1])
    assert "2 pass(es)" in found["stalled"][2] and "the longest 100 for 10 ms" in found["stalled"][2]
    assert "pass(es)" not in found["long"][2]
