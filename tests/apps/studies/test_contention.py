"""Kernels beside communication on the engine's GPU: properties, recorded pairs, the command."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.apps.replay.alone import demand_alone
from simcore.apps.studies.contention.pairs import overlapped_kernels
from simcore.apps.studies.contention.published import published_rows
from simcore.apps.studies.contention.rows import Holding, time_beside
from simcore.hardware import load_cluster
from tests.commands import simcore
from tests.imports.traces import launched, step, write
from workloads.imports import import_traces

US = 1_000_000
A100 = load_cluster("a100-8", {}).gpu  # 108 SMs
ALWAYS = 1 << 56


def beside(kind, alone_us, *holdings, blocks=0, occupancy=1, start_us=0.0):
    alone = round(alone_us * US)
    demand = demand_alone(alone, round(start_us * US), kind, blocks, occupancy, A100)
    held = [Holding(round(begin * US), round(end * US) if end else ALWAYS, k) for begin, end, k in holdings]
    return time_beside(A100, demand, alone, held) / US


@settings(max_examples=40, deadline=None)
@given(st.floats(10.0, 500.0), st.integers(0, 107), st.sampled_from(["gemm/conv", "elementwise/copy"]))
def test_held_sms_slow_spread_work_in_proportion(alone_us, k, kind):
    # 108 / (108 - k): continuous and rising in k, 1 at k = 0.
    alone_us = round(alone_us, 6)  # whole picoseconds
    assert beside(kind, alone_us, (0, 0, k)) == pytest.approx(alone_us * 108 / (108 - k), abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 400),
    st.integers(1, 3),
    st.lists(st.tuples(st.floats(0, 80), st.floats(1, 90), st.integers(0, 32)), max_size=3),
)
def test_nothing_gets_faster_and_no_wave_is_lost(blocks, occupancy, times):
    holdings = [(begin, begin + length, k) for begin, length, k in times]
    alone = beside("gemm/conv", 100, blocks=blocks, occupancy=occupancy)
    assert alone == 100.0
    found = beside("gemm/conv", 100, *holdings, blocks=blocks, occupancy=occupancy)
    assert found >= 100.0
    # At worst 96 of 108 SMs are gone all the time.
    slots = 12 * occupancy
    waves = -(-blocks // (108 * occupancy))
    assert found <= 100.0 / waves * -(-blocks // slots) + 100.0 / waves


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 150), st.integers(0, 30)), min_size=1, max_size=3)
)
def test_sm_time_is_conserved(times):
    # SM-time taken by communication until the kernel ends + 108 SMs' work of 100 us = 108 SMs all along.
    holdings = [(begin, begin + length, k) for begin, length, k in times]
    end = beside("elementwise/copy", 100, *holdings)
    taken = sum(k * max(0.0, min(end, stop) - begin) for begin, stop, k in holdings)
    assert 108 * end == pytest.approx(108 * 100 + taken, abs=1e-3)


def test_start_cost_is_not_slowed():
    # 2 us of 10 are the start: 8 * 108 / 84 + 2.  In 5 us less moves than the threads hold: 108 * 64 KiB.
    assert beside("elementwise/copy", 5, (0, 0, 24), start_us=2) == 5.0
    assert beside("elementwise/copy", 10, (0, 0, 24), start_us=2) == pytest.approx(2 + 8 * 108 / 84, abs=1e-5)
    assert beside("elementwise/copy", 1, (0, 0, 24), start_us=2) == 1.0


def test_waves_of_recorded_blocks():
    # 108 blocks, one an SM, 24 SMs held: two waves.  192 blocks: 2 waves alone, 192 / 84 -> 3 beside.
    assert beside("gemm/conv", 100, (0, 0, 24), blocks=108) == pytest.approx(200)
    assert beside("gemm/conv", 100, (0, 0, 24), blocks=192) == pytest.approx(150)
    assert beside("gemm/conv", 100, (0, 0, 24), blocks=64) == pytest.approx(100)


def test_published_slowdowns_of_one_sm_per_channel():
    rows = {row.published.what: row for row in published_rows()}
    gemm = rows["A100 beside all_reduce of 25 MB: GEMM"]
    assert (gemm.sms, gemm.predicted) == (24, pytest.approx(108 / 84, rel=1e-6))
    assert gemm.error == pytest.approx(108 / 84 / 1.27 - 1, rel=1e-6)
    assert rows["A800: GEMM"].error == 0.0  # 16 channels: 108 / 92 = 1.174, inside 1.13-1.18
    assert all(row.one_wave == pytest.approx(2.0) for row in rows.values())


GRID = {"grid": [1080, 1, 1], "block": [256, 1, 1], "registers per thread": 32}
NCCL = {"grid": [24, 1, 1], "block": [640, 1, 1], "registers per thread": 96}


def two_steps(path):
    """Step 0: sgemm alone 100 us, add alone 50 us.  Step 1: the same beside an all_reduce of 24 blocks; a
    kernel that never ran alone; the last add beside another kernel too."""
    events = [
        step(0, 0, 900), step(1, 1000, 1900),
        *launched("sgemm", 10, 20, 100, corr=1, **GRID), *launched("elementwise_add", 12, 130, 50, corr=2),
        *launched("ncclKernel_AllReduce", 1010, 1020, 1500, corr=3, stream=20, **NCCL),
        *launched("sgemm", 1012, 1030, 130, corr=4, **GRID),
        *launched("elementwise_add", 1014, 1170, 60, corr=5),
        *launched("softmax", 1016, 1300, 10, corr=6),
        *launched("elementwise_add", 1018, 1400, 60, corr=7),
        *launched("side", 1020, 1410, 5, corr=8, stream=30),
    ]  # fmt: skip
    properties = [{
        "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "maxThreadsPerMultiprocessor": 2048,
        "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936, "computeMajor": 8,
    }]  # fmt: skip
    return write(path, events, distributedInfo={"rank": 0, "world_size": 2}, deviceProperties=properties)


def test_pairs_are_the_same_kernel_at_the_same_place(tmp_path):
    pairs = overlapped_kernels(import_traces([two_steps(tmp_path / "t.json")]))
    gemm, add = pairs.kernels
    assert (gemm.name, gemm.alone_ps, gemm.recorded_ps, gemm.blocks) == ("sgemm", 100 * US, 130 * US, 1080)
    assert (add.alone_ps, add.recorded_ps, add.covered) == (50 * US, 60 * US, 1.0)
    (neighbour,) = gemm.neighbours
    assert (neighbour.begin_ps, neighbour.blocks, neighbour.collective) == (-10 * US, 24, "all_reduce")
    assert pairs.unmatched == 1  # softmax
    assert pairs.others == 2  # the add and what ran beside it
    assert pairs.compute_ps == (100 + 50 + 130 + 60 + 10 + 60 + 5) * US


def test_the_command_prints_one_object(tmp_path, capsys):
    path = two_steps(tmp_path / "t.json")
    assert simcore("contention-study", path, "--steps", "--json") == 0
    study = json.loads(capsys.readouterr().out)
    assert len(study["published"]) == 12
    assert study["learned"].startswith("none: 1 overlapped kernels")
    (trace,) = study["traces"]
    gemm, add = trace["rows"]
    # 1080 blocks, 8 an SM: 2 waves of 864 alone, 2 of 672 beside.  The shortest kernel alone, 50 us, is taken
    # for the start cost up to a launch's 8 us: 8 + 42 * 108 / 84.
    assert gemm["predicted_us"] == pytest.approx(100)
    assert add["predicted_us"] == pytest.approx(8 + 42 * 108 / 84)
    assert trace["step_effect"]["no contention"]["recorded_added"] == pytest.approx(40 / 415)
    assert {step["step"] for step in trace["steps"]} == {0, 1}


def test_what_if_a_channel_took_two_sms(tmp_path, capsys):
    path = two_steps(tmp_path / "t.json")
    assert simcore("contention-study", path, "--sms-per-channel", "2", "--json") == 0
    gemm, add = json.loads(capsys.readouterr().out)["traces"][0]["rows"]
    # 48 of 108 SMs gone: 3 waves of 480 instead of 2, of the 92 us that are shared, and 42 us on 60 SMs.
    assert gemm["predicted_us"] == pytest.approx(8 + 92 * 3 / 2)
    assert add["predicted_us"] == pytest.approx(8 + 42 * 108 / 60)
    assert simcore("contention-study", path, "--sms-per-channel", "-1") == 2
    assert "between 0 and 8, not -1" in capsys.readouterr().err


def test_a_trace_without_overlap_is_left_out(tmp_path, capsys):
    path = write(
        tmp_path / "t.json",
        launched("a", 0, 8, 20, corr=1),
        deviceProperties=[{"name": "A100", "numSms": 108}],
    )
    assert simcore("contention-study", path) == 0
    assert "left out t.json: no kernel beside communication" in capsys.readouterr().out
    assert simcore("contention-study", str(tmp_path / "none.json")) == 2


OVERLAP = """\
trace,gpu,quality,kclass,kernel,grid,block,registers,shared_mem,alone_us,overlapped_us,collective,comm_kernel,comm_grid
a,A100-SXM4-40GB,good,gemm,ampere_sgemm_128x64_tn,432x1x1,128x1x1,122,0,102,132,,ncclDevKernel_AllReduce,24x1x1
a,A100-SXM4-40GB,weak,other,mystery,,,,,42,50,,ncclDevKernel_AllReduce,24x1x1
b,NVIDIA H100 80GB HBM3,ok,gemm,nvjet_tst,132x1x1,384x1x1,168,200000,102,202,allgather,,16
b,not recorded,ok,gemm,nvjet_tst,132x1x1,384x1x1,168,200000,102,202,allgather,,16
b,NVIDIA H100 80GB HBM3,ok,gemm,nvjet_tst,132x1x1,384x1x1,168,200000,0,202,allgather,,16
"""


def test_a_table_of_kernels_beside_communication(tmp_path, capsys):
    path = tmp_path / "overlap.csv"
    path.write_text(OVERLAP, encoding="utf-8")
    assert simcore("contention-study", "--overlap", path, "--json") == 0
    study = json.loads(capsys.readouterr().out)
    times = {row["id"]: row["predicted_us"] for row in study["rows"]}
    # 2 us are the start.  128 threads of 122 registers are 4 warps of 32 * 122, up to 4,096: 4 blocks an SM.
    # 432 blocks are one wave of 108 * 4, and two of 84 * 4.  What has no grid is spread over 84 of 108 SMs,
    # and 132 tiles that fill their SMs need a second wave on 132 - 16.
    assert times == pytest.approx({0: 202, 1: 2 + 40 * 108 / 84, 2: 202})
    assert study["overlap"]["good and ok"]["within"] == [0.5, 0.5, 0.5]  # 202 beside 132, and beside 202
    assert study["overlap"]["all"]["recorded_added"] == pytest.approx((132 + 50 + 202) / (102 + 42 + 102) - 1)
    assert {row["id"]: row["reason"][:24] for row in study["skipped"]} == {
        3: "there is no profile of t", 4: "alone_us = '0' is no tim",
    }  # fmt: skip
    assert simcore("contention-study", "--overlap", path) == 0
    text = capsys.readouterr().out
    assert "good and ok" in text
    assert "left out row 3: there is no profile of the GPU 'not recorded'; --cluster names one" in text
    path.write_text("gpu,kernel\n", encoding="utf-8")
    assert simcore("contention-study", "--overlap", path) == 2
    assert "alone_us" in capsys.readouterr().err


def test_what_was_measured_beside_a_copy(tmp_path, capsys):
    (tmp_path / "device.json").write_text('{"gpu": "NVIDIA H200", "num_sms": 132}', encoding="utf-8")
    head = "op,op_class,dtype,in_shapes,out_shapes,bytes,copy_blocks,alone_us,beside_us,copy_bytes_per_s"
    lines = [
        f"add,elementwise,bfloat16,,,{3 << 30},{blocks},1000,1300,{rate}"
        for blocks, rate in ((1, 0), (1, 1.2e12), (131, 0), (200, 0), (1, 4e12))
    ]
    (tmp_path / "overlap.csv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    assert simcore("contention-study", "--overlap", tmp_path, "--json") == 0
    study = json.loads(capsys.readouterr().out)
    undisturbed, beside_traffic, starved = (row["predicted_us"] for row in study["rows"])
    # A gigabyte of sums is limited by HBM, and one SM of 132 is not missed.  A copy that reads 1.2 TB/s
    # writes as much: half of 4.8 TB/s is left.  One SM keeps no HBM busy.
    assert undisturbed == pytest.approx(1000, rel=1e-3)
    assert beside_traffic == pytest.approx(2000, rel=0.01)
    assert starved > 10_000
    assert [row["reason"][:11] for row in study["skipped"]] == ["copy_blocks", "copy_bytes_"]
