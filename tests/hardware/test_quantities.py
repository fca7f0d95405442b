"""Numbers with units, through the overrides that a user types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.hardware import load_cluster, load_gpu


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3e12", 3e12),  # bare: SI
        ("3.35TB/s", 3.35e12),
        ("3350 GB/s", 3.35e12),
        ("400Gb/s", 50e9),  # 400e9 bits / 8
        ("400Gbps", 50e9),
        ("2GiB/s", 2 * 1024**3),
        ("+7B/s", 7.0),
    ],
)
def test_bandwidth_in_any_unit(text, expected):
    assert load_gpu("h800", {"gpu.hbm_bytes_per_s": text}, force=True).hbm_bytes_per_s == expected


def test_sizes_are_whole_bytes_binary_or_decimal():
    # 80 GiB = 80 * 2^30; 80 GB = 80 * 10^9
    binary = load_gpu("h800", {"gpu.hbm_bytes": "80GiB"}).hbm_bytes
    decimal = load_gpu("h800", {"gpu.hbm_bytes": "80GB"}).hbm_bytes
    assert (binary, decimal) == (85_899_345_920, 80_000_000_000)
    assert isinstance(binary, int)


def test_times_are_the_nearest_double():
    # 2.8 * 1e-6 in binary arithmetic is 2.8e-06 or its neighbour; decimal scaling gives the literal.
    assert load_cluster("h800-8", {"cluster.nic_latency_s": "2.8us"}).nic_latency_s == 2.8e-6
    assert load_cluster("h800-8", {"cluster.nic_latency_s": "2800ns"}).nic_latency_s == 2.8e-6


def test_share_in_percent():
    assert load_gpu("h800", {"gpu.gemm_efficiency": "85%"}).gemm_efficiency == 0.85


@pytest.mark.parametrize(
    ("key", "text", "complaint"),
    [
        ("gpu.hbm_bytes_per_s", "nan", "finite"),
        ("gpu.hbm_bytes_per_s", "inf", "finite"),
        ("gpu.hbm_bytes_per_s", "-1e12", "positive"),
        ("gpu.hbm_bytes_per_s", "0", "positive"),
        ("gpu.hbm_bytes_per_s", "1e400", "range of a double"),
        ("gpu.hbm_bytes_per_s", "3GiB", "'GiB' is not a unit of bandwidth; did you mean 'GiB/s'?"),
        ("gpu.hbm_bytes_per_s", "fast", "expected a number such as '400Gb/s', got 'fast'"),
        ("gpu.hbm_bytes_per_s", "", "expected a number"),
        ("gpu.hbm_bytes_per_s", "1 2", "is not a unit"),
        ("gpu.hbm_bytes_per_s", "_", "expected a number"),
        ("gpu.hbm_bytes", "0.3B", "whole number"),
        ("gpu.num_sms", "131.5", "whole number"),
        ("gpu.gemm_efficiency", "1.01", "at most 1"),
        ("gpu.launch_latency_s", "-1us", "0 or more"),
        ("gpu.clock", "0", "positive"),
        ("cluster.spine_oversubscription", "0.5", "at least 1"),
        ("cluster.num_nodes", "0", "positive"),
        ("link.nvlink.0.out.bytes_per_s", "0", "positive"),
    ],
)
def test_refused_with_key_and_reason(key, text, complaint):
    with pytest.raises(InputError) as caught:
        load_cluster("h800-16", {key: text})
    assert key in str(caught.value)
    assert complaint in str(caught.value)


def test_a_latency_may_be_zero():
    assert load_gpu("h800", {"gpu.launch_overhead_s": "0"}).launch_overhead_s == 0.0


@given(st.floats(min_value=1e-3, max_value=1e9), st.sampled_from(["", "K", "M", "G", "T"]))
def test_prefix_scales_by_a_thousand_each(value, prefix):
    power = 3 * " KMGT".index(prefix or " ")
    got = load_gpu("h100-sxm", {"gpu.l2_bytes_per_s": f"{value!r}{prefix}B/s"}, force=True).l2_bytes_per_s
    assert got == pytest.approx(value * 10**power, rel=1e-15)


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_an_input_error(text):
    try:
        value = load_gpu("h100-sxm", {"gpu.l2_bytes_per_s": text}).l2_bytes_per_s
    except InputError:
        return
    assert 0 < value < float("inf")
