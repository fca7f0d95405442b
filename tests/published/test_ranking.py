"""DistSim's search over 15 strategies of 16 GPUs."""

from __future__ import annotations

from simcore.calibrate.runs_ranking import ranking


def test_fifteen_strategies_from_little_to_all_tensor_parallelism() -> None:
    found = ranking()
    # Powers of two with M x P x D = 16: 15 ways to give 4 factors of two to three degrees.
    assert len(found) == 15
    assert all(s.tp * s.pp * s.dp == 16 for s in found)
    # Over PCIe and a network port, tensor parallelism across nodes comes last; published: best/worst 7.5.
    assert found[-1].name == "16M1P1D"
    assert found[0].tp <= 2
    assert 4 < found[0].steps_per_s / found[-1].steps_per_s < 10
