"""validate.py --nccl: rows are read as nccl-tests writes them, predicted, or refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simcore.apps.measured.nccl import plan_rows, read_nccl_rows, tells_constants
from simcore.apps.measured.nccl_rows import NcclRow
from simcore.collectives import NcclPlanner
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from tests.commands import simcore

COLUMNS = (
    "source", "gpu", "nodes", "gpus", "collective", "bytes", "time_us", "algbw_GBps", "busbw_GBps", "notes",
)  # fmt: skip
ROW = {
    "source": "lab", "gpu": "H100-SXM-80GB", "nodes": 1, "gpus": 8, "collective": "all_reduce",
    "bytes": 1 << 30, "time_us": 4029.4, "notes": "float; out-of-place",
}  # fmt: skip


def write(folder: Path, *rows: dict[str, object]) -> str:
    path = folder / "nccl.csv"
    lines = [",".join(COLUMNS)]
    lines += [",".join(f'"{row.get(name, "")}"' for name in COLUMNS) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def read(folder: Path, *rows: dict[str, object]) -> tuple[list[NcclRow], list[str]]:
    found, skipped = read_nccl_rows(write(folder, *rows))
    return found, [entry["reason"] for entry in skipped]


def test_json_is_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path,
        ROW,
        {**ROW, "gpu": "TPU v5p", "time_us": 1},
        {**ROW, "notes": "32B row outlier", "bytes": 32, "time_us": 68.1},
        {**ROW, "collective": "alltoall", "bytes": 256 << 20, "time_us": 763.7},
    )
    assert simcore("validate", "--nccl", path, "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in table["rows"]] == [2, 4, 5]
    first = table["rows"][0]
    assert (first["bytes"], first["measured"], first["algorithm"]) == (str(1 << 30), 4029.4, "nvls")
    assert first["error"] == pytest.approx(first["predicted"] / 4029.4 - 1)
    assert 0 < first["relative_error"] < 0.5
    assert table["skipped"][0]["reason"].startswith("no profile of GPU 'TPU v5p'")
    assert table["skipped"] == [{"id": 3, "reason": table["skipped"][0]["reason"]}]
    assert set(table["families"]) == {
        "h100 1 node all_reduce >= 64 MiB",
        "h100 1 node all_to_all >= 64 MiB",
        "apart: h100 1 node all_reduce < 64 KiB",
    }
    assert set(table["overall"]) == {"n", "mape", "median", "p90", "max"}
    # The outlier stands apart: it is in rows and in a family of its own, not in overall.
    assert table["rows"][1]["apart"] == "the publisher's notes call this size an outlier"
    assert table["overall"]["n"] == 2
    assert table["overall"]["max"] < 0.1


def test_text_names_goals_and_rows_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        simcore(
            "validate", "--nccl", write(tmp_path, ROW, {**ROW, "notes": "torch-profiler"}), "--worst", "1"
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "one node, from 1 MiB" in out
    assert "\n     3 apart: h100" in out
    assert "the wait for the last rank" in out


def test_text_has_errors_by_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mega = {**ROW, "nodes": 2, "gpus": 16, "notes": "A3 Mega", "bytes": 4 << 20, "time_us": 364.6}
    assert simcore("validate", "--nccl", write(tmp_path, ROW, mega), "--worst", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    name = lines.index("H100, tcpxo, 8 x 200 Gb/s, 2 nodes, from 1 MiB")  # too long to stand beside figures
    assert float(lines[name + 1].split()[-1]) < 10
    assert max(map(len, lines)) <= 80
    # What runs on one node has no fabric.
    assert not any(line.startswith("H100, infiniband") for line in lines)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"collective": "all_reduse"}, "unknown collective 'all_reduse'; did you mean 'all_reduce'"),
        ({"bytes": "many"}, "bytes = 'many' is not a number"),
        ({"bytes": -8}, "bytes = '-8' must be a number above 0"),
        ({"bytes": 0.5}, "bytes = '0.5' must be a whole number"),
        ({"time_us": "nan"}, "time_us = 'nan' is not a number"),
        ({"time_us": ""}, "no time and no bandwidth"),
        ({"nodes": 9}, "8 GPUs on 9 node(s) are no group"),
        ({"gpus": 1}, "1 GPUs on 1 node(s) are no group"),
        ({"nodes": 10**6, "gpus": 10**6}, "1000000 GPUs are more than the 131072"),
        ({"bytes": 10**20}, "bytes are more than the 1125899906842624"),
        ({"time_us": "1e-308"}, "time_us = 1e-308 is not from 0.01 to 1e+09 us"),
        ({"time_us": "inf"}, "time_us = 'inf' is not a number"),
        ({"notes": "NCCL_ALGO=nvls NCCL_PROTO=LL"}, "'nvls' does not run under protocol 'LL'"),
        ({"notes": "NCCL_MAX_NCHANNELS=9999"}, "max_channels must be between 1 and 64, not 9999"),
        ({"gpu": "GH200"}, "no profile of GPU 'GH200'; there are gb300"),
        ({"gpu": "MI250X"}, "no profile of GPU 'MI250X'"),
        ({"gpu": ""}, "no profile of GPU ''"),
        ({"nodes": ""}, "nodes = '' is not a number"),
        ({"nodes": 2, "gpus": 17}, "9 GPUs per node, but a h100 node has 8"),
        ({"gpus": 16}, "16 GPUs per node, but a h100 node has 8"),
        ({"notes": "NCCL_ALGO=RNG"}, "unknown NCCL algorithm 'RNG'; did you mean 'ring'"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    rows, reasons = read(tmp_path, {**ROW, **change}, ROW)
    assert len(rows) == 1
    assert reason in reasons[0]


def test_a_row_with_another_number_of_cells_is_refused(tmp_path: Path) -> None:
    path = Path(write(tmp_path, ROW))
    path.write_text(path.read_text() + "lab,H100-SXM-80GB\n")
    with pytest.raises(InputError, match=r"line 3: 2 values; the first line names 10 columns"):
        read_nccl_rows(path)


@pytest.mark.parametrize("content", [None, "gpu,nodes\n", "gpu,nodes,gpus,collective,bytes\n"])
def test_a_missing_file_or_column_is_bad_input(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_text(content)
    assert simcore("validate", "--nccl", path) == 2
    assert ("rows.csv" in capsys.readouterr().err) is True


def test_time_follows_from_a_bandwidth(tmp_path: Path) -> None:
    # 1 GB at algbw 100 GB/s: 10 ms; busbw of an 8-GPU all_reduce is 2 x 7/8 of that: 175 GB/s.
    for column, value in (("algbw_GBps", 100), ("busbw_GBps", 175)):
        rows, _ = read(tmp_path, {**ROW, "bytes": 10**9, "time_us": "", column: value})
        assert rows[0].measured_us == pytest.approx(10_000)


def test_the_hardware_follows_from_names_and_notes(tmp_path: Path) -> None:
    rows, _ = read(
        tmp_path,
        {**ROW, "notes": "int8; dir says nccl 2.27.3, version column 2.29.2"},
        {**ROW, "gpu": "A100-SXM4-40GB", "nodes": 2, "gpus": 16},
        {**ROW, "gpu": "H800", "source": "lab (NCCL 2.22.3)", "notes": "NCCL_ALGO=RING"},
        {**ROW, "gpu": "Tesla V100-SXM2-32GB"},
        {**ROW, "gpu": "A100-PCIE-40GB"},
        {**ROW, "gpu": "GB200", "gpus": 4},
    )
    setups = [row.setup for row in rows]
    assert [setup.cluster for setup in setups] == ["h100", "a100-40gb", "h800", "v100", "a100-pcie", "gb200"]
    assert [setup.version for setup in setups] == ["2.29.2", None, "2.22.3", None, None, None]
    plans = plan_rows(rows)
    # A switch does not add int8: NCCL runs a ring.  Two nodes of 8 GPUs each are ranks 0-7 and 8-15; NCCL
    # expects 8 x 23.6 / 2 GB/s of trees, as its search finds 8, and 192 / 1.875 of rings, which NICs bound.
    # Four GPUs on switches that add: rings (simcore/collectives/tuner.py, _nvls_search).
    assert [plan.algorithm for plan in plans] == ["ring"] * 6
    assert plans[1].ranks == tuple(range(16))


def test_groups_need_not_be_even(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, {**ROW, "nodes": 3, "gpus": 8}, {**ROW, "gpus": 5})
    assert [plan.ranks for plan in plan_rows(rows)] == [(0, 1, 2, 8, 9, 10, 16, 17), (0, 1, 2, 3, 4)]


def test_send_recv_is_a_ring_of_messages_and_lasts_as_its_slowest(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, *({**ROW, "collective": "sendrecv", "nodes": n, "gpus": 8 * n} for n in (1, 2)))
    within, between = plan_rows(rows)
    planner = NcclPlanner(Topology(load_cluster("h100-16")))
    assert within.alone_ps == planner.plan_p2p(1 << 30, 0, 1).alone_ps
    assert between.alone_ps == planner.plan_p2p(1 << 30, 7, 8).alone_ps > within.alone_ps


def test_notes_say_what_was_forced(tmp_path: Path) -> None:
    notes = (
        "NCCL_ALGO=^NVLSTree",
        "NCCL_NVLS_ENABLE=0",
        "NCCL_MAX_NCHANNELS=4 NCCL_ALGO=Ring",
        "EFA 3200 Gb/s",
    )
    rows, _ = read(tmp_path, *({**ROW, "nodes": 2, "gpus": 16, "bytes": 64, "notes": note} for note in notes))
    forced = plan_rows([replace(row, num_bytes=1 << 30) for row in rows])
    assert [plan.algorithm for plan in forced] == ["ring", "ring", "ring", "nvls_tree"]
    assert forced[2].channels == 4
    # Two hops of a tree of two nodes, each 27 us instead of 2.8.
    plain, slow = plan_rows([rows[1], rows[3]])
    assert slow.latency_ps - plain.latency_ps == pytest.approx(2 * 24.2e6)
    assert [row.setup.cluster for row in rows] == ["h100", "h100", "h100", "h100-efa"]


def test_a_row_is_what_the_planner_says(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, {**ROW, "nodes": 4, "gpus": 8})
    planner = NcclPlanner(Topology(load_cluster("h100-32")))
    expected = planner.plan("all_reduce", 1 << 30, (0, 1, 8, 9, 16, 17, 24, 25))
    assert plan_rows(rows)[0].alone_ps == expected.alone_ps


def test_what_no_healthy_fabric_explains_stands_apart(tmp_path: Path) -> None:
    series = [{**ROW, "nodes": 2, "gpus": 16, "bytes": 1 << e, "time_us": us} for e, us in (
        (3, 70.0), (5, 25.0), (20, 72.0), (21, 80.0), (22, 120.0),
    )]  # fmt: skip
    wider = {**ROW, "nodes": 4, "gpus": 32, "bytes": 1 << 22, "time_us": 100.0, "source": "other"}
    efa = {**ROW, "nodes": 2, "gpus": 16, "notes": "EFA 3200 Gb/s per node (aws-ofi-nccl 1.7.3: old stack)"}
    sharp = {**ROW, "nodes": 2, "gpus": 16, "notes": "in-network SHARP"}
    rows, _ = read(tmp_path, *series, wider, efa, sharp)
    reasons = [row.apart for row in rows]
    # 8 bytes take longer than 32; 4 MiB on 2 nodes take 20 % longer than on 4.
    assert [reason is not None for reason in reasons] == [True, False, False, False, True, False, True, True]
    assert reasons[0] is not None and "takes longer than 32 bytes" in reasons[0]
    assert reasons[4] is not None and "the same on 4 nodes (100 us)" in reasons[4]
    assert reasons[6] is not None and reasons[6].startswith("an old release of the fabric's plugin")
    assert reasons[7] is not None and reasons[7].startswith("SHARP")


def test_rows_of_clouds_have_their_own_fabric_and_tell_nothing_of_a_generation(tmp_path: Path) -> None:
    small = {**ROW, "nodes": 2, "gpus": 16, "bytes": 1 << 20}
    mega = {**small, "notes": "GCP A3 Mega", "time_us": 203.2}
    rows, _ = read(
        tmp_path, {**small, "time_us": 70.0}, mega, {**mega, "gpu": "H200"}, {**mega, "gpu": "V100"}
    )
    assert [row.setup.cluster for row in rows] == ["h100", "h100-tcpxo", "h100-tcpxo", "v100"]
    assert [row.setup.gpu for row in rows] == [None, "h100-sxm", "h200", None]
    assert [tells_constants(row) for row in rows] == [True, False, False, True]
    # Twice as long as the same over InfiniBand, and still no disturbance.
    assert [row.apart for row in rows[:2]] == [None, None]
    assert rows[1].family == "h100-tcpxo 2 nodes all_reduce 1 - 64 MiB"


def test_no_file_no_rows() -> None:
    with pytest.raises(InputError, match="cannot read NCCL measurements"):
        read_nccl_rows("nowhere.csv")
