"""The fit finds constants again that rows were made with; left-out sources and spreads are as stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcore.apps.fit.nccl import START, constants, fit_nccl, left_out_errors, own_errors, spread_of
from simcore.apps.measured.nccl import predicted_us, read_nccl_rows
from simcore.apps.measured.nccl_rows import NcclRow
from simcore.collectives.timing import GenerationTiming, parse_timing
from simcore.errors import InputError
from tests.apps.validate.test_nccl import ROW, write
from tests.commands import simcore

SIZES = [1 << e for e in range(9, 30, 3)]


def made_with(folder: Path, timing: GenerationTiming, scale: dict[str, float]) -> list[NcclRow]:
    """Rows of A100 nodes that took exactly what ``timing`` says, times each source's scale."""
    base = {**ROW, "gpu": "A100", "collective": "all_gather"}
    rows = [
        {**base, "source": source, "gpus": gpus, "bytes": size, "time_us": 1.0}
        for source in scale
        for gpus in (2, 8)
        for size in SIZES
    ]
    found, _ = read_nccl_rows(write(folder, *rows))
    times = predicted_us(found, {"ampere": timing})
    for row, found_row, us in zip(rows, found, times, strict=True):
        row["time_us"] = us * scale[found_row.source]
    return read_nccl_rows(write(folder, *rows))[0]


@pytest.fixture(scope="module")
def truth() -> GenerationTiming:
    text = "".join(
        f"[protocol.{name}]\nbase_s = {base}e-6\nnvlink_hop_s = {hop}e-6\nnetwork_hop_s = 3e-6\n"
        f'channel_bytes_per_s = {rate}e9\ntail_step = 0.4\nscatter_tail_step = 0.3\nsource = "made up"\n'
        for name, base, hop, rate in (("LL", 7.5, 0.9, 8), ("LL128", 15, 1.2, 20), ("Simple", 10, 4.5, 40))
    )
    others = {key: value for key, value in constants(START).items() if "." not in key}
    others |= {
        "nvls_base_s": 0.0,
        "nvls_efficiency": 1.0,
        "nvls_channel_bytes_per_s": 0.0,
        "nvls_warm_up_s": 0.0,
    }
    lines = [f"{key} = {value!r}" for key, value in others.items()]
    return parse_timing(text + "[collectives]\n" + "\n".join(lines) + '\nsource = "made up"\n', "test")


def test_a_fit_finds_what_rows_were_made_with(tmp_path: Path, truth: GenerationTiming) -> None:
    rows = made_with(tmp_path, truth, {"lab": 1.0})
    fit = fit_nccl("ampere", rows)
    assert fit.num_rows == len(rows)
    assert fit.mean_error < 0.01
    # Started 36 % and 50 % away.
    assert fit.timing.protocols["LL"].base_s == pytest.approx(7.5e-6, rel=0.1)
    assert fit.timing.protocols["LL"].nvlink_hop_s == pytest.approx(0.9e-6, rel=0.1)
    # No row crosses nodes: those hops stay where they came from.
    assert fit.timing.protocols["LL"].network_hop_s == START.protocols["LL"].network_hop_s


def test_a_source_is_predicted_from_the_others(tmp_path: Path, truth: GenerationTiming) -> None:
    # Everything takes 20 % longer at "slow": predicted from "lab" it is 1 / 1.2 - 1 = -17 % off.
    rows = made_with(tmp_path, truth, {"lab": 1.0, "slow": 1.2})
    errors = dict(left_out_errors(rows, lambda row: row.source))
    assert set(errors) == {"lab", "slow"}
    assert sum(error for _, error in errors["slow"]) / len(errors["slow"]) == pytest.approx(-1 / 6, abs=0.02)


def test_what_one_source_alone_measured_cannot_be_left_out(tmp_path: Path, truth: GenerationTiming) -> None:
    rows = made_with(tmp_path, truth, {"lab": 1.0})
    assert dict(left_out_errors(rows, lambda row: row.source)) == {"lab": []}


def test_a_gpu_is_predicted_from_the_others_of_its_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Rows that took what the constants in use say, on GB200 a tenth longer: each GPU from the other is
    # 1 / 1.1 - 1 = -9 % or +10 % off, where the constants in use are right about B200.  An A100 is alone.
    rows = [
        {**ROW, "gpu": gpu, "collective": "all_gather", "gpus": gpus, "bytes": size, "time_us": 1.0}
        for gpu in ("B200-SXM-180GB", "GB200")
        for gpus in (2, 4)
        for size in SIZES
    ]
    rows.append({**ROW, "gpu": "A100", "time_us": 9000.0})
    found, _ = read_nccl_rows(write(tmp_path, *rows))
    for row, us in zip(rows, predicted_us(found), strict=True):
        row["time_us"] = us * (1.1 if row["gpu"] == "GB200" else 1.0)
    path = write(tmp_path, *rows)
    assert simcore("validate", "--nccl", path, "--leave-one-out", "--json") == 0
    left_out = json.loads(capsys.readouterr().out)["left_out"]
    assert {name.partition("-")[0] for name in left_out} == {"B200", "GB200"}
    large = {name.partition("-")[0]: of for name, of in left_out.items() if name.endswith("from 1 MiB")}
    assert large["B200"]["in_fit"] < 1e-3
    assert large["B200"]["mape"] == pytest.approx(0.10, abs=0.03)
    assert large["GB200"]["mape"] == pytest.approx(1 / 11, abs=0.03)
    assert large["GB200"]["n"] == 2 * sum(size >= 1 << 20 for size in SIZES)


def test_spread_is_what_two_thirds_of_a_family_stay_within(tmp_path: Path, truth: GenerationTiming) -> None:
    rows = [row for row, _ in own_errors(made_with(tmp_path, truth, {"lab": 1.0}))]
    small = [row for row in rows if row.num_bytes < 64 << 10]
    # 2 groups x 512 B, 4 KiB, 32 KiB: errors 1..6 %, of which 68.3 % lie below 1 + 5 x 0.683 = 4.415 %.
    spread = spread_of(zip(small, (0.01, -0.02, 0.03, -0.04, 0.05, -0.06), strict=True))
    assert spread["one_node"]["all_gather"]["below_64_kib"] == pytest.approx(0.04415)
    assert spread["one_node"]["any"] == spread["one_node"]["all_gather"]


def test_the_command_prints_a_profile_that_can_be_read(
    tmp_path: Path, truth: GenerationTiming, capsys: pytest.CaptureFixture[str]
) -> None:
    made_with(tmp_path, truth, {"lab": 1.0})
    assert simcore("calibrate", "ampere", "--nccl", str(tmp_path / "nccl.csv")) == 0
    timing = parse_timing(capsys.readouterr().out, "printed")
    assert timing.protocols["LL"].base_s == pytest.approx(7.5e-6, rel=0.1)


def test_a_generation_without_rows_is_bad_input(
    tmp_path: Path, truth: GenerationTiming, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = made_with(tmp_path, truth, {"lab": 1.0})
    with pytest.raises(InputError, match="no healthy row of a hopper GPU"):
        fit_nccl("hopper", rows)
    assert simcore("calibrate", "hopper", "--nccl", str(tmp_path / "nccl.csv")) == 2
    assert "no healthy row" in capsys.readouterr().err
