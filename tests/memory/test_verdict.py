"""Fits, may not fit, does not fit: what the misses of predictions say of the room that is left."""

from __future__ import annotations

import pytest

from simcore.memory import MemoryMisses, StageNeed, verdict
from simcore.units import GIB

# Measured was 0.9, 1.0, 1.1 or 1.2 times what was predicted, each in a quarter of the runs.
MISSES = MemoryMisses((0.9, 1.0, 1.1, 1.2), (0.25,) * 4, "four runs")


@pytest.mark.parametrize(
    ("needs_gib", "word", "chance"),
    [
        (60, "fits", 1.0),  # 80 / 60 = 1.33: more than any miss
        (70, "may not fit", 0.75),  # 80 / 70 = 1.14: three of four
        (88, "may not fit", 0.25),  # 80 / 88 = 0.91: one of four
        (90, "does not fit", 0.0),  # 80 / 90 = 0.89: none
    ],
)
def test_the_chance_is_the_share_of_misses_that_the_room_allows_for(needs_gib, word, chance):
    said = verdict([StageNeed(0, needs_gib * GIB)], 80 * GIB, MISSES)
    assert (said.word, said.chance) == (word, chance)


def test_words_name_the_fullest_stage_its_room_and_the_instant():
    needs = [StageNeed(0, 60 * GIB), StageNeed(1, 90 * GIB, "microbatch 3's forward of layer 12")]
    # The middle 80% of misses span 0.9 to 1.2: half of 0.3 of 90 GiB is 13.5.
    assert str(verdict(needs, 80 * GIB, MISSES)) == (
        "does not fit: stage 1, 10.0 GiB over +-13.5, at microbatch 3's forward of layer 12"
    )
    assert str(verdict(needs[:1], 80 * GIB, MISSES)) == (
        "fits on every stage, least room 20.0 GiB (stage 0) +-9.0"
    )


def test_a_job_that_needs_nothing_fits():
    assert verdict([StageNeed(0, 0)], 80 * GIB, MISSES).word == "fits"
