"""Measured kernel times in place of formulas: --set workload.kernel_times=FILE.csv."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from simcore.graph import GraphBuilder, save_graph

SHAPES = {"in_shapes": "[[512,512],[512,512]]", "out_shapes": "[[512,512]]"}


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """Ten equal products on one GPU."""
    build = GraphBuilder(1, name="product")
    template = build.template("fwd")
    for _ in range(10):
        template.compute(
            "aten::mm", op_class="gemm", dtype="bfloat16", flops=2 * 512**3,
            in_shapes=SHAPES["in_shapes"], out_shapes=SHAPES["out_shapes"],
        )  # fmt: skip
    build.program([0], [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "product")
    return tmp_path / "product"


def table(path: Path, time_column: str = "time_us", time: object = 700) -> Path:
    cells = (json.dumps(SHAPES[name]) for name in ("in_shapes", "out_shapes"))
    row = ",".join(("gemm", "bfloat16", *cells, str(time)))
    path.write_text(f"op_class,dtype,in_shapes,out_shapes,{time_column}\n{row}\n")
    return path


def test_a_table_overrides_the_formula_and_is_named(
    run: Callable[..., Result], product: Path, tmp_path: Path
) -> None:
    times = table(tmp_path / "mine.csv")
    result = run("run-sim", product, "--json", "--set", f"workload.kernel_times={times}")
    assert result.exit_code == 0, result.output
    # Ten products of 700 us, and the launch of the first.
    assert json.loads(result.stdout)["step_time_s"] == pytest.approx(7e-3, abs=2e-5)
    record = json.loads(Path("runs/latest/run.json").read_text())
    assert any("mine.csv" in text for text in record["assumptions"])


def test_a_table_of_other_shapes_says_so(run: Callable[..., Result], product: Path, tmp_path: Path) -> None:
    times = table(tmp_path / "mine.csv")
    times.write_text(times.read_text().replace("512", "513"))
    result = run("run-sim", product, "--json", "--set", f"workload.kernel_times={times}")
    assert result.exit_code == 0, result.output
    assert "mine.csv covers no kernel of this workload" in json.loads(result.stdout)["warnings"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"time_column": "time"}, "none of the columns time_s, time_ms"),
        ({"time": -1}, "positive"),
        ({"time": "x"}, "x"),
    ],
)
def test_a_bad_table_is_bad_input(
    run: Callable[..., Result], product: Path, tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    times = table(tmp_path / "mine.csv", **changes)
    result = run("run-sim", product, "--set", f"workload.kernel_times={times}")
    assert result.exit_code == 2
    assert "mine.csv" in result.stderr
    assert reason in result.stderr
