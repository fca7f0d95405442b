"""What kernels that stream, fill the GPU or leave most of it idle lose to held SMs."""

import pytest

from simcore.hardware.sm import ThreadBlock
from tests.apps.studies.test_contention import A100, beside


def test_memory_keeps_what_it_limits_and_little_more():
    # 806 MB in 440 us are 1.83 TB/s of 2.039: all that streaming kernels reach.  Fluid work in 0.85 of the
    # time on all SMs: 0.85 * 108 / 84 = 1.093 with 84.  402 MB are half of it, and so the SMs' own.
    limited = beside("reduce/norm", 440, (0, 0, 24), moved=(403_000_000, 403_000_000))
    assert limited == pytest.approx(440 * 0.85 * 108 / 84, abs=1e-5)
    assert beside("reduce/norm", 440, (0, 0, 24), moved=(402_000_000, 0)) == pytest.approx(440 * 108 / 84)
    # A product that reads them prefetches: of 7.2 TB/s that L2 delivers 25% are HBM's, 27 of 108 SMs.
    assert beside("gemm/conv", 440, (0, 0, 24), moved=(800_000_000, 6_000_000)) == pytest.approx(440)
    share = A100.hbm_bytes_per_s * A100.hbm_efficiency / A100.l2_bytes_per_s
    found = beside("gemm/conv", 440, (0, 0, 90), moved=(800_000_000, 6_000_000))
    assert found == pytest.approx(440 * share * 108 / 18)


def test_few_blocks_need_few_sms():
    # 64 blocks fit on the 84 SMs that 24 blocks of communication leave; on 44 they fit two by two, if at all.
    assert beside("reduce/norm", 100, (0, 0, 24), blocks=64) == 100.0
    assert beside("elementwise/copy", 100, (0, 0, 24), blocks=64, occupancy=16) == 100.0
    assert beside("reduce/norm", 100, (0, 0, 64), blocks=64, occupancy=2) == 100.0
    assert beside("reduce/norm", 100, (0, 0, 64), blocks=64) == 200.0


def test_what_was_launched_to_fill_the_gpu_needs_a_second_wave():
    # One block on each of 108 SMs: 24 of them after the others, of 54 that make a half.
    second = 1 - 0.35 * (1 - 24 / 54)
    assert beside("reduce/norm", 100, (0, 0, 24), blocks=108) == pytest.approx(100 * (1 + second))
    # Four on each: 96 of 432 go after the others, two on each of 84 SMs at most: half full, 0.5 ** 0.8.
    second = (1 - 0.35 * (1 - 96 / 216)) * 0.5**0.8
    found = beside("elementwise/copy", 100, (0, 0, 24), blocks=432, occupancy=4)
    assert found == pytest.approx(100 * (1 + second))
    # One block more, or more than are resident at once, and the work is spread.
    for blocks, occupancy in ((433, 5), (432, 3)):
        found = beside("reduce/norm", 100, (0, 0, 24), blocks=blocks, occupancy=occupancy)
        assert found == pytest.approx(100 * 108 / 84)


def test_staging_through_shared_memory_is_no_streaming():
    staged = ThreadBlock(512, 32, 16_896)
    found = beside("elementwise/copy", 100, (0, 0, 24), blocks=4096, occupancy=4, block=staged)
    assert found == pytest.approx(100 * 108 / 84)
    plain = ThreadBlock(512, 32, 0)
    found = beside("elementwise/copy", 100, (0, 0, 24), blocks=4096, occupancy=4, block=plain)
    assert found == pytest.approx(100 * 0.85 * 108 / 84)


def test_tiles_tell_what_a_transpose_moves():
    # 7,168 tiles of 4,224 bytes, in and out: 60.6 MB.  0.9 of what streaming reaches, 0.88 * 2.039 TB/s,
    # brings them in 37.5 us.
    tile = ThreadBlock(256, 32, 4_224)

    def slower(alone_us: float) -> float:
        found = beside("elementwise/copy", alone_us, (0, 0, 24), blocks=7_168, occupancy=8, block=tile)
        return found / alone_us

    assert slower(37.4) == pytest.approx(0.85 * 108 / 84, abs=1e-5)
    assert slower(37.6) == pytest.approx(108 / 84, abs=1e-5)  # SMs take longer than HBM would
    # L2 holds 41.9 of them; the other 18.6 take HBM 9.1 us at 2.039 TB/s.  Sooner: tiles are not full.
    assert slower(9.2) == pytest.approx(0.85 * 108 / 84, abs=1e-5)
    assert slower(9.0) == pytest.approx(108 / 84, abs=1e-5)


def test_few_warps_wait_for_their_loads():
    # A load takes 466.3 cycles of 1.41 GHz; an SM's share of HBM, 0.88 * 2.039 TB/s / 108, brings 5,494 bytes
    # meanwhile: what 128 threads load 2.683 times.  So many blocks' shares a block waits, and is served after
    # all blocks of its SM: 72 of 324 go after the others, one on an SM of 84, and HBM is less in use.
    waiting = 466.3 / 1.41e9 * 0.88 * 2.039e12 / 108 / (128 * 16)
    assert waiting == pytest.approx(2.683, abs=1e-3)
    second = (waiting + 1 - 0.35 * (1 - 72 / 162)) / (waiting + 3)
    few = ThreadBlock(128, 168, 64)
    found = beside("reduce/norm", 100, (0, 0, 24), blocks=324, occupancy=3, block=few)
    assert found == pytest.approx(100 * (1 + second))
    # One on each SM waits as long however few there are.
    second = (waiting + 1 - 0.35 * (1 - 24 / 54)) / (waiting + 1)
    found = beside("reduce/norm", 100, (0, 0, 24), blocks=108, occupancy=1, block=few)
    assert found == pytest.approx(100 * (1 + second))
