"""The packet network with the settings of two RDMA models for ns-3, against their published figures."""

from __future__ import annotations

import json

import pytest

from simcore.apps.studies.references import leaf_spine_reference, rails_reference
from simcore.errors import InputError
from simcore.units import MIB
from tests.commands import simcore


def test_one_node_is_within_one_percent_of_its_published_time():
    # 14 steps of 8 MiB with 48 bytes per 9000 at 360 GB/s (23.43 us), 3.01 us before each, 2 x 2 x 25 ns
    # there and back, one packet stored at the switch (25 ns): 371.3 us; published: 369.4.
    reference = rails_reference(8, 64 * MIB, 369.4)
    assert reference.percent == pytest.approx(0.4, abs=0.5)


def test_one_ring_over_a_leaf_spine_is_within_one_percent_of_its_published_time():
    # 30 steps: 4 MiB x 1.048 at 50 GB/s (87.9 us), and there and back 2 x 2 us, or 2 x 4 us every fourth hop.
    expected_us = 30 * (4 * MIB * 1.048 / 50e3 + 2 * (3 * 2 + 4) / 4)
    reference = leaf_spine_reference(16, 64 * MIB, 2788.0)
    assert reference.percent == pytest.approx(0.0, abs=1.0)
    assert reference.packet_us == pytest.approx(expected_us, rel=0.005)


def test_small_messages_cost_their_latency():
    # 16 GPUs, 1 KiB chunks: 30 steps, 7 of 8 hops in a node: 3.01 us and 4 x 25 ns; the eighth over a spine:
    # 3.01 us and 8 x 0.5 us.  A chain of 30 steps meets 3 or 4 of those; bytes add under 0.2 us a step.
    reference = rails_reference(16, 128 * 1024)
    least = 30 * 3.11 + 3 * 3.9
    assert least < reference.packet_us < least + 3.9 + 30 * 0.2


def test_time_grows_with_bytes_and_with_ranks():
    times = [rails_reference(16, mib * MIB).packet_us for mib in (1, 4, 16)]
    assert times == sorted(times)
    assert rails_reference(8, MIB).packet_us < times[0] < rails_reference(24, MIB).packet_us


def test_any_size_of_the_published_case_from_the_command_line(capsys):
    assert simcore("fidelity-study", "--rails", "8:1", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["references"]
    assert (row["ranks"], row["bytes"], row["published_us"]) == (8, MIB, None)
    # 14 steps of 3.11 us for latency, and of 8 x 16 KiB at 360 GB/s (0.37 us), of which rings hide some.
    assert 14 * 3.11 < row["packet_us"] < 14 * (3.11 + 0.37 + 0.03)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("12:1", "12 ranks do not fill"),
        ("8", "RANKS:MIB"),
        ("²:1", "RANKS:MIB"),
        ("8:" + "9" * 5000, "RANKS:MIB"),
    ],
)
def test_a_size_that_cannot_be_is_refused(text, said, capsys):
    assert simcore("fidelity-study", "--rails", text) == 2
    assert said in capsys.readouterr().err


def test_a_message_smaller_than_its_pieces_is_refused():
    with pytest.raises(InputError, match="cannot be cut"):
        rails_reference(8, 63)
