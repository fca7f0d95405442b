"""The band of a run's communication time, from the bands of its plans."""

from __future__ import annotations

import io
import math
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
    # Four sends and recvs of 20 K (8 K off together), two ranks of an all_reduce of 45 K (3.6 K off); the
    # kinds are independent: sqrt(8^2 + 3.6^2) / 170.
    expected = math.hypot(80 * 0.10, 90 * 0.04) / 170
    assert communication_error(with_errors(0.10, 0.04)) == pytest.approx(expected)
    # Three ranks for each of the two classes: the same shares.
    more = replace(with_errors(0.10, 0.04), class_of=two_stage_result().class_of.repeat(3))
    assert communication_error(more) == pytest.approx(expected)


def test_no_communication_no_error() -> None:
    result = with_errors(0.10, 0.04)
    silent = tuple(plan_of * 0 - 1 for plan_of in result.plan_of)
    assert communication_error(replace(result, plan_of=silent)) == 0.0
    assert communication_error(replace(result, plan_of=silent, plans=())) == 0.0


def test_run_json_says_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", two_stage_graph(), with_errors(0.05, 0.05), FACTS)
    timeline = Timeline.open(tmp_path / "run")
    error = math.hypot(80 * 0.05, 90 * 0.05) / 170  # 3.5 %
    assert timeline.info.communication_error == pytest.approx(error)
    # A part of the step's band: the summary states the whole of it instead.
    text = io.StringIO()
    Console(width=150, file=text).print(summary(timeline.info, analyse(timeline)))
    assert "communication times are good to" not in text.getvalue()
