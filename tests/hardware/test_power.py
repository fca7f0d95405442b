"""Clocks that power limits leave: one board's told from another's of the same die."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.errors import InputError
from simcore.hardware import gpu_names, hardware_hash, load_cluster, load_gpu
from simcore.hardware.sustained import clock_at_limit, power_exponent


def test_every_profile_says_its_power() -> None:
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.power_limit_w is not None and gpu.static_power_w is not None
        assert gpu.static_power_w < gpu.power_limit_w


def test_a_lower_limit_lowers_the_clock_by_the_root_of_what_is_left_for_work() -> None:
    board = load_gpu("h100-sxm")
    lower = load_gpu("h100-sxm", {"gpu.power_limit_w": "500W"})
    # (500 - 135) / (700 - 135) = 0.646, to the power 1 / 2.4 = 0.834 of 0.84.
    assert power_exponent() == 2.4
    assert clock_at_limit(lower, board, 0.84) == pytest.approx(0.84 * 0.646 ** (1 / 2.4), rel=1e-3)
    assert clock_at_limit(board, board, 0.84) == 0.84


def test_products_that_need_less_than_the_limit_run_at_the_rated_clock() -> None:
    # H20: 148 Tflop/s at 0.92 within 400 W, where an H100's 989 at 0.78 are held back by 700 W.
    assert clock_at_limit(load_gpu("h20"), load_gpu("h100-sxm"), 0.84) == 1.0


def test_a_board_of_unknown_power_has_the_clock_of_its_die() -> None:
    board = load_gpu("h200")
    unknown = replace(board, power_limit_w=None)
    assert clock_at_limit(unknown, board, 0.84) == 0.84
    assert clock_at_limit(board, unknown, 0.84) == 0.84


def test_power_is_a_quantity_and_no_hardware_of_its_own() -> None:
    assert load_gpu("h100-sxm", {"gpu.power_limit_w": "0.5 KW"}).power_limit_w == 500
    with pytest.raises(InputError, match="unit of power"):
        load_gpu("h100-sxm", {"gpu.power_limit_w": "500 J"})
    # What a limit does is lower the clock under load, and that clock is in the hash.
    lower = load_cluster("h100-8", {"gpu.power_limit_w": "500W"})
    assert hardware_hash(lower) != hardware_hash(load_cluster("h100-8"))
    assert hardware_hash(lower) == hardware_hash(
        load_cluster("h100-8", {"gpu.sustained.clock": f"{lower.gpu.sustained.clock}"})
    )


def test_a_limit_leaves_power_for_work() -> None:
    with pytest.raises(InputError, match="power_limit_w = 100 W must be more than static_power_w = 135 W"):
        load_gpu("h100-sxm", {"gpu.power_limit_w": "100W"})


def test_boards_keep_the_clock_that_their_limit_leaves_them() -> None:
    held = {name: load_gpu(name).sustained for name in ("h100-sxm", "h800", "h20", "h100-96gb")}
    clocks = {name: one.clock for name, one in held.items() if one is not None}
    assert clocks["h800"] == clocks["h100-sxm"]  # 700 W both
    assert clocks["h20"] == 1.0
    assert (
        clocks["h100-96gb"] == clocks["h100-sxm"]
    )  # measured: its profile says what 500 W leave of products
    capped = load_gpu("h100-sxm", {"gpu.power_limit_w": "500W"}).sustained
    assert capped is not None
    assert capped.clock == pytest.approx(clocks["h100-sxm"] * (365 / 565) ** (1 / 2.4), rel=1e-6)


def test_boards_of_one_die_have_clocks_of_their_own_or_follow_another() -> None:
    held = {name: load_gpu(name).sustained for name in ("b200-sxm", "gb200", "b300-sxm", "gb300")}
    clocks = {name: one.clock for name, one in held.items() if one is not None}
    assert (clocks["b200-sxm"], clocks["gb200"]) == (0.805, 0.766)
    # B300 follows B200 (1,100 for 1,000 W), GB300 follows GB200 (1,400 for 1,200 W).
    for name, like in (("b300-sxm", "b200-sxm"), ("gb300", "gb200")):
        assert clocks[name] == pytest.approx(
            clock_at_limit(load_gpu(name), load_gpu(like), clocks[like]), rel=1e-6
        )
        assert clocks[like] < clocks[name] < 1
