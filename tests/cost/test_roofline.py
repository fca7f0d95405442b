from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from simcore.cost import ORIGINS, KernelShape, MeasuredTable, RooflineCost
from simcore.cost.parameters import parse_parameters
from simcore.errors import InputError
from simcore.graph.ops import OpKind
from simcore.hardware import load_gpu
from tests.cost.toys import TOY, TOY_GPU, op_table

MM: dict[str, object] = {
    "name": "aten::mm.default",
    "op_class": "gemm",
    "dtype": "bfloat16",
    "in_shapes": "[[1000,5000],[5000,1000]]",
    "out_shapes": "[[1000,1000]]",
    "flops": 2 * 1000 * 1000 * 5000,
}
ADD: dict[str, object] = {
    "name": "aten::add",
    "dtype": "float32",
    "bytes_read": 2_000_000,
    "bytes_written": 10**6,
}


def origins(table_rows: list[dict[str, object]], cost: RooflineCost) -> list[str]:
    return [ORIGINS[code] for code in cost.demands(op_table(*table_rows)).origin]


def test_columns_of_a_product_and_an_addition() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    demands = cost.demands(op_table(MM, ADD, MM))
    # The product: one wave of 100 us (see test_gemm); the addition: 3 MB at 1 TB/s = 3 us; + 1 us to start.
    assert demands.alone_ps(TOY_GPU.hbm_bytes_per_s).tolist() == [101_000_000, 4_000_000, 101_000_000]
    assert demands.blocks.tolist() == [100, 0, 100]
    assert demands.fixed_ps.tolist() == [1_000_000] * 3
    assert demands.hbm_bytes.tolist() == [22_000_000, 3_000_000, 22_000_000]
    assert [ORIGINS[code] for code in demands.origin] == ["fitted", "roofline", "fitted"]


def test_inefficiency_occupies_hbm() -> None:
    gpu = replace(TOY_GPU, hbm_efficiency=0.5)
    demands = RooflineCost(gpu, parameters=TOY).demands(op_table(ADD))
    # 3 MB at half of 1 TB/s: 6 us of HBM time, as 6 MB at peak would take; and 1 us to start.
    assert demands.hbm_bytes.tolist() == [6_000_000]
    assert demands.alone_ps(gpu.hbm_bytes_per_s).tolist() == [7_000_000]


def test_other_kinds_and_unused_rows_demand_nothing() -> None:
    table = op_table({"name": "nccl::all_reduce", "kind": int(OpKind.COLLECTIVE)}, MM, MM)
    demands = RooflineCost(TOY_GPU, parameters=TOY).demands(table, np.array([True, False, True]))
    assert demands.sm_ps.tolist() == [0, 0, 100_000_000]
    assert demands.fixed_ps.tolist() == [0, 0, 1_000_000]


def test_recorded_duration_wins_to_the_picosecond() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    rows = [{**MM, "recorded_ps": 12_345_678}, {**ADD, "recorded_ps": 500_001}, {**ADD, "recorded_ps": 0}]
    demands = cost.demands(op_table(*rows))
    assert demands.alone_ps(TOY_GPU.hbm_bytes_per_s).tolist() == [12_345_678, 500_001, 0]
    assert origins(rows, cost) == ["recorded"] * 3


def test_measured_shape_overrides_the_formula(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(
        "op_class,dtype,in_shapes,out_shapes,time_us\n"
        'gemm,bf16,"[[1000,5000],[5000,1000]]","[[1000,1000]]",123.5\n'
    )
    cost = RooflineCost(TOY_GPU, tables=[MeasuredTable.load(path)], parameters=TOY)
    wider = {
        **MM,
        "out_shapes": "[[1000,2000]]",
        "in_shapes": "[[1000,5000],[5000,2000]]",
        "flops": 2 * 10**10,
    }
    demands = cost.demands(op_table(MM, wider))
    assert demands.alone_ps(TOY_GPU.hbm_bytes_per_s).tolist() == [123_500_000, 201_000_000]
    assert origins([MM, wider], cost) == ["measured", "fitted"]


def test_a_measured_kernel_is_found_by_what_its_shapes_mean(tmp_path: Path) -> None:
    query = "[[2,8,512,64],[2,8,512,64],[2,8,512,64]]"
    path = tmp_path / "measured.csv"
    path.write_text(
        "op,op_class,dtype,in_shapes,out_shapes,time_us\n"
        f'attention,attention_fwd,bf16,"{query}","[[2,8,512,64]]",10\n'
        f'attention_full,attention_fwd,bf16,"{query}","[[2,8,512,64]]",20\n'
        'layer_norm,norm_fwd,bf16,"[[2048,1024]]","[[2048,1024]]",30\n'
        'mm,gemm,bf16,"[[64,128],[128,256]]","[[64,256]]",40\n'
    )
    table = MeasuredTable.load(path)
    heads = ((2, 8, 512, 64),) * 3
    # With the sums of exponentials that training keeps; causal or not.
    flash = KernelShape("flash2_attention_fwd", "attention_fwd", "bfloat16", heads, (heads[0], (2, 8, 512)))
    assert table.lookup(flash) == pytest.approx(10e-6)
    assert table.lookup(replace(flash, name="flash2_attention_full_fwd")) == pytest.approx(20e-6)
    # With weight, bias and statistics, and rows in two dimensions.
    shapes = ((1024, 2, 1024), (1024,), (1024,)), ((1024, 2, 1024), (1024, 2, 1), (1024, 2, 1))
    norm = KernelShape("aten::native_layer_norm", "norm_fwd", "bfloat16", *shapes)
    assert table.lookup(norm) == pytest.approx(30e-6)
    # A bias goes along; a product that adds to fp32 sums or scales by blocks is another kernel.
    product = KernelShape("aten::addmm", "gemm", "bfloat16", ((256,), (64, 128), (128, 256)), ((64, 256),))
    assert table.lookup(product) == pytest.approx(40e-6)
    assert table.lookup(replace(product, name="wgrad_gemm_accum")) is None
    assert table.lookup(replace(product, name="blockwise_gemm")) is None
    assert table.lookup(replace(product, dtype="float16")) is None


def test_curve_interpolates_between_measured_sizes_only(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(
        "op_class,dtype,bytes,time_us\nelementwise,float32,1000000,2\nelementwise,float32,4000000,8\n"
    )
    table = MeasuredTable.load(path)
    kernel = KernelShape(
        "aten::add", "elementwise", "float32", (), (), bytes_read=1_000_000, bytes_written=1_000_000
    )
    # Proportional to bytes between the two points: 2 MB take 4 us.
    assert table.lookup(kernel) == pytest.approx(4e-6)
    assert table.lookup(replace(kernel, bytes_read=4_000_000)) is None
    assert table.lookup(replace(kernel, bytes_read=3_000_000)) == pytest.approx(8e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op_class,dtype,bytes,time\ngemm,bf16,1,1\n", "none of the columns time_s, time_ms"),
        ("op_class,bytes,time_us\ngemm,1,1\n", "no column 'dtype'"),
        ("op_class,dtype,bytes,time_us\ngemm,bf61,1,1\n", "did you mean 'bf16'"),
        ("op_class,dtype,bytes,time_us\ngemm,bf16,1,nan\n", "time_us is .nan., no number"),
        ("op_class,dtype,bytes,time_us\ngemm,bf16,1,abc\n", "line 2"),
        ("op_class,dtype,bytes,time_us\ngemmm,bf16,1,1\n", "line 2: unknown op_class.*did you mean 'gemm'"),
        ("op_class,dtype,bytes,time_us\ngemm,bf16,0,1\n", "neither shapes nor bytes"),
        (
            'op_class,dtype,in_shapes,out_shapes,time_us\ngemm,bf16,"[[0,4],[4,4]]","[[0,4]]",1\n',
            "dimension of 0",
        ),
        ('op_class,dtype,in_shapes,out_shapes,time_us\ngemm,bf16,"[[-1,4]]","[[1,4]]",1\n', "line 2.*-1"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        MeasuredTable.load(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**MM, "dtype": "bfloat61"}, "did you mean 'bfloat16'"),
        ({**MM, "op_class": "gem"}, "did you mean 'gemm'"),
        ({**MM, "in_shapes": "[[1000,-5000]]"}, "-5000"),
        ({**MM, "in_shapes": "1000x5000"}, "JSON"),
        ({**MM, "dtype": "int8"}, "no int8 math"),
    ],
)
def test_bad_rows_are_refused(row: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RooflineCost(TOY_GPU, parameters=TOY).demands(op_table(row))


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'tf32'"):
        RooflineCost(TOY_GPU, "tf23", parameters=TOY)
    with pytest.raises(InputError, match="did you mean 'hopper'"):
        RooflineCost(replace(load_gpu("h800"), generation="hoper"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tail_share", "tail_shares", "did you mean 'tail_share'"),
        ("tile_k = 64\n", "", r"\[gemm.tensor\]: key 'tile_k' is missing"),
        ('persistent = "static"', 'persistent = "statik"', "did you mean 'static'"),
        ("hbm_share = 0.", "hbm_share = 7.", "is a share and must be at most 1"),
        ("prologue_s = ", "prologue_s = -", "must be a number >= 0"),
        ("[gemm.simt]", "[gem.simt]", "unknown key 'gem'; did you mean 'gemm'"),
        ("generation = ", "generation ", "TOML|Expected"),
    ],
)
def test_bad_constants_are_refused(old: str, new: str, message: str) -> None:
    text = (resources.files("hardware_profiles") / "cost" / "hopper.toml").read_text()
    assert old in text
    with pytest.raises(InputError, match=message):
        parse_parameters(text.replace(old, new, 1), "hopper.toml")


def test_fifty_thousand_ops_are_priced() -> None:
    rows = []
    for shape in range(300):
        m, n = 256 + 64 * (shape % 20), 512 + 64 * (shape // 20)
        shapes = {"in_shapes": json.dumps([[m, 1024], [1024, n]]), "out_shapes": json.dumps([[m, n]])}
        rows.append({**MM, **shapes, "flops": 2 * m * n * 1024})
    table = op_table(*(rows * 170))
    cost = RooflineCost(load_gpu("h800"))
    demands = cost.demands(table)
    assert (demands.sm_ps > 0).all()


def test_a_kernel_of_minutes_is_refused() -> None:
    # 10^10 flops at 1 Mflop/s: 10,000 s; an addition of 3 MB at 1 kB/s: 3,000 s.
    slow = replace(TOY_GPU, peak_flops={"bf16": 1e6})
    with pytest.raises(InputError, match=r"'aten::mm.default' would take 1e\+04 s on one toy"):
        RooflineCost(slow, parameters=TOY).demands(op_table(MM))
    thin = replace(TOY_GPU, hbm_bytes_per_s=1e3, l2_bytes_per_s=1e3)
    with pytest.raises(InputError, match=r"'aten::add' would take 3e\+03 s on one toy"):
        RooflineCost(thin, parameters=TOY).demands(op_table(ADD))
