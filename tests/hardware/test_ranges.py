"""Numbers that no hardware has are refused, with the range that it can have, or taken by force and told."""

import re
from importlib import resources

import pytest

from simcore.errors import InputError
from simcore.hardware import assumptions, cluster_names, gpu_names, load_cluster, load_gpu


# Ten times the most known: HBM of an H200 4.8 TB/s and 150,754,820,096 bytes, an L40S' 2.52 GHz and 142 SMs,
# an H800's 1,978.9 Tflop/s in fp8, NICs of 50 GB/s, NVLinks of 450 GB/s.  A thousandth of the least: an
# A10's 600 GB/s.  A tenth of the shortest: launches of 3.3 us.
@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("gpu.hbm_bytes_per_s", "1e300", "hbm_bytes_per_s = 1e+300 B/s .* 3e+08 to 8e+13 B/s"),
        ("gpu.hbm_bytes_per_s", "1", "hbm_bytes_per_s = 1 B/s .* less than hardware has .* 3e+11 B/s, l4"),
        ("gpu.hbm_bytes", "1e300", "hbm_bytes = 1e+300 B .* to 3.092e+12 B"),
        ("gpu.clock", "1e9", "boost_clock_hz = 1.98e+18 Hz .* to 2.52e+10 Hz"),
        ("gpu.sustained.clock", "1e9", "sustained.clock = 1e+09 .* to 11.7"),
        ("gpu.num_sms", "3041", "num_sms = 3041 .* to 3040"),
        ("gpu.peak_flops.fp8", "6e16", "peak_flops.fp8 = 6e+16 flop/s .* to 5.033e+16 flop/s"),
        ("gpu.peak_flops.fp4", "2e17", "peak_flops.fp4 = 2e+17 flop/s .* to 1.5e+17 flop/s"),
        ("gpu.launch_overhead_s", "1ns", "launch_overhead_s = 1e-09 s .* 3.3e-07 to 0.006 s"),
        ("gpu.power_limit_w", "1e9", "power_limit_w = 1e+09 W .* to 1.4e+04 W"),
        ("cluster.nic_bytes_per_s", "1001GB/s", "nic_bytes_per_s = 1.001e+12 B/s .* to 1e+12 B/s"),
        ("cluster.uplink_bytes_per_s", "1e20", "uplink_bytes_per_s = 1e+20 B/s"),
        ("cluster.nic_latency_s", "1s", "nic_latency_s = 1 s"),
        ("link.nvlink.0.out.bytes_per_s", "1e300", "nvlink.0.out.bytes_per_s = 1e+300 B/s .* to 9e+12"),
        ("link.nvlink.0.out.latency_s", "1e-15", "nvlink.0.out.latency_s = 1e-15 s"),
    ],
)
def test_beyond_what_is_known(key, value, told):
    pattern = told.replace("+", re.escape("+"))
    with pytest.raises(InputError, match=pattern):
        load_cluster("h100-16", {key: value})
    forced = load_cluster("h100-16", {key: value}, force=True)
    name = told.split(" = ")[0]
    assert [line for line in assumptions(forced) if line.endswith("taken by force") and name in line]


def test_ten_times_the_most_known_and_no_latency_pass():
    fast = load_cluster("h100-16", {"gpu.hbm_bytes_per_s": "48TB/s", "cluster.nic_latency_s": "0"})
    assert not [line for line in assumptions(fast) if "force" in line]
    assert load_gpu("l40s", {"gpu.num_sms": "1420"}).num_sms == 1420


def test_a_file_of_ones_own_is_held_to_them(tmp_path):
    text = tmp_path / "x.toml"
    profile = resources.files("hardware_profiles").joinpath("gpu/h800.toml").read_text(encoding="utf-8")
    text.write_text(re.sub(r"(hbm_bytes_per_s = \{ value = )[0-9.e]+", r"\g<1>1e30", profile))
    with pytest.raises(InputError, match=r"x\.toml: hbm_bytes_per_s = 1e\+\d+ B/s is more than hardware has"):
        load_gpu(str(text))
    assert load_gpu(str(text), force=True).hbm_bytes_per_s > 1e29


def test_every_profile_of_the_project_is_within():
    for name in gpu_names():
        load_gpu(name, {"gpu.conditions": "cool"})
    for name in cluster_names():
        load_cluster(name, {"cluster.nccl_environment": "NCCL_DEBUG=WARN"})


def test_a_mode_that_the_gpu_lacks_is_named():
    with pytest.raises(InputError, match=r"has no peak_flops\.fp4, .* only those of .*fp64, .*bf16"):
        load_gpu("h800").peak("fp4")
