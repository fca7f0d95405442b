"""Pipelines of recordings: actions found, written anew; against a player that knows nothing of the engine."""

import pytest

from simcore.apps.replay.edits import edit_recording
from simcore.errors import InputError
from simcore.graph import gpipe, one_f_one_b
from tests.edits.pipelines import record, step_us
from workloads.edits import EditableJob
from workloads.edits.recorded.stages.pipelines import recorded_pipelines
from workloads.imports import import_traces


def after_us(files, *edits):
    _, done = edit_recording(import_traces(files), edits, None)
    return 1e6 * done[-1].after_s


@pytest.mark.parametrize(
    ("before", "layers", "edits", "after", "layers_after"),
    [
        (one_f_one_b(2, 6), 4, ["schedule=1f1b"], one_f_one_b(2, 6), 4),  # as it was
        (one_f_one_b(4, 8), 2, ["schedule=1f1b"], one_f_one_b(4, 8), 2),
        (one_f_one_b(2, 6), 4, ["schedule=gpipe"], gpipe(2, 6), 4),
        (gpipe(3, 5), 3, ["schedule=1f1b"], one_f_one_b(3, 5), 3),
        (one_f_one_b(2, 6), 4, ["pp=4"], one_f_one_b(4, 6), 2),
        (one_f_one_b(4, 8), 2, ["pp=4:2"], one_f_one_b(2, 8), 4),
        (one_f_one_b(3, 7), 4, ["pp=6"], one_f_one_b(6, 7), 2),
        (gpipe(2, 5), 4, ["pp=2:4"], gpipe(4, 5), 2),
        (one_f_one_b(4, 8), 1, ["pp=2"], one_f_one_b(2, 8), 2),  # one layer a stage: nothing repeats inside
        (one_f_one_b(2, 6), 4, ["layers=8:16"], one_f_one_b(2, 6), 8),
        (one_f_one_b(2, 6), 4, ["num_microbatches=9"], one_f_one_b(2, 9), 4),
        (one_f_one_b(2, 6), 4, ["pp=4", "schedule=gpipe", "layers=16"], gpipe(4, 6), 4),
    ],
)
def test_as_it_would_have_been_recorded(tmp_path, before, layers, edits, after, layers_after):
    files = record(tmp_path / "t", before, layers)
    assert after_us(files, *edits) == pytest.approx(step_us(after, layers_after), abs=0.2)


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("autograd", [True, False])
def test_what_tells_actions_and_stages(tmp_path, groups, autograd):
    """Without metadata stages are told by their depth, without autograd backwards by their kernels."""
    files = record(tmp_path / "t", one_f_one_b(3, 6), 3, groups=groups, autograd=autograd, steps=2)
    job = import_traces(files)
    found = recorded_pipelines(EditableJob("recorded", job.graph, job.ranks))
    assert (found.stages, found.schedule, found.num_microbatches) == (((0,), (1,), (2,)), "1f1b", 6)
    assert [step.kinds for step in found.steps[1]] == ["FFBFBFBFBFBB"] * 2
    assert not found.overlapped
    assert {round(ps / 1e6) for ps in found.transfer_ps} == {2}
    assert after_us(files, "schedule=gpipe") == pytest.approx(step_us(gpipe(3, 6), 3), abs=0.2)


def test_exchanges_that_name_their_peers_meet(tmp_path):
    """A stage in the middle sends to both sides in one group: sequences alone do not tell who meets whom."""
    order = one_f_one_b(4, 8)
    silent = import_traces(record(tmp_path / "silent", order, 2))
    files = record(tmp_path / "told", order, 2, peers=True)
    told = import_traces(files)
    exchanges = 2 * 3 * 8  # forwards and backwards of 8 microbatches between 4 stages
    fused = 3 * 6  # of them, a forward's send with a backward's receive: 5 + 6 + 7
    assert (silent.report.coupled_collectives, silent.report.lone_collectives) == (0, 2 * (exchanges - fused))
    assert (told.report.coupled_collectives, told.report.lone_collectives) == (exchanges - fused, 0)
    assert after_us(files, "schedule=gpipe") == pytest.approx(step_us(gpipe(4, 8), 2), abs=0.2)


def test_schedules_that_overlap_or_split(tmp_path):
    """Interleaved and zero-bubble: no closed oracle here, but less idle time and not less than the work."""
    files = record(tmp_path / "t", one_f_one_b(4, 8), 2)
    plain = step_us(one_f_one_b(4, 8), 2)
    work = 8 * (2 * 24 + 6 + 7) + 20  # the last stage's forwards and backwards, and an optimizer
    for edit in ("schedule=interleaved:2", "schedule=zero_bubble"):
        assert work < after_us(files, edit) < plain


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("pp=3:6", "has 2 stages, not 3: pp=2:6"),
        ("pp=1", "pp must be at least 2"),
        ("pp=3", "8 layers do not fall evenly on 3 model chunks; nearest: 2 stages"),
        ("schedule=interleaved:3", "4 layers of a stage do not fall evenly on 3 model chunks; nearest: 2"),
        ("schedule=interleaved:4", "7 microbatches are no multiple of 2 stages"),
        ("schedule=2f2b", "did you mean"),
        ("layers=6:12", "8 layers are seen (4, 4 on the stages), not 6: layers=8:12"),
        ("layers=9", "nearest: 8 layers"),
        ("num_microbatches=4:8", "has 7 microbatches, not 4: num_microbatches=7:8"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, edit, reason):
    files = record(tmp_path / "t", one_f_one_b(2, 7), 4)
    with pytest.raises(InputError) as error:
        after_us(files, edit)
    assert reason in str(error.value)


def test_stages_that_were_not_recorded_are_named(tmp_path):
    files = record(tmp_path / "t", one_f_one_b(4, 8), 2)
    with pytest.raises(InputError, match="stages are ranks 0 1 2 3; not recorded: 2"):
        after_us([*files[:2], files[3]], "pp=2")


def test_without_sends_there_is_no_pipeline(tmp_path):
    files = record(tmp_path / "t", [[*one_f_one_b(1, 8)[0]]], 4)
    with pytest.raises(InputError, match="no sends or receives between stages are recorded"):
        after_us(files, "schedule=gpipe")


def test_stages_that_nothing_tells(tmp_path):
    files = record(tmp_path / "t", gpipe(3, 5), 3, groups=False)
    with pytest.raises(InputError, match="which rank is which stage is not recorded"):
        after_us(files, "schedule=1f1b")


def test_overlapped_exchanges_come_last(tmp_path):
    files = record(tmp_path / "t", one_f_one_b(2, 8), 4)
    with pytest.raises(InputError, match="beside their computation: give that edit"):
        after_us(files, "schedule=interleaved:2", "pp=4")
    assert after_us(files, "pp=4", "schedule=interleaved:2") < step_us(one_f_one_b(4, 8), 2)
