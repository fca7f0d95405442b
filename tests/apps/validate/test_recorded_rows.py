"""Recorded kernels: what is read from a trace, scored and fitted.  Times in us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.apps.fit.memory import BY_CLASS, JOINT, fit_memory, predict_rows
from simcore.apps.measured.recorded_kernels import RecordedRow, read_recorded_rows
from simcore.cost import KernelShape
from simcore.errors import InputError
from tests.commands import simcore
from tests.imports.traces import launched, write

HALF = "c10::BFloat16"


def op(name: str, dims: list[Any], ts: float) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": [HALF] * len(dims)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": 8, "args": args}


def trace(path: Path, events: list[dict[str, Any]], gpu: str = "NVIDIA H100 80GB HBM3") -> str:
    return str(write(path, events, deviceProperties=[{"name": gpu, "numSms": 132}]))


EVENTS = [
    op("aten::add", [[1024, 8192], [1024, 8192]], 0),
    *launched("vectorized", 1, 10, 20, corr=1),
    op("aten::add", [[1024, 8192], [1024, 8192]], 40),
    *launched("vectorized", 41, 50, 22, corr=2),
    op("aten::add", [[1024, 8192], [1024, 8192]], 80),
    *launched("vectorized", 81, 90, 90, corr=3),  # beside a copy: it does not count
    *launched("Memcpy DtoD", 85, 100, 10, corr=4, stream=9),
    op("aten::neg", [[1024, 8192]], 200),
    *launched("void at::native::elementwise_kernel<128, 4>", 201, 210, 30, corr=5),
    op("aten::mm", [[4096, 1024], [1024, 2048]], 300),
    *launched("gemm", 301, 310, 40, corr=6),
    op("mine::secret", [[10]], 400),
    *launched("secret", 401, 410, 5, corr=7),
]


def test_undisturbed_kernels_with_known_shapes_are_rows(tmp_path: Path) -> None:
    rows = read_recorded_rows([trace(tmp_path / "t.json", EVENTS)])
    found = {row.kernel.name: row for row in rows}
    assert sorted(found) == ["aten::add", "aten::mm", "aten::neg"]
    add = found["aten::add"]
    assert add.count == 2
    assert add.seconds == pytest.approx(21e-6)  # median of 20 and 22
    assert (found["aten::neg"].kernel.strided, add.kernel.strided) == (True, False)
    assert {row.gpu for row in rows} == {"h100-sxm"}


def test_validate_scores_them_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simcore("validate", "--traces", trace(tmp_path / "t.json", EVENTS), "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert set(table["families"]) == {
        "elementwise h100-sxm < 100 us", "elementwise strided h100-sxm < 100 us",
        "gemm bfloat16 h100-sxm < 100 us",
    }  # fmt: skip
    assert table["overall"]["n"] == 3


def test_one_trace_cannot_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.json", EVENTS)
    assert simcore("validate", "--traces", path, "--leave-one-out") == 2
    assert "takes two of them" in capsys.readouterr().err
    assert simcore("calibrate", "hopper", "--traces", path) == 2
    assert "write all" in capsys.readouterr().err


def test_a_gpu_without_a_profile_or_a_trace_without_shapes_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no profile of GPU 'GTX 1080'"):
        read_recorded_rows([trace(tmp_path / "t.json", EVENTS, "GTX 1080")])
    bare = launched("gemm", 1, 10, 5, corr=1)
    with pytest.raises(InputError, match="no undisturbed kernel with recorded shapes"):
        read_recorded_rows([trace(tmp_path / "bare.json", bare)])


def test_a_fit_finds_what_made_the_rows() -> None:
    truth = {**JOINT, **{f"{op_class}.{name}": value for (op_class, name), value in BY_CLASS.items()}}
    truth |= {"index_instructions": 80.0, "ampere.prologue_s": 4e-6}
    kernels = [
        KernelShape(f"aten::{name}", op_class, "float32", ((size, 1000),), ((size, 1000),))
        for name, op_class in (("neg", "elementwise"), ("clone", "copy"))
        for size in (10, 1000, 30_000, 100_000)
    ]
    made = [RecordedRow("t", "a100-80", kernel, False, 1.0, 1) for kernel in kernels]
    rows = [
        RecordedRow("t", "a100-80", kernel, False, seconds, 1)
        for kernel, seconds in zip(kernels, predict_rows(made, truth), strict=True)
    ]
    values, error = fit_memory(rows, rounds=1)
    assert error < 0.02
    assert values["index_instructions"] == pytest.approx(80.0, rel=0.1)
    assert values["ampere.prologue_s"] == pytest.approx(4e-6, rel=0.1)
