"""Echo's table 6: the white box meets its totals, which are no durations of a tree on those wires."""

import pytest

from simcore.apps.fit.white_box_nccl import TABLE_6, WhiteBox, chunk_bytes, fit_white_box, table_6_lines
from simcore.hardware import Topology, load_cluster


@pytest.fixture(scope="module")
def box() -> WhiteBox:
    return fit_white_box()


@pytest.mark.parametrize("row", TABLE_6, ids=lambda row: f"{row[0]}MB")
def test_the_total_of_the_columns_is_met_within_8_percent(row: tuple[float, ...], box: WhiteBox) -> None:
    columns = box.columns_us(int(row[0]) * 10**6)
    assert sum(columns) == pytest.approx(sum(row[1:]), rel=0.08)
    for found, published in zip(columns, row[1:], strict=True):
        assert found == pytest.approx(published, rel=0.2)


def test_chunks_are_those_of_the_table() -> None:
    assert [chunk_bytes(row[0] * 10**6) // 1000 for row in TABLE_6] == [18, 36, 72, 72, 72, 144, 288]


def test_its_constants_are_physical(box: WhiteBox) -> None:
    # NVLink's end to end latency is 3.3 us, InfiniBand's 2.8 (DeepSeek-V3, table 5); LL128 adds its flags.
    assert 3.3 < box.nvlink_hop_us < 6
    assert 2.8 < box.network_hop_us < 15
    # A chunk up and one down, at most at the 36.7 GB/s that NCCL expects of a channel; four stores between.
    assert 4e-3 * box.between.bytes_per_us < 2e-3 * box.within.bytes_per_us < 36.7


def test_the_totals_of_large_tensors_are_no_durations_of_a_tree(box: WhiteBox) -> None:
    # Each GPU of a chain but one sends the tensor up and each but one down: 2 x 7/8 of it, under LL128
    # 128/120 as many bytes, leave every NVLink port.  256 MB in 2036 us would be 235 GB/s over a port of 200.
    port = float(Topology(load_cluster("h800", {})).cluster.gpu.nvlink_bytes_per_s)
    megabytes, *columns = TABLE_6[-1]
    needed = 2 * 7 / 8 * 128 / 120 * megabytes * 1e6 / (sum(columns) * 1e-6)
    assert needed == pytest.approx(235e9, rel=0.01)
    assert needed > port


def test_lines_name_every_size() -> None:
    lines = table_6_lines()
    assert [line.split()[0] for line in lines[2 : 2 + len(TABLE_6)]] == [str(row[0]) for row in TABLE_6]
