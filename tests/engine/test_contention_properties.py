"""What holds for every mixture of kernels and communication on a GPU; S = 132 SMs, HBM 3.35 TB/s."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.graph import Graph
from tests.engine.lab import C, K, end_us, run, single

HBM = 3.35e6  # bytes per us


def beside(transfer: C, kernel: K) -> float:
    """End of a kernel that starts with a transfer, us."""
    return end_us(run(graph(), {"kernel": kernel}, {1: transfer}, check_both=False), 1)


def graph() -> Graph:
    build = single()
    template = build.template("fwd")
    template.collective("all_reduce", "self", 1, stream="comm")
    template.compute("kernel")
    build.program([0], [(template, 0, 0)])
    return build.build()


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 400.0), st.floats(1.0, 2000.0), st.floats(0.05, 1.6), st.integers(0, 40))
def test_hbm_bytes_are_conserved(kernel_mb, volume_mb, rate_tb_per_s, channels):
    # The transfer costs two HBM bytes a byte.  Together they never move more than HBM does.
    volume = C(channels=channels, volume=volume_mb * 1e6, bytes_per_s=rate_tb_per_s * 1e12, hbm_per_byte=2.0)
    kernel = K(hbm_bytes=round(kernel_mb * 1e6))
    result = run(graph(), {"kernel": kernel}, {1: volume}, check_both=False)
    transfer_us, kernel_us = end_us(result, 0), end_us(result, 1)
    moved = kernel_mb * 1e6 + 2 * volume_mb * 1e6
    assert moved <= HBM * max(transfer_us, kernel_us) * (1 + 1e-6) + 10
    assert transfer_us >= volume_mb / rate_tb_per_s * (1 - 1e-6) - 1e-5
    if kernel_us <= transfer_us:  # max-min: the transfer takes what it wants, up to half
        share = HBM - min(2 * rate_tb_per_s * 1e6, HBM / 2)
        assert kernel_us == pytest.approx(kernel_mb * 1e6 / share, rel=1e-5, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 500.0), st.integers(0, 131))
def test_slowdown_is_continuous_in_the_sms_held(alone_us, channels):
    # One SM more changes the speed by one 132nd of the GPU; none held is the kernel alone.
    def speed(k: int) -> float:
        return alone_us / beside(C(100_000, k), K(alone_us))

    alone_us = round(alone_us, 6)
    assert speed(0) == 1.0
    assert speed(channels) == pytest.approx((132 - channels) / 132, rel=1e-5)
    if channels:
        assert 0 < speed(channels - 1) - speed(channels) <= 1 / 132 + 1e-5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 4), st.integers(0, 131), st.integers(1, 300))
def test_waves_never_run_faster_than_alone_or_spread(blocks, occupancy, channels, held_us):
    kernel = K(100, blocks=blocks, occ=occupancy)
    found = beside(C(held_us, channels), kernel)
    assert found >= 100.0 - 1e-6
    # No block that is placed later can need more than one more wave after everything else.
    whole = beside(C(100_000, channels), kernel)
    assert found <= whole + 1e-6
