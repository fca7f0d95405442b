"""Tables of kernels alone and beside communication."""

import json

import pytest

from tests.commands import simcore

OVERLAP = """\
trace,gpu,quality,kclass,kernel,grid,block,registers,shared_mem,alone_us,overlapped_us,collective,comm_kernel,comm_grid
a,A100-SXM4-40GB,good,gemm,ampere_sgemm_128x64_tn,432x1x1,128x1x1,122,0,102,132,,ncclDevKernel_AllReduce,24x1x1
a,A100-SXM4-40GB,weak,other,mystery,,,,,42,50,,ncclDevKernel_AllReduce,24x1x1
b,NVIDIA H100 80GB HBM3,ok,gemm,nvjet_tst,132x1x1,384x1x1,168,200000,102,202,allgather,,16
b,not recorded,ok,gemm,nvjet_tst,132x1x1,384x1x1,168,200000,102,202,allgather,,16
b,NVIDIA H100 80GB HBM3,ok,gemm,nvjet_tst,132x1x1,384x1x1,168,200000,0,202,allgather,,16
"""


def test_a_board_without_a_name_is_told_by_its_sms(tmp_path, capsys):
    # 432 blocks, 4 on each of 108 SMs: an A100, which has 84 left and waits for writes; 132 SMs: an H100.
    path = tmp_path / "overlap.csv"
    path.write_text(
        "gpu,num_sms,kernel,grid,blocks_per_sm,alone_us,overlapped_us,comm_grid\n"
        "not recorded,,foo,4320x1x1,40.0,42,50,24\n,132,foo,4320x1x1,,42,50,24\n,77,foo,4320x1x1,,42,50,24\n"
    )
    assert simcore("contention-study", "--overlap", path, "--json") == 0
    study = json.loads(capsys.readouterr().out)
    found = {row["gpu"]: row["predicted_us"] for row in study["rows"]}
    expected = {"A100-SXM4-80GB": 3.5 + 40 * 108 / 84, "H100-SXM5-80GB": 2 + 40 * 132 / 108}
    assert found == pytest.approx(expected)
    assert [row["id"] for row in study["skipped"]] == [2]


def test_a_table_of_kernels_beside_communication(tmp_path, capsys):
    path = tmp_path / "overlap.csv"
    path.write_text(OVERLAP, encoding="utf-8")
    assert simcore("contention-study", "--overlap", path, "--json") == 0
    study = json.loads(capsys.readouterr().out)
    times = {row["id"]: row["predicted_us"] for row in study["rows"]}
    # 2 us are the start, 1.5 us the wait for writes on Ampere.  128 threads of 122 registers are 4 warps of
    # 32 * 122, up to 4,096: 4 blocks an SM.  432 blocks are one wave of 108 * 4; on 84 SMs 336 and 96, which
    # are 2 of 4 an SM and 96 of 216 that make a half.  What has no grid is spread over 84 of 108 SMs.  132
    # tiles need a second wave of 16 on 132 - 16.
    few = (2 / 4) ** 0.8 * (1 - 0.35 * (1 - 96 / 216))
    last = 1 - 0.35 * (1 - 16 / 66)
    ampere = {0: 3.5 + 100 * (1 + few), 1: 3.5 + 40 * 108 / 84}
    assert times == pytest.approx({**ampere, 2: 2 + 100 * (1 + last)})
    assert study["overlap"]["good and ok"]["within"] == [0.0, 0.0, 1.0]  # 148 beside 132, 175 beside 202
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


def test_numbers_come_back_from_other_traces(tmp_path, capsys):
    # Two traces of an A100 beside 8 blocks of an all_reduce: 100 large tiles, one an SM, run on 92 SMs, their
    # second wave of 8 in 1 - 0.35 * (1 - 8 / 54) of the first; without partners all 100 had an SM.  A third
    # of small blocks cannot tell; what it says of partners, it says as well without them.  All wait 1.5 us.
    last = 1 - 0.35 * (1 - 8 / 54)
    rows = [
        f"{name},A100-SXM4-40GB,good,gemm,cutlass_gemm,{grid}x1x1,256x1x1,248,{shared},102,{recorded},,"
        f"ncclDevKernel_AllReduce,8x1x1"
        for name, grid, shared, recorded in (
            ("a", 100, 147_456, 3.5 + 100 * (1 + last)), ("b", 100, 147_456, 3.5 + 100 * (1 + last)),
            ("c", 64, 0, 103.5),
        )
    ]  # fmt: skip
    path = tmp_path / "overlap.csv"
    path.write_text("\n".join([OVERLAP.splitlines()[0], *rows]) + "\n", encoding="utf-8")
    assert simcore("contention-study", "--overlap", path, "--left-out", "--json") == 0
    study = json.loads(capsys.readouterr().out)
    found = study["left_out"]["table"]
    assert study["left_out"]["traces"] == {}
    for name in ("a", "b", "c"):
        assert found[name]["fitted"]["partners"]
        assert found[name]["fitted"]["full_us"] == 2.0  # the least that waits 1.5 us, too
        assert found[name]["fitted"]["in_common"] == 0.35
        assert found[name]["fitted"]["saturating"] == 1.0  # nobody tells
        assert found[name]["within"] == [1.0, 1.0, 1.0]
    assert found["a"]["no_contention_within"] == [0.0, 0.0, 0.0]
    assert simcore("contention-study", "--overlap", path, "--left-out") == 0
    told = "a: partners 1, peers 1, draws 1, full_us 2, small_grids 1, fills 1, staged 1, waits 1"
    assert told in capsys.readouterr().out
    # Without partners all 100 tiles have an SM and wait 1.5 us; without fences they do not.
    assert simcore("contention-study", "--overlap", path, "--worth", "--json") == 0
    study = json.loads(capsys.readouterr().out)
    found = {name: scores["a"] for name, scores in study["worth"]["table"].items()}
    assert found[""]["predicted_added"] == pytest.approx((1.5 + 100 * last) / 102)
    assert found["partners"]["predicted_added"] == pytest.approx(1.5 / 102)
    assert found["all fences"]["predicted_added"] == pytest.approx(100 * last / 102)
    assert found["all of them"]["predicted_added"] == 0.0
    assert simcore("contention-study", "--overlap", path, "--worth") == 0
    assert "Without each mechanism, table" in capsys.readouterr().out
