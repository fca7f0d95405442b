"""Steps that the profiler did not mark: ranges called like a step, ends of optimizers."""

import pytest

from simcore.apps.replay.play import play
from tests.imports.traces import framework_call, kernel, launched, step, write
from workloads.imports import import_traces


def noted(name, ts, end):
    return framework_call(name, ts, end - ts) | {"cat": "user_annotation"}


def steps_of_three(*, backward="autograd::engine::evaluate_function: MmBackward0", optimizers=1, name=None):
    """Three steps of 100 us: a forward's kernel of 20 us, a backward's of 40, an optimizer's of 10."""
    events = []
    for number in range(3):
        at = 100.0 * number
        if name is not None:
            events.append(noted(name.format(number + 5), at, at + 95))
        events += launched("forward", at + 1, at + 10, 20, corr=10 * number + 1)
        events += launched("backward", at + 12, at + 30, 40, corr=10 * number + 2)
        if backward:
            events.append(framework_call(backward, at + 11, 5, tid=2))
        for which in range(optimizers):
            begin = at + 20 + 10 * which
            events.append(noted(f"Optimizer.step#Adam{which}.step", begin, begin + 5))
            length = 10 / optimizers
            kernel_at = at + 70 + length * which
            events += launched("adam", begin + 1, kernel_at, length, corr=10 * number + 3 + which)
    return events


def steps(tmp_path, events):
    job = import_traces([write(tmp_path / "t.json", events)])
    rows = play(job).steps()
    return [(row.step, round(1e6 * row.recorded.span, 3)) for row in rows], job.report


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("train_step", (0, 1, 2)),
        ("## iteration {} ##", (5, 6, 7)),
        ("Step: {}", (5, 6, 7)),
        ("[pl][profile]run_training_batch", (0, 1, 2)),
        ("Trainer.training_step", (0, 1, 2)),
    ],
)
def test_ranges_called_like_a_step(tmp_path, name, numbers):
    found, report = steps(tmp_path, steps_of_three(name=name, optimizers=0))
    # Each from 10 us (forward) to 70 us (backward).
    assert found == [(number, 60.0) for number in numbers]
    assert "no ProfilerStep annotations: steps are ranges called" in report.inferred[0]
    assert "100% of the ops" in report.inferred[0]
    assert not any("the whole trace is one step" in doubt for doubt in report.doubts())


@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_step_ends_with_its_optimizers(tmp_path, optimizers):
    found, report = steps(tmp_path, steps_of_three(optimizers=optimizers))
    # From the forward at 10 us to the end of the optimizers at 80 us.
    assert found == [(0, 70.0), (1, 70.0), (2, 70.0)]
    assert "steps are ends of Optimizer.step" in report.inferred[0]


def test_what_follows_the_last_optimizer(tmp_path):
    events = steps_of_three()
    logged = launched("log", 281, 290, 5, corr=90)
    # Without a backward it belongs to the last step: 210 to 295 us.
    assert steps(tmp_path, [*events, *logged])[0][-1] == (2, 85.0)
    # With one it is a step that was cut off.
    cut = framework_call("autograd::engine::evaluate_function: MmBackward0", 280, 5, tid=2)
    assert steps(tmp_path, [*events, *logged, cut])[0] == [(0, 70.0), (1, 70.0), (2, 70.0)]


@pytest.mark.parametrize(
    "events",
    [
        steps_of_three(optimizers=0),  # nothing tells
        steps_of_three(backward=None, optimizers=1),  # optimizers, but nothing between them
        steps_of_three(name="microbatch {}", optimizers=0),
        [*steps_of_three(optimizers=0), noted("train_step", 0, 95)],  # does not repeat
        [*steps_of_three(optimizers=0), noted("step 1", 0, 5), noted("step 2", 5, 9)],  # holds one op of six
    ],
)
def test_without_evidence_the_trace_is_one_step(tmp_path, events):
    found, report = steps(tmp_path, events)
    assert [number for number, _ in found] == [-1]
    assert not report.inferred
    assert any("the whole trace is one step" in doubt for doubt in report.doubts())


def test_ops_of_no_step_are_told(tmp_path):
    def report(events):
        return import_traces([write(tmp_path / "t.json", events)]).report

    marked = [step(4, 0, 50), step(5, 100, 50)]
    inside = launched("a", 1, 10, 30, corr=1) + launched("b", 101, 110, 30, corr=2)
    assert report([*marked, *inside]).ranks[0].outside_steps == 0
    told = report([*marked, *inside, *launched("c", 160, 170, 20, corr=3)])
    assert told.ranks[0].outside_steps == pytest.approx(0.25)
    assert "rank 0: 25% of the time of GPU ops lies in no step" in told.doubts()
    # Kernels alone, whose GPU lags behind its host: the second starts after its step has ended.
    late = [kernel("a", 10, 30), kernel("b", 160, 30)]
    said = "rank 0: 50% of the time of GPU ops lies in no step: without launches a step has what starts in it"
    assert said in report([*marked, *late]).doubts()
    assert report(inside).ranks[0].outside_steps == 0  # without steps all of it is one
