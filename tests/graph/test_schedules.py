"""Pipeline schedules are what their papers say, and impossible ones are refused with the place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.graph import (
    Action,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    validate_schedule,
    verify,
)
from simcore.graph.schedules import (
    bubble_fraction,
    dual_pipe,
    dual_pipe_v,
    end_times,
    grid,
    home,
    needs,
    neighbour,
    overlapped_pairs,
    virtual_stage,
    zero_bubble,
)
from tests.pipelines import pipeline_graph


def text(actions):
    return " ".join(map(str, actions))


def test_one_f_one_b_warms_up_by_stage():
    # Stage s of p warms up with p - s - 1 forwards (arXiv 2006.09503, figure 4).
    schedule = one_f_one_b(3, 4)
    assert text(schedule[0]) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(schedule[1]) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert text(schedule[2]) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_gpipe_runs_all_forwards_first():
    assert [text(actions) for actions in gpipe(2, 2)] == ["F0 F1 B0 B1"] * 2


def test_interleaved_takes_microbatches_in_groups_of_stages():
    # Megatron: stage 0 of 2 with 2 chunks warms up 2 (p - s - 1) + (v - 1) p = 4 forwards.
    schedule = interleaved_one_f_one_b(2, 4, 2)
    assert text(schedule[0][:6]) == "F0 F1 F0.1 F1.1 F2 B0.1"
    assert text(schedule[1][:5]) == "F0 F1 F0.1 B0.1 F1.1"


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_every_schedule_is_complete_and_can_run(stages, groups, chunks):
    microbatches = groups * stages
    for schedule in (
        gpipe(stages, microbatches),
        interleaved_one_f_one_b(stages, microbatches, chunks),
    ):
        validate_schedule(schedule)
    expected = {Action(k, m, c) for k in "FB" for m in range(microbatches) for c in range(chunks)}
    for actions in interleaved_one_f_one_b(stages, microbatches, chunks):
        assert set(actions) == expected
        assert len(actions) == len(expected)


def test_a_schedule_that_waits_for_itself_names_the_position():
    schedule = one_f_one_b(3, 2)
    stage = schedule[1]
    stage[0], stage[2] = stage[2], stage[0]  # F0 F1 B0 B1 -> B0 F1 F0 B1
    reason = "stage 1, position 0: B0 can never run; it needs F0 of stage 1"
    with pytest.raises(InputError, match=reason) as error:
        validate_schedule(schedule)
    assert "stage 1: [B0] F1 F0 B1" in str(error.value)


def test_missing_and_repeated_actions_are_refused():
    missing = gpipe(2, 2)
    missing[1].pop()
    with pytest.raises(InputError, match="B1 stands on some stages only"):
        validate_schedule(missing)
    repeated = gpipe(2, 2)
    repeated[0].append(Action("F", 0))
    with pytest.raises(InputError, match="F0 stands more than once"):
        validate_schedule(repeated)


def test_interleaving_needs_whole_groups():
    with pytest.raises(InputError, match="5 microbatches are no multiple of 2 stages"):
        interleaved_one_f_one_b(2, 5, 2)
    with pytest.raises(InputError, match="at least one of its stages"):
        gpipe(0, 1)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_pipeline_graphs_verify(stages, chunks):
    schedule = interleaved_one_f_one_b(stages, 8, chunks)
    graph = pipeline_graph(schedule, forward=10, backward=20, num_bytes=64, tp=2)
    assert verify(graph) == []
    assert graph.world_size == 2 * stages
    # Forward and backward once per microbatch and chunk, and one send or recv per end of each boundary:
    # v p - 1 boundaries, crossed forwards and backwards by 8 microbatches, 2 ends; none inside one stage.
    flat = sum(len(graph.flat_ops(program)) for program in graph.programs)
    boundaries = stages * chunks - 1 if stages > 1 else 0
    assert flat == 8 * (2 * stages * chunks + 4 * boundaries)


def test_a_body_of_several_ops():
    def body(template, stage, waits):
        first = template.compute("gemm", waits=waits, recorded_ps=stage + 1)
        return template.compute("norm", waits=(first,), recorded_ps=1)

    graph = pipeline_graph(gpipe(2, 3), forward=body, backward=7, num_bytes=8)
    assert verify(graph) == []
    assert graph.ops.name.tolist().count("norm") == 2


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_bubbles_of_1f1b(stages, groups, chunks):
    # (p - 1) / (m v), whatever a backward costs beside a forward (arXiv 2104.04473, section 2.2).
    microbatches = groups * stages
    schedule = interleaved_one_f_one_b(stages, microbatches, chunks)
    assert bubble_fraction(schedule) == pytest.approx((stages - 1) / (microbatches * chunks))


@given(st.integers(1, 6), st.integers(0, 8))
def test_bubble_of_zb_h1_is_a_third_of_1f1bs(stages, more):
    # With F = I = W = 1 unit the span is m (F + I + W) + (p - 1)(F + I - W) = 3 m + p - 1.
    microbatches = stages + more
    schedule = zero_bubble(stages, microbatches)
    validate_schedule(schedule)
    assert max(own[-1] for own in end_times(schedule)) == 3 * microbatches + stages - 1


@given(st.integers(1, 6), st.integers(1, 12))
def test_zb_h1_holds_no_more_microbatches_than_1f1b(stages, microbatches):
    for actions in zero_bubble(stages, microbatches):
        held = 0
        for action in actions:
            held += {"F": 1, "I": 0, "W": -1}[action.kind]
            assert held <= stages


@given(st.integers(1, 6), st.integers(0, 6))
def test_dual_pipe_v_runs_and_waits_less_than_interleaved_1f1b(stages, more):
    microbatches = 2 * stages + more
    schedule = dual_pipe_v(stages, microbatches)
    validate_schedule(schedule, "v")
    work = {Action("F", m, c) for m in range(microbatches) for c in range(2)}
    for actions in schedule:
        assert {action for action in actions if action.kind == "F"} == work
    # Interleaved 1F1B with two chunks: (p - 1) / (2 m).
    assert bubble_fraction(schedule, "v") <= (stages - 1) / (2 * microbatches) + 1e-9


@given(st.integers(1, 4), st.integers(0, 4))
def test_dual_pipe_feeds_from_both_ends_and_its_pairs_never_wait_for_each_other(half, more):
    stages, microbatches = 2 * half, 4 * half + 2 * more
    schedule = dual_pipe(stages, microbatches)
    validate_schedule(schedule, "both_ways")
    first = {Action("F", m, int(m >= microbatches // 2)) for m in range(microbatches)}
    for actions in schedule:
        assert {action for action in actions if action.kind == "F"} == first
    # What stage s does at one end, p - 1 - s does at the other.
    other = [(a.kind, a.chunk ^ 1) for a in schedule[-1]]
    assert [(a.kind, a.chunk) for a in schedule[0]] == other
    _play_pairs_as_one(schedule)


def _play_pairs_as_one(schedule):
    """Both actions of a pair begin together, when both have what they need."""
    done, at = set(), [0] * len(schedule)
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(schedule):
            pairs = overlapped_pairs(actions)
            while at[stage] < len(actions):
                now = actions[at[stage] : pairs.get(at[stage], at[stage]) + 1]
                wanted = [n for a in now for n in needs(a, stage, len(schedule), 2, "both_ways")]
                if not done.issuperset(wanted):
                    break
                done |= {(stage, a) for a in now} | {
                    (stage, a._replace(kind="B")) for a in now if a.kind == "I"
                }
                at[stage] += len(now)
                moved = True
    assert at == [len(actions) for actions in schedule]


def test_dual_pipe_on_four_stages():
    # arXiv 2412.19437, figure 5, for 4 stages: warm-up from both ends, then forward and backward in pairs.
    first = dual_pipe(4, 8)[0]
    assert text(first[:9]) == "F0 F1 F2 F4.1 I4.1 W4.1 F5.1 F3 B5.1"
    assert [(str(first[f]), str(first[b])) for f, b in overlapped_pairs(first).items()] == [
        ("F3", "B5.1"), ("F6.1", "B0"), ("F7.1", "B1"),
    ]  # fmt: skip


@pytest.mark.parametrize(("stages", "microbatches", "near"), [(3, 8, "2 or 4"), (4, 9, "10"), (4, 6, "8")])
def test_dual_pipe_needs_a_middle_and_two_microbatches_a_stage(stages, microbatches, near):
    with pytest.raises(InputError, match=f"nearest: {near}"):
        dual_pipe(stages, microbatches)


def test_two_copies_lie_opposite_each_other():
    assert [virtual_stage(s, 0, 4, "both_ways") for s in range(4)] == [0, 1, 2, 3]
    assert [virtual_stage(s, 1, 4, "both_ways") for s in range(4)] == [3, 2, 1, 0]
    assert neighbour(1, 1, 1, 4, 2, "both_ways") == (0, 1)
    assert neighbour(0, 1, 1, 4, 2, "both_ways") is None


def test_a_v_comes_back_up():
    assert [home(v, 3, "v") for v in range(6)] == [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]
    assert [virtual_stage(*home(v, 3, "v"), 3, "v") for v in range(6)] == list(range(6))


def test_groups_larger_than_the_pipeline_need_no_multiple():
    # Megatron: groups of 4 on 3 stages; the last group has 3 of 11 microbatches.
    schedule = interleaved_one_f_one_b(3, 11, 2, group_size=4)
    validate_schedule(schedule)
    with pytest.raises(InputError, match="leave 2, fewer than 3 stages; nearest: 8 or 12"):
        interleaved_one_f_one_b(3, 10, 2, group_size=4)


def test_grid_shows_who_waits():
    assert grid(one_f_one_b(2, 2)).splitlines() == [
        "stage 0  F0 F1 .  .  B0 -- .  B1 --",
        "stage 1  .  F0 B0 -- F1 B1 --",
    ]


def test_too_few_microbatches_for_dual_pipe_v():
    with pytest.raises(InputError, match="7 microbatches on 4 stages; it needs at least two per stage, 8"):
        dual_pipe_v(4, 7)
