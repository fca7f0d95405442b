"""The band of a run's communication time, from the bands of its plans."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from simcore.analysis import analyse
from simcore.engine.result import SimulationResult
from simcore.report import summary
from simcore.timeline import Timeline, write_run
from simcore.timeline.facts import communication_error
from tests.synthetic import FACTS, two_stage_graph, two_stage_result


def with_errors(*errors: float) -> SimulationResult:
    result = two_stage_result()
    plans = [replace(plan, relative_error=e) for plan, e in zip(result.plans, errors, strict=True)]
    return replace(result, plans=tuple(plans))


def test_plans_count_by_their_time_alone() -> None:
    # Four sends and recvs of 20 K, two ranks of an all_reduce of 45 K: (80 x 10 % + 90 x 4 %) / 170.
    assert communication_error(with_errors(0.10, 0.04)) == pytest.approx((80 * 0.10 + 90 * 0.04) / 170)
    # Three ranks for each of the two classes: the same shares.
    more = replace(with_errors(0.10, 0.04), class_of=two_stage_result().class_of.repeat(3))
    assert communication_error(more) == pytest.approx((80 * 0.10 + 90 * 0.04) / 170)


def test_no_communication_no_error() -> None:
    result = with_errors(0.10, 0.04)
    silent = tuple(plan_of * 0 - 1 for plan_of in result.plan_of)
    assert communication_error(replace(result, plan_of=silent)) == 0.0
    assert communication_error(replace(result, plan_of=silent, plans=())) == 0.0


def test_run_json_and_summary_say_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", two_stage_graph(), with_errors(0.05, 0.05), FACTS)
    timeline = Timeline.open(tmp_path / "run")
    assert timeline.info.communication_error == pytest.approx(0.05)
    text = io.StringIO()
    Console(width=150, file=text).print(summary(timeline.info, analyse(timeline)))
    assert "communication times are good to 5.0%" in text.getvalue()
