"""Lookups in tables, their updates, sorts of keys: bytes from HBM and time, derived by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.apps.measured.kernels import predict_rows, read_kernel_rows
from simcore.cost import KernelShape, RooflineCost
from simcore.cost.parameters import load_parameters
from simcore.hardware import load_gpu
from simcore.popularity import distinct_rows, rows_above, share_of_first

FOLDER = Path(__file__).parents[2] / "hardware_profiles" / "measured"
GPU = load_gpu("a100-80")
COST = RooflineCost(GPU)
ROWS, DIM, LOOKUPS = 10_000_000, 128, 1 << 20


def _kernel(name: str, op_class: str, rows: int = ROWS, lookups: int = LOOKUPS) -> KernelShape:
    return KernelShape(name, op_class, "float32", ((rows, DIM), (lookups,)), ((lookups, DIM),),
                       bytes_written=4 * lookups * DIM)  # fmt: skip


MEASURED = {"a100-40": 0.1, "a100-80": 0.5}  # the largest error of any kernel recorded there


@pytest.mark.parametrize("gpu", MEASURED)
def test_recorded_kernels_of_fbgemm(gpu: str) -> None:
    rows, refused = read_kernel_rows(FOLDER / f"fbgemm-{gpu}")
    assert len(rows) == 3 and not refused
    for row, predicted in zip(rows, predict_rows(rows), strict=True):
        assert predicted == pytest.approx(row.seconds, rel=MEASURED[gpu])


def test_a_table_in_l2_is_read_no_faster_than_warps_add_rows() -> None:
    even, fbgemm = (
        COST.work(_kernel(f"table_lookup{whose}", "lookup_fwd", rows=1000)).sm_s for whose in ("", ".fbgemm")
    )
    # 24 clocks of an SM for each row and each bag, one of 128 columns.
    assert fbgemm == pytest.approx(24 * 2 * LOOKUPS / (GPU.num_sms * GPU.boost_clock_hz))
    assert even < fbgemm


def test_rows_wait_for_what_says_where_they_lie_in_hugectrs_kernels() -> None:
    # 75 clocks of an SM for each row of 128 columns, in L2 or not; of two columns 64 rows share a warp's.
    read = COST.work(_kernel("table_lookup.hugectr", "lookup_fwd", rows=1000))
    assert read.sm_s == pytest.approx(75 * LOOKUPS / (GPU.num_sms * GPU.boost_clock_hz))
    narrow = KernelShape(
        "table_lookup.hugectr", "lookup_fwd", "int32", ((1000, 2), (LOOKUPS,)), ((LOOKUPS, 2),)
    )
    assert COST.work(narrow).sm_s < read.sm_s / 10
    # Sums of 512 bytes a row are written, and read by the optimizer.
    one, both = (
        COST.work(
            KernelShape(f"table_update.sgd{whose}", "lookup_bwd", "float32",
                        ((ROWS, DIM), (LOOKUPS,), (LOOKUPS, DIM)), ((ROWS, DIM),))
        ).hbm_bytes
        for whose in ("", ".hugectr")
    )  # fmt: skip
    assert both - one == pytest.approx(2 * 512 * ROWS * (1 - math.exp(-LOOKUPS / ROWS)))


def test_rows_of_a_large_table_come_from_hbm_at_the_rate_of_random_rows() -> None:
    work = COST.work(_kernel("table_lookup", "lookup_fwd"))
    # Each lookup reads 512 bytes, but for those of the share of rows that half of L2 holds; keys of 8 bytes
    # are read and sums written beside them.
    kept = GPU.l2_bytes / 2 / 512 / ROWS
    assert work.hbm_bytes == pytest.approx((512 * (1 - kept) + 520) * LOOKUPS, rel=1e-6)
    usable = GPU.hbm_bytes_per_s * GPU.hbm_efficiency
    assert work.sm_s == pytest.approx(
        (work.hbm_bytes - 520 * LOOKUPS) / (0.65 * usable) + 520 * LOOKUPS / usable
    )


def test_small_tables_and_popular_rows_are_read_from_l2() -> None:
    large = COST.work(_kernel("table_lookup", "lookup_fwd")).hbm_bytes
    small = COST.work(_kernel("table_lookup", "lookup_fwd", rows=1000)).hbm_bytes
    assert small == pytest.approx(520 * LOOKUPS + 1000 * 512)
    popular = COST.work(_kernel("table_lookup.zipf=1.05", "lookup_fwd")).hbm_bytes
    assert small < popular < 0.8 * large


@pytest.mark.parametrize(("name", "states"), [("sgd", 0), ("rowwise_adagrad", 1), ("adagrad", DIM)])
def test_an_update_reads_and_writes_each_row_that_was_met_with_its_state_once(name: str, states: int) -> None:
    out = ((ROWS, DIM), (ROWS, states)) if states else ((ROWS, DIM),)
    gradient = (LOOKUPS, DIM)
    kernel = KernelShape(
        f"table_update.{name}", "lookup_bwd", "float32", ((ROWS, DIM), (LOOKUPS,), gradient), out
    )
    met = ROWS * (1 - math.exp(-LOOKUPS / ROWS))
    # Sectors of 64 bytes: a single fp32 state moves one.
    state = 64 * -(-4 * states // 64)
    expected = 2 * (512 + state) * met + 512 * LOOKUPS + 8 * LOOKUPS
    assert COST.work(kernel).hbm_bytes == pytest.approx(expected, rel=1e-6)


def test_rows_in_the_hosts_memory_are_fetched_once_and_go_back() -> None:
    near, far, half = (
        COST.work(_kernel(f"table_lookup{name}", "lookup_fwd")).sm_s for name in ("", ".uvm=0", ".uvm=0.5")
    )
    # All rows alike popular: each that was met comes over PCIe once; with half of the rows in HBM every other
    # lookup misses.
    rate = load_parameters("ampere").memory.pcie_bytes_per_s
    assert far - near == pytest.approx(512 * ROWS * (1 - math.exp(-LOOKUPS / ROWS)) / rate)
    assert half - near == pytest.approx(512 * LOOKUPS / 2 / rate)
    popular, cached = (
        COST.work(_kernel(f"table_lookup.zipf=1.05{name}", "lookup_fwd")).sm_s
        for name in (".uvm=0", ".uvm=0.1")
    )
    assert cached < popular
    # GH200's host is ten times nearer.
    chip = RooflineCost(load_gpu("gb200"))
    assert chip.work(_kernel("table_lookup.uvm=0", "lookup_fwd")).sm_s < far / 4


def test_a_sort_reads_and_writes_keys_for_each_byte_of_the_largest() -> None:
    keys = 1 << 22
    bytes_of = {
        rows: COST.work(
            KernelShape("key_sort", "key_sort", "int64", ((keys,), (rows, 1)), ((keys,),))
        ).hbm_bytes
        for rows in (200, 60_000, 10_000_000)
    }
    # A key of 8 bytes and its place of 4, read and written by each pass of 8 bits, keys once more to be
    # counted; 32 bytes to find unique ones.
    expected = {200: keys * 64, 60_000: keys * 88, 10_000_000: keys * 112}
    assert bytes_of == pytest.approx(expected, rel=0.05)


@given(
    rows=st.integers(2, 3000), zipf=st.sampled_from([0.0, 0.6, 1.0, 1.05, 1.6]), count=st.integers(1, 3000)
)
def test_popularity_is_the_sum_of_powers(rows: int, zipf: float, count: int) -> None:
    powers = [k**-zipf for k in range(1, rows + 1)]
    assert share_of_first(count, rows, zipf) == pytest.approx(sum(powers[:count]) / sum(powers), rel=0.02)


@given(rows=st.integers(2, 2000), zipf=st.sampled_from([0.0, 0.6, 1.05]), lookups=st.integers(1, 20_000))
def test_distinct_rows_are_those_expected_of_independent_lookups(
    rows: int, zipf: float, lookups: int
) -> None:
    powers = [k**-zipf for k in range(1, rows + 1)]
    expected = sum(1 - math.exp(-lookups * one / sum(powers)) for one in powers)
    found = distinct_rows(lookups, rows, zipf)
    assert found == pytest.approx(expected, rel=0.05)
    assert found <= min(rows, lookups) * (1 + 1e-9)


def test_rows_above_a_count_are_those_expected_to_be_met_more_often() -> None:
    # Of 1,000 rows with zipf 1 the k-th is met L / (k H) times, H = 7.485: over 10 times while k < 133.6.
    assert rows_above(10, 10_000, 1000, 1.0) == pytest.approx(133, abs=1)
    assert rows_above(10, 10_000, 500, 0.0) == 500
    assert rows_above(10, 10_000, 1001, 0.0) == 0
