"""The packet network against ns-3: what a real one said is recorded; where one is installed, it runs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from simcore.apps.studies.ns3.check import RECORDED, Ns3Case, check_ns3, ns3_cases
from simcore.apps.studies.ns3.runner import describe, find_ns3
from simcore.errors import InputError
from simcore.units import MIB
from tests.commands import simcore


def _case(part: str) -> Ns3Case:
    return next(case for case in ns3_cases() if part in case.name)


def test_every_case_is_within_five_percent_of_what_ns3_said():
    rows = list(check_ns3(None))
    assert [row.name for row in rows] == list(json.loads(RECORDED.read_text())["cases"])
    assert {row.name: round(row.percent, 2) for row in rows if abs(row.percent) > 5.0} == {}
    # Where nothing is shared in an order that may differ, only ns-3's whole nanoseconds are between them.
    assert all(abs(row.percent) < 0.2 for row in rows if "leaf" in row.name)


def test_recorded_times_are_those_of_wires():
    # 16 MiB in packets of 4096 and 48 bytes at 50 GB/s, one packet stored at the leaf, 2 us.
    wire_us = 16 * MIB * (4144 / 4096) / 50e3 + 4144 / 50e3 + 2.0
    recorded = json.loads(RECORDED.read_text())["cases"]
    assert recorded["point to point 16 MiB, one leaf"] == pytest.approx(wire_us, rel=0.002)
    # Three messages of 4 MiB through the one port of the receiver.
    incast_us = 12 * MIB * (4144 / 4096) / 50e3 + 4144 / 50e3 + 2.0
    assert recorded["incast 4 MiB from 3, one leaf"] == pytest.approx(incast_us, rel=0.002)


def test_a_description_has_every_wire_once_and_every_message():
    case = _case("ring all_reduce 1 MiB")
    lines = case.description().splitlines()
    wires = [tuple(sorted(line.split()[1:3])) for line in lines if line.startswith("link")]
    # 16 hosts to their leaves; 4 leaves to what stands for the spines, one for the way up from even leaves
    # and one from odd ones, as the ring's hops meet there.
    assert len(wires) == len(set(wires)) == 16 + 2 * 4
    assert sum(line.startswith("send") for line in lines) == case.program.num_messages
    assert lines == describe(case.topology, case.program, case.settings).splitlines()


def test_nodes_of_a_description_join_where_links_follow_each_other():
    lines = _case("point to point 16 MiB, two leaves").description().splitlines()
    (lane,) = [line.split()[2:] for line in lines if line.startswith("lane")]
    wires = {frozenset(line.split()[1:3]) for line in lines if line.startswith("link")}
    assert len(lane) == 5  # host, leaf, spine, leaf, host
    assert all(frozenset(pair) in wires for pair in pairwise(lane))


def test_without_ns3_the_command_takes_what_was_recorded(capsys, monkeypatch):
    monkeypatch.setattr("simcore.apps.studies.ns3.runner.find_ns3", lambda: None)
    cases = [_case("incast 4 MiB from 3")]
    monkeypatch.setattr("simcore.apps.studies.ns3.check.ns3_cases", lambda: iter(cases))
    assert simcore("fidelity-study", "--ns3", "--json") == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)["ns3"]
    assert row["source"].startswith("recorded")
    assert "not installed" in printed.err
    assert simcore("fidelity-study", "--ns3", "--record") == 2


def test_a_root_without_ns3_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NS3_ROOT", str(tmp_path))
    with pytest.raises(InputError, match="NS3_ROOT"):
        find_ns3()


@pytest.mark.skipif(find_ns3() is None, reason="ns-3 is not installed")
def test_an_installed_ns3_says_what_was_recorded():
    ns3 = find_ns3()
    assert ns3 is not None
    case = _case("incast 4 MiB from 3")
    recorded = json.loads(RECORDED.read_text())["cases"][case.name]
    assert ns3.time_us(case.description()) == pytest.approx(recorded, rel=1e-3)
    slower = replace(case, settings=replace(case.settings, header_bytes=4144))
    assert ns3.time_us(slower.description()) == pytest.approx(2 * recorded, rel=0.02)
