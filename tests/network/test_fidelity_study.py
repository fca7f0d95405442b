"""The study's machinery on small traffic_cases; the study itself runs in minutes."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.studies.cases import PlanSequence, TrafficCase, fabric, traffic_cases
from simcore.apps.studies.compare import compare
from simcore.apps.studies.explain import explanation
from simcore.apps.studies.references import check_references
from simcore.apps.studies.show import scatter_svg
from simcore.collectives import NcclPlanner
from simcore.units import MIB
from tests.commands import simcore


def alone(collective, size, ranks=8):
    node = fabric("nvswitch", 8)
    plan = NcclPlanner(node, algorithm="ring", protocol="Simple").plan(collective, size, range(ranks))
    return TrafficCase(collective, "nvswitch", node, (PlanSequence(collective, (plan,)),))


def test_a_collective_alone_agrees_and_needs_no_explanation():
    found = compare([alone("all_reduce", 16 * MIB), alone("all_gather", MIB)])
    assert [abs(case.percent) < 1.0 for case in found.cases] == [True, True]
    assert all(case.explanation is None for case in found.cases)
    totals = found.as_dict()
    assert totals["mean_percent"] <= totals["worst_percent"] < 1.0
    assert totals["speedup"] > 1.0


def test_jobs_with_unequal_connections_agree():
    # Each GPU's port carries 1 connection of the ring and 7 to the others, so a ring beside the exchange
    # gets 1/8 of it until the exchange is done.
    one, other = alone("all_reduce", 64 * MIB), alone("all_to_all", 64 * MIB)
    found = compare([replace(one, jobs=(*one.jobs, *other.jobs))])
    assert len(found.cases) == 2
    for case in found.cases:
        assert case.fluid_us == pytest.approx(case.packet_us, rel=0.01)
        assert case.explanation is None


def test_unequal_connections_are_named_where_they_explain_a_difference():
    one, other = alone("all_reduce", 64 * MIB), alone("all_to_all", 64 * MIB)
    both = replace(one, jobs=(*one.jobs, *other.jobs))
    assert "1 : 7" in explanation(both, both.jobs[0], fluid_ps=10**9, packet_ps=2 * 10**9)
    assert "7 : 1" in explanation(both, both.jobs[1], fluid_ps=10**9, packet_ps=2 * 10**9)


def test_equal_connections_are_explained_by_the_order_of_arrival():
    one = alone("all_reduce", 64 * MIB)
    both = replace(one, jobs=(*one.jobs, replace(one.jobs[0], name="other")))
    assert "order of arrival" in explanation(both, both.jobs[0], fluid_ps=10**9, packet_ps=2 * 10**9)


def test_a_late_job_is_timed_from_its_start():
    case = alone("all_reduce", MIB)
    late = replace(case, jobs=(replace(case.jobs[0], start_ps=10**9),))
    assert compare([late]).cases[0].packet_us == pytest.approx(compare([case]).cases[0].packet_us)


def test_the_ideal_of_a_reference_is_its_bytes_over_its_bandwidth():
    rail, leaf_spine = check_references(quick=True)
    # 2 x 7/8 x 64 MiB through a port of 2880 Gb/s, and 2 x 15/16 x 64 MiB through a NIC of 400 Gb/s.
    assert rail.ideal_us == pytest.approx(2 * 7 / 8 * 64 * MIB / 360e9 * 1e6, rel=1e-6)
    assert leaf_spine.ideal_us == pytest.approx(2 * 15 / 16 * 64 * MIB / 50e9 * 1e6, rel=1e-6)
    assert rail.packet_us > rail.ideal_us
    assert leaf_spine.packet_us > leaf_spine.ideal_us


def test_scenarios_cover_what_the_study_promises():
    names = [scenario.name for scenario in (*traffic_cases(), *traffic_cases(quick=True))]
    assert all(names.count(name) <= 2 for name in names)  # once in each
    text = " ".join(names)
    for part in (
        "64 KiB",
        "1 GiB",
        "x8 ",
        "x128",
        "nvswitch",
        "rail",
        "oversubscribed",
        "collide",
        "sends under",
    ):
        assert part in text


def test_json_is_one_object(monkeypatch, capsys, tmp_path):
    small = [alone("all_reduce", MIB)]
    monkeypatch.setattr("simcore.apps.studies.cases.traffic_cases", lambda quick: small)
    monkeypatch.setattr("simcore.apps.studies.references.check_references", lambda quick: [])
    monkeypatch.setattr("simcore.apps.studies.compare.check_convergence", lambda quick: [])
    picture = tmp_path / "fidelity.svg"
    assert simcore("fidelity-study", "--json", "--plot", picture) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {"mean_percent", "worst_percent", "speedup", "cases"} <= set(printed)
    row = printed["cases"][0]
    assert set(row) == {
        *("name", "collective", "bytes", "ranks", "topology", "fluid_us", "packet_us", "percent")
    }
    assert row["bytes"] == MIB
    assert row["ranks"] == 8
    assert picture.read_text().count("<circle") == 2  # the case and its place in the legend


def test_a_plot_that_cannot_be_written_is_bad_input(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("simcore.apps.studies.cases.traffic_cases", lambda quick: [])
    monkeypatch.setattr("simcore.apps.studies.references.check_references", lambda quick: [])
    monkeypatch.setattr("simcore.apps.studies.compare.check_convergence", lambda quick: [])
    (tmp_path / "file").touch()
    assert simcore("fidelity-study", "--plot", str(tmp_path / "file" / "x.svg")) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_picture_of_nothing_is_empty():
    assert "<circle" not in scatter_svg([])


def test_the_console_script_has_the_command():
    result = CliRunner().invoke(app, ["fidelity-study", "--help"])
    assert result.exit_code == 0
    assert "--quick" in result.output
