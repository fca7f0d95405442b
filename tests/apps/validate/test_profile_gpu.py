"""Measured tables of a GPU to a profile.

The sample is synthetic: written here from known constants, which the fit must find; nothing was measured.
"""

import csv
import json
import math
from dataclasses import replace

import pytest

from simcore.apps.fit.profile.fit import base_profile, fit_numbers, fit_overlaps
from simcore.apps.fit.profile.tables import read_measured
from simcore.cost.kernel import KernelShape
from simcore.cost.table import MeasuredTable
from simcore.errors import InputError
from simcore.hardware import load_gpu
from tests.commands import simcore
from workloads.profiling import measure
from workloads.profiling.cases import COPY_BLOCKS, KernelCase, kernel_cases, num_elements, overlap_cases
from workloads.profiling.sweep import KERNEL_COLUMNS, OVERLAP_COLUMNS, Results, columns_of, measure_gpu

SMS, PEAK, HBM = 108, 312e12, 2039e9  # A100 80 GB: datasheet
CASES = [case for case in kernel_cases() if case.dtype != "float8_e4m3fn"]  # an A100 has no fp8
MATH, STREAM, LOST = 0.8, 0.85, 1.5  # shares of them, and SMs that a copying block takes


def alone_us(case):
    if case.flops:
        return case.flops / (MATH * PEAK) * 1e6
    return (case.num_bytes or 1 << 20) / (STREAM * HBM) * 1e6


def write_sample(tmp_path):
    device = {"gpu": "NVIDIA A100-SXM4-80GB", "num_sms": SMS, "measured": "never: synthetic"}
    (tmp_path / "device.json").write_text(json.dumps(device))
    launch = {"launch_us": 5.0, "round_trip_us": 14.0, "stream_spacing_us": 2.0, "queue_length": 1023}
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    kernels = Results(tmp_path / "kernels.csv", KERNEL_COLUMNS)
    for case in CASES:
        kernels.write([{**columns_of(case), "time_us": alone_us(case)}])
    overlaps = Results(tmp_path / "overlap.csv", OVERLAP_COLUMNS)
    for case in overlap_cases():
        for k in COPY_BLOCKS:
            times = {"alone_us": alone_us(case), "beside_us": alone_us(case) * SMS / (SMS - LOST * k)}
            overlaps.write([{**columns_of(case), **times, "copy_blocks": k, "copy_bytes_per_s": 1e10 * k}])


@pytest.fixture
def folder(tmp_path):
    write_sample(tmp_path)
    return tmp_path


def change(path, line, **values):
    rows = list(csv.DictReader(path.open()))
    rows[line] |= values
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_the_fit_finds_the_constants_of_the_sample(folder):
    measured = read_measured(folder)
    found = {one.key: one.value for one in fit_numbers(measured, base_profile(measured.gpu))}
    assert found == {
        "gemm_efficiency": pytest.approx(MATH),
        "hbm_efficiency": pytest.approx(STREAM),
        "launch_overhead_s": 5.0,
        "launch_latency_s": pytest.approx(14 - 5 - 2),
    }
    overlaps = fit_overlaps(measured)
    assert len(overlaps) == len(overlap_cases())
    for one in overlaps:
        assert one.sms == pytest.approx(LOST)
        assert one.worst_residual == pytest.approx(0, abs=1e-9)


def test_the_cost_model_reads_the_measured_table(folder):
    table = MeasuredTable.load(folder / "kernels.csv")
    gemm = next(case for case in kernel_cases() if case.op == "mm")
    kernel = KernelShape("mm", "gemm", gemm.dtype, gemm.in_shapes, gemm.out_shapes)
    assert table.lookup(kernel) == pytest.approx(alone_us(gemm) * 1e-6)
    # Between the points of a curve: bytes over the rate of the sample.
    moved = KernelShape("add", "elementwise", "bfloat16", (), (), bytes_read=100 << 20)
    assert table.lookup(moved) == pytest.approx((100 << 20) / (STREAM * HBM))


def test_the_command_writes_a_profile_that_can_be_loaded(folder, capsys):
    assert simcore("profile-gpu", "--fit-only", folder, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["gpu"], shown["base"]) == ("NVIDIA A100-SXM4-80GB", "a100-80")
    profile = load_gpu(str(folder / "profile.toml"))
    base = load_gpu("a100-80")
    assert profile.gemm_efficiency == pytest.approx(MATH)
    assert profile.launch_overhead_s == pytest.approx(5e-6)
    assert "scripts/profile_gpu.py on NVIDIA A100-SXM4-80GB" in profile.sources["hbm_efficiency"]
    for key in ("gemm_efficiency", "hbm_efficiency", "launch_overhead_s", "launch_latency_s"):
        base = replace(base, **{key: getattr(profile, key)})
    assert replace(profile, name=base.name, sustained=base.sustained) == base
    assert simcore("profile-gpu", "--fit-only", folder) == 0
    assert "loses 1.50 SMs a copying block" in capsys.readouterr().out


def test_what_was_measured_is_scored(folder, capsys):
    """Twice the time that the formulas say, and each row is half of it off."""
    assert simcore("validate", "--kernels", str(folder), "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == len(CASES)
    for line, row in enumerate(rows):
        change(folder / "kernels.csv", line, time_us=str(2 * row["predicted"]))
    assert simcore("validate", "--kernels", str(folder), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["mape"] == pytest.approx(0.5)
    assert {row["op_class"] for row in found["rows"]} == {case.op_class for case in CASES}
    change(folder / "kernels.csv", 0, op="fly")
    change(folder / "kernels.csv", len(CASES) - 1, op_class="convo")
    assert simcore("validate", "--kernels", str(folder)) == 0
    assert "unknown op_class 'convo'; did you mean 'conv'" in capsys.readouterr().out


def test_a_sweep_goes_on_where_it_was(folder):
    done = Results(folder / "kernels.csv", KERNEL_COLUMNS).done
    assert done == {case.key for case in CASES}
    assert len(done) == len(CASES)
    beside = Results(folder / "overlap.csv", OVERLAP_COLUMNS).done
    assert beside == {case.key for case in overlap_cases()}


class Device:
    """Stands in for the GPU: what is measured on it takes what the sample says."""

    def __init__(self, torch, monkeypatch):
        from workloads.profiling import copy_kernel, measure

        self.measured = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        facts = {"gpu": "NVIDIA A100-SXM4-80GB", "num_sms": SMS}
        monkeypatch.setattr(measure, "device_facts", lambda: facts)
        monkeypatch.setattr(measure, "launch_times", lambda: {"launch_us": 5.0})
        monkeypatch.setattr(measure, "prepare", lambda case: case)
        monkeypatch.setattr(measure, "capture", lambda case: case)
        monkeypatch.setattr(measure, "time_alone_us", self.time_alone_us)
        monkeypatch.setattr(measure, "Overlap", lambda launch: self)
        monkeypatch.setattr(copy_kernel, "compile_copy_kernel", lambda say: print)

    def time_alone_us(self, case):
        self.measured.append(case.key)
        return alone_us(case)

    def time_us(self, case, alone, blocks):
        return alone * SMS / (SMS - LOST * blocks), 1e10 * blocks


def test_the_sweep_stops_in_time_and_goes_on(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    device = Device(torch, monkeypatch)
    assert not measure_gpu(tmp_path, 0.0)
    assert "run again to go on" in capsys.readouterr().err
    assert not device.measured
    assert measure_gpu(tmp_path, 5.0)
    assert len(device.measured) == len(kernel_cases()) + len(overlap_cases())
    assert f"kernels: 1 of {len(kernel_cases())}" in capsys.readouterr().err
    assert measure_gpu(tmp_path, 5.0)  # everything is there
    assert len(device.measured) == len(kernel_cases()) + len(overlap_cases())
    assert fit_overlaps(read_measured(tmp_path))[0].sms == pytest.approx(LOST)
    (tmp_path / "device.json").write_text('{"gpu": "another"}')
    with pytest.raises(InputError, match="holds a measurement of 'another'"):
        measure_gpu(tmp_path, 5.0)


def test_what_a_gpu_cannot_do_is_said_and_left_out(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    device = Device(torch, monkeypatch)

    def refuse(case):
        if case.dtype == "float8_e4m3fn" or (broken and case.op == "mm"):
            raise RuntimeError("no kernel image for this\nand more")
        return case

    broken = False
    monkeypatch.setattr(measure, "prepare", refuse)
    assert measure_gpu(tmp_path, 5.0)
    assert "scaled_mm float8_e4m3fn ((1024, 1024), (1024, 1024)) is left out: no kernel image for this\n" in (
        capsys.readouterr().err
    )
    fp8 = sum(case.dtype == "float8_e4m3fn" for case in kernel_cases())
    assert len(device.measured) == len(kernel_cases()) - fp8 + len(overlap_cases())
    broken = True  # a plain product fails nowhere: what was measured before is not to be trusted either
    with pytest.raises(RuntimeError, match="no kernel image"):
        measure_gpu(tmp_path / "again", 5.0)


def test_cases_return_what_they_say():
    """In shapes alone; what torch refuses to do so without CUDA is counted."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    refused = 0
    for case in kernel_cases():
        try:
            with FakeTensorMode():
                found = measure.prepare(case)()
        except RuntimeError as error:
            assert "not linked with support for cuda" in str(error), case
            refused += 1
            continue
        tensors = found if isinstance(found, tuple) else (found,)
        shapes = tuple(tuple(one.shape) for one in tensors if isinstance(one, torch.Tensor))
        assert shapes[: len(case.out_shapes)] == case.out_shapes, case
    assert refused < len(kernel_cases()) / 5


def test_the_whole_sweep_takes_less_than_its_budget():
    """By the datasheet rates of a V100, the slowest GPU with a profile, at half of them."""
    spec = load_gpu("v100")

    def slow_s(case):
        peak = spec.peak_flops["fp32" if case.dtype == "float32" else "fp16"]
        num_bytes = case.num_bytes or 4 * sum(
            math.prod(shape) for shape in (*case.in_shapes, *case.out_shapes)
        )
        return max(20e-6, case.flops / (peak / 2), num_bytes / (spec.hbm_bytes_per_s / 2))

    def alone_s(case):  # 4 warm-ups, a replay, and the samples
        seconds = slow_s(case)
        return (4 + (1 + measure.REPEATS) * measure.launches_per_sample(seconds)) * seconds

    def beside_s(case):  # the copy outlasts the kernels
        lasts_us = measure.launches_per_sample(slow_s(case)) * slow_s(case) * 1e6
        return len(COPY_BLOCKS) * measure.BESIDE_REPEATS * measure.copy_duration_us(lasts_us) * 1e-6

    work_s = sum(map(alone_s, kernel_cases())) + sum(alone_s(c) + beside_s(c) for c in overlap_cases())
    set_up_s = 60 + 0.2 * (len(kernel_cases()) + len(overlap_cases()))  # torch, compiler; random inputs
    assert tuple(range(1, 33)) == COPY_BLOCKS
    assert work_s + set_up_s < 7.5 * 60


def test_a_curve_moves_the_bytes_that_it_says():
    # Two inputs and one output of bf16: 64 MiB / 3 / 2.
    assert num_elements(KernelCase("add", "elementwise", "bfloat16", num_bytes=64 << 20)) == (64 << 20) // 6
    assert num_elements(KernelCase("fill", "fill", "float32", num_bytes=4)) == 1


@pytest.mark.parametrize(
    ("file", "values", "reason"),
    [
        ("kernels.csv", {"time_us": "-1"}, "must be a positive number"),
        ("kernels.csv", {"dtype": "float3"}, "float3"),
        ("kernels.csv", {"flops": "x"}, "kernels.csv: line 2: flops is 'x', no number"),
        ("overlap.csv", {"beside_us": "0"}, "overlap.csv: line 2: beside_us is '0', which must be positive"),
        ("overlap.csv", {"alone_us": "1e-300"}, "line 2: alone_us is '1e-300': not 1e-09 to 10000 s"),
        ("overlap.csv", {"copy_blocks": "0.5"}, "line 2: copy_blocks is '0.5', no number of thread blocks"),
    ],
)
def test_bad_rows_are_named(folder, file, values, reason):
    change(folder / file, 0, **values)
    with pytest.raises(InputError, match=reason):
        read_measured(folder)


def test_a_table_without_a_unit_is_refused(folder):
    text = (folder / "kernels.csv").read_text()
    (folder / "kernels.csv").write_text(text.replace("time_us", "time"))
    with pytest.raises(InputError, match="none of the columns time_s"):
        read_measured(folder)


def test_another_gpu_is_refused(folder):
    with pytest.raises(InputError, match="108 SMs, profile 'h100-sxm' 132"):
        fit_numbers(read_measured(folder), "h100-sxm")
    with pytest.raises(InputError, match=r"no profile of 'GTX'.*--base"):
        base_profile("GTX")
    row = next(i for i, case in enumerate(kernel_cases()) if case.op == "copy" and case.num_bytes >= 64 << 20)
    for line in range(row, row + 3):
        change(folder / "kernels.csv", line, time_us="1")
    with pytest.raises(InputError, match="another GPU's profile"):
        fit_numbers(read_measured(folder), "a100-80")


def test_without_a_gpu_the_command_says_so(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert simcore("profile-gpu", "--out", str(tmp_path / "m")) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert simcore("profile-gpu", "--fit-only", tmp_path) == 2
    assert not (tmp_path / "m").exists()
