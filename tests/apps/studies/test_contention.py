"""Kernels beside communication on the engine's GPU: properties, recorded pairs, the command."""

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.apps.replay.alone import demand_alone
from simcore.apps.studies.contention.bands import bands
from simcore.apps.studies.contention.beside import Channels, Holding, time_beside
from simcore.apps.studies.contention.grids import product_grids
from simcore.apps.studies.contention.pairs import OverlappedKernel, Pairs, overlapped_kernels
from simcore.apps.studies.contention.published import published_rows
from simcore.apps.studies.contention.rows import ContentionRow, TraceRows
from simcore.hardware import load_cluster
from simcore.hardware.sm import ThreadBlock
from tests.commands import simcore
from tests.imports.traces import framework_call, launched, step, write
from workloads.imports import import_traces

US = 1_000_000
A100 = load_cluster("a100-8", {}).gpu  # 108 SMs
ALWAYS = 1 << 56


def beside(kind, alone_us, *holdings, blocks=0, occupancy=1, start_us=0.0, block=None, moved=(0, 0)):
    alone = round(alone_us * US)
    demand = demand_alone(alone, round(start_us * US), kind, blocks, occupancy, A100, block, moved)
    held = [Holding(round(begin * US), round(end * US) if end else ALWAYS, k) for begin, end, k in holdings]
    return time_beside(A100, demand, alone, held) / US


@settings(max_examples=40, deadline=None)
@given(st.floats(10.0, 500.0), st.integers(0, 107), st.sampled_from(["attention", "reduce/norm"]))
def test_held_sms_slow_spread_work_in_proportion(alone_us, k, kind):
    # 108 / (108 - k): continuous and rising in k, 1 at k = 0.
    alone_us = round(alone_us, 6)  # whole picoseconds
    assert beside(kind, alone_us, (0, 0, k)) == pytest.approx(alone_us * 108 / (108 - k), abs=1e-5)
    # Elementwise kernels keep HBM busy with 85% of the SMs.
    expected = alone_us * max(1.0, 0.85 * 108 / (108 - k))
    assert beside("elementwise/copy", alone_us, (0, 0, k)) == pytest.approx(expected, abs=1e-4)


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
    end = beside("reduce/norm", 100, *holdings)
    taken = sum(k * max(0.0, min(end, stop) - begin) for begin, stop, k in holdings)
    assert 108 * end == pytest.approx(108 * 100 + taken, abs=1e-3)


def test_start_cost_is_not_slowed():
    # 2 us of 10 are the start: 8 * 108 / 84 + 2.  In 5 us less moves than the threads hold: 108 * 64 KiB.
    assert beside("reduce/norm", 5, (0, 0, 24), start_us=2) == 5.0
    assert beside("reduce/norm", 10, (0, 0, 24), start_us=2) == pytest.approx(2 + 8 * 108 / 84, abs=1e-5)
    assert beside("reduce/norm", 1, (0, 0, 24), start_us=2) == 1.0


TILE = ThreadBlock(256, 248, 147_456)  # 8 warps of 7,936 registers, one block; 148,480 bytes: 164 KiB


def test_a_tpc_keeps_its_carve_out_while_a_block_is_there():
    # NCCL's 87,568 + 1,024 bytes keep 24 partners at 100 KiB: large tiles lose 48 of 108 SMs, what needs no
    # shared memory 24.  192 tiles: 4 waves of 60, the last of 12, instead of 2 (108 and 84).
    share = 1 - 0.35 * (1 - 12 / 54)
    assert beside("gemm/conv", 100, (0, 0, 24), blocks=192, block=TILE) == pytest.approx(50 * (3 + share))
    assert beside("gemm/conv", 100, (0, 0, 24), block=TILE) == pytest.approx(180)
    small = ThreadBlock(128, 64, 0)
    assert beside("gemm/conv", 100, (0, 0, 24), block=small) == pytest.approx(100 * 108 / 84)


def test_blocks_side_by_side_and_a_last_wave_of_few():
    # Two of 256 x 96 fit on an SM by registers (8 warps of 3,072: 2.67).  108 of them have an SM each; on 92
    # SMs 108 come two by two: 2 ** 0.8 of their time.
    pair = ThreadBlock(256, 96, 0)
    found = beside("gemm/conv", 100, (0, 0, 16), blocks=108, occupancy=2, block=pair)
    assert found == pytest.approx(100 * 2**0.8)
    # 100 blocks of one an SM on 108 - 2 * 8 = 92: the other 8 alone, of 54 that make a half.
    found = beside("gemm/conv", 100, (0, 0, 8), blocks=100, block=TILE)
    assert found == pytest.approx(100 * (2 - 0.35 * (1 - 8 / 54)))


def test_clusters_fill_tpcs():
    # Hopper's communication comes in clusters of 4: 132 - 24 SMs are left to large tiles, 128 in two waves.
    h100 = load_cluster("h100-8", {}).gpu
    demand = demand_alone(100 * US, 0, "gemm/conv", 128, 1, h100, ThreadBlock(384, 168, 188_548))
    found = time_beside(h100, demand, 100 * US, [Holding(0, ALWAYS, 24)]) / US
    assert found == pytest.approx(100 * (2 - 0.35 * (1 - 20 / 66)))


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


LARGE = Channels(load_cluster("a100-8", {}), 1.0).plan("all_reduce", 1 << 30, 2)
LEFT_OF_HBM = 1 - LARGE.rate_cap_bytes_per_s * LARGE.hbm_bytes_per_byte / A100.hbm_bytes_per_s


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
    assert [(row["id"], row["alone_us"], row["recorded_us"]) for row in (gemm, add)] == [
        (0, 100.0, 130.0), (1, 50.0, 60.0)
    ]  # fmt: skip
    # The shortest kernel alone, 50 us, is taken for the start cost up to a launch's 8 us.  1080 blocks, 8 an
    # SM: 864 and 216 alone, 672 and 408 beside.  216 blocks are 2 an SM and half of a half of all slots, 408
    # are 5 of 8 an SM and 408 / 432 of it.
    alone = 1 + (2 / 8) ** 0.8 * (1 - 0.35 * (1 - 216 / 432))
    shared = 1 + (5 / 8) ** 0.8 * (1 - 0.35 * (1 - 408 / 432))
    # Of what size the collective is nobody knows: each waits 1.5 us for its writes, and shares HBM with them.
    assert gemm["predicted_us"] == pytest.approx(8 + 92 * shared / alone + 1.5)
    assert add["predicted_us"] == pytest.approx(8 + 42 / LEFT_OF_HBM + 1.5)
    assert trace["step_effect"]["no contention"]["recorded_added"] == pytest.approx(40 / 415)
    assert {step["step"] for step in trace["steps"]} == {0, 1}


def test_grids_of_products_follow_from_shapes(tmp_path):
    # 1,024 x 1,024 in tiles of 128 x 128 are 64 blocks.  Grids of a half to twice what the model says are one
    # choice of tiles away: of 1 and 10,000 blocks neither.
    def grids(blocks):
        grid = {**GRID, "grid": [blocks, 1, 1]}
        call = framework_call("aten::mm", 5, 20)
        call["args"] = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"]}
        path = write(tmp_path / "t.json", [call, *launched("ampere_sgemm", 6, 30, 100, corr=1, **grid)])
        return product_grids(import_traces([path]), A100)

    equal = next(n for n in (16, 32, 64, 128, 256, 512) if grids(n)["equal"] == 1.0)
    assert grids(equal) == {"products": 1, "equal": 1.0, "one_choice": 1.0}
    assert grids(2 * equal) == {"products": 1, "equal": 0.0, "one_choice": 1.0}
    assert grids(4 * equal) == {"products": 1, "equal": 0.0, "one_choice": 0.0}


def layer(at, length, behind="scale", blocks=1080):
    """An sgemm of so many us between kernels of 1 us, the last of them ``behind``, of so many blocks."""
    places = (("add", 0, 1), ("mul", 5, 1), ("sgemm", 10, length), ("mul", 200, 1), (behind, 205, 1))
    return [
        event
        for name, after, lasts in places
        for event in launched(
            name, at + after, at + after + 1, lasts, corr=at + after,
            **(GRID | {"grid": [blocks if name == behind else 1080, 1, 1]}),
        )
    ]  # fmt: skip


@pytest.mark.parametrize("behind, blocks, same", [("scale", 1080, 1), ("cast", 1080, 1), ("scale", 540, 0)])
def test_a_layer_has_another_size_where_the_kernel_behind_has_another_grid(tmp_path, behind, blocks, same):
    nccl = launched("ncclKernel_AllReduce", 1001, 1002, 900, corr=9000, stream=20, **NCCL)
    events = [*layer(100, 100), *layer(400, 100), *nccl, *layer(1100, 130, behind, blocks)]
    pairs = overlapped_kernels(import_traces([write(tmp_path / "t.json", events)]))
    found = [(one.alone_ps, one.recorded_ps) for one in pairs.kernels if one.name == "sgemm"]
    assert found == [(100 * US, 130 * US)] * same


def test_a_trace_becomes_a_table_that_overlap_reads(tmp_path, capsys):
    events = [
        *(event for at in (100, 400, 700) for event in layer(at, 100)),
        *launched("ncclKernel_AllReduce", 1000, 1010, 1500, corr=9000, stream=20, **NCCL),
        *layer(1100, 130), *layer(1400, 150),
    ]  # fmt: skip
    trace = write(tmp_path / "t.json", events, deviceProperties=[
        {"name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "computeMajor": 8}
    ])  # fmt: skip
    table = tmp_path / "own.csv"
    assert simcore("contention-study", trace, "--table", table) == 0
    capsys.readouterr()
    (row,) = csv.DictReader(table.open(encoding="utf-8"))
    # Three alone are too few without shapes: weak.  Beside: the median of 130 and 150.
    assert (row["kernel"], row["quality"], row["n_alone"]) == ("sgemm", "weak", "3")
    assert (float(row["alone_us"]), float(row["overlapped_us"])) == (100.0, 140.0)
    assert (row["n_blocks"], row["comm_grid"], row["collective"]) == ("1080", "24", "all_reduce")
    # The table of somebody else, 1% away alone and 2% beside: 100 / 99 - 1 and 140 / 143 - 1.
    other = tmp_path / "other.csv"
    text = table.read_text(encoding="utf-8").replace("weak", "good").replace("140.0", "143.0")
    other.write_text(text.replace("100.0", "99.0"), encoding="utf-8")
    assert simcore("contention-study", trace, "--table", table, "--overlap", other, "--json") == 0
    study = json.loads(capsys.readouterr().out)
    (agreed,) = study["agreement"].values()
    assert (agreed["rows"], agreed["found"]) == (1, 1)
    assert (agreed["alone"], agreed["beside"]) == pytest.approx((1 / 99, 3 / 143))
    assert len(study["rows"]) == 1


def test_what_if_a_channel_took_two_sms(tmp_path, capsys):
    path = two_steps(tmp_path / "t.json")
    assert simcore("contention-study", path, "--sms-per-channel", "2", "--json") == 0
    gemm, add = json.loads(capsys.readouterr().out)["traces"][0]["rows"]
    # 48 of 108 SMs gone: 480, 480 and 120 blocks (2 of 8 an SM) instead of 864 and 216, and 42 us on 60 SMs.
    alone = 1 + (2 / 8) ** 0.8 * (1 - 0.35 * (1 - 216 / 432))
    shared = 2 + (2 / 8) ** 0.8 * (1 - 0.35 * (1 - 120 / 432))
    assert gemm["predicted_us"] == pytest.approx(8 + 92 * shared / alone + 1.5)
    assert add["predicted_us"] == pytest.approx(8 + 42 * max(0.85 * 108 / 60, 1 / LEFT_OF_HBM) + 1.5)
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


def test_a_band_holds_nine_tenths_of_the_other_traces():
    # 20 kernels of 100 us alone whose recorded times are 101 to 120 us, predicted at 100: the 19th of 20 and
    # one more, 1.19.  Twice as long in the other trace: none within.  Its own band: 2.38, all within.
    def rows(name, scale):
        kernels = [
            OverlappedKernel(0, 0, "k", "other", 0, 0, scale * (100 + i) * US, 100 * US, 0.0, 3, 1.0, ())
            for i in range(1, 21)
        ]
        made = tuple(ContentionRow(kernel, None, 100 * US, 8.0, ()) for kernel in kernels)
        return TraceRows(name, A100, made, Pairs(tuple(kernels), (), 0, 0, 0))

    traces = [rows("a", 1), rows("b", 2)]
    first, second = bands(traces, [{"model": [100.0 * US] * 20}] * 2)
    assert second["model"]["at least 10 us"] == {"factor": pytest.approx(1.19), "inside": 0.0}
    assert first["model"]["at least 10 us"] == {"factor": pytest.approx(2.38), "inside": 1.0}
    assert bands(traces[:1], [{"model": [100.0 * US] * 20}]) == [{"model": {}}]
