"""Measured kernels (a CSV of GEMM and attention rows) and the kernels that each row really timed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simcore.apps.measured import engines
from simcore.apps.measured.row_kernels import (
    attention,
    cast,
    engine_of,
    expert_layer,
    gemm,
    grouped,
    positive,
    profile_of,
    sizes,
    unfused,
)
from simcore.apps.measured.tables import LEAST_US, MOST_US, number, read_rows, within
from simcore.cost.classify import OP_CLASSES
from simcore.cost.kernel import KernelShape, numel, parse_dtype, parse_shapes
from simcore.cost.like import parameters_of
from simcore.cost.parameters import GenerationParameters
from simcore.cost.roofline import RooflineCost
from simcore.errors import InputError, nearest
from simcore.hardware import load_gpu
from simcore.hardware.sustained import sustained_throttle_s
from simcore.outside import json_document, read_text
from simcore.records import dataclass
from workloads.profiling.cases import KernelCase, shapes_of

COLUMNS = (
    "gpu", "op", "dtype", "m", "n", "k", "groups", "batch", "seq", "heads", "kv_heads", "head_dim", "causal",
    "pass", "time_us", "tflops", "notes",
)  # fmt: skip

_BY_SHAPES = ("lookup_fwd", "lookup_bwd", "key_sort")
_PROFILED_COLUMNS = ("op", "op_class", "dtype", "in_shapes", "out_shapes", "bytes", "time_us")

_DTYPES = {
    "fp16/bf16": "bfloat16", "fp8": "float8_e4m3fn", "fp8->bf16": "float8_e4m3fn",
    "fp8_block": "float8_e4m3fn",
}  # fmt: skip

#: The TensorRT-LLM fp8 linear layer quantises its bf16 input first (reads 2 bytes, writes 1 per element), in
#: a kernel far below HBM bandwidth.  Both constants from the H100 rows with the smallest n, where the
#: product itself takes no time: 12.5 us at k = 32, and 201 us at m = k = 8192.
FP8_QUANTISE_S = 9e-6
FP8_QUANTISE_BYTES_PER_S = 1.25e12

#: What a linear layer of an inference engine does before its product, by a pattern of a row's notes: a start
#: and bytes of the input in 16 bits per second.  From the rows of B200 and GB200 themselves
#: (ai-dynamo/aiconfigurator at 095f58a51c), together with the rates of their products.
_QUANTISES: Final = (
    (r"per-tensor fp8; includes dynamic", 1.25e-5, 1.79e12),
    (r"block fp8; includes activation.*sustained", 5.33e-6, 1.26e12),  # another release's kernel
    (r"block fp8; includes activation", 3.19e-6, 3.76e12),
    (r"nvfp4 block 16; includes activation", 2.97e-6, 3.19e12),
)
#: Attention ops of measurement files and the kernel family that ran.
_ATTENTION = {
    "attention FA1": "flash1",
    "attention FA2": "flash2",
    "attention FA3": "flash3",
    "attention FA4": "flash4",
    "attention cuDNN": "cudnn",
    "attention AITER": "cudnn",  # what Transformer Engine calls fused attention on AMD
}


#: Whole layers of experts as engines time them.
_EXPERTS: Final = "moe grouped gemm layer"


@dataclass(frozen=True)
class KernelRow:
    """One measurement: ``kernels`` ran one after the other within ``seconds``.

    ``around_s``: what else the benchmark timed, by a constant of the benchmark.  ``line``: in the CSV.
    ``sustained``: repeated for about a second, so that the board's power limit holds throughout.
    """

    line: int
    gpu: str  # name of the profile
    family: str
    kernels: tuple[KernelShape, ...]
    seconds: float
    around_s: float
    columns: dict[str, str]
    sustained: bool = False


def read_kernel_rows(path: Path | str) -> tuple[list[KernelRow], list[dict[str, Any]]]:
    """Rows of a kernels CSV that formulas cover, and the rest as (id, reason).

    ``path`` may be a folder that ``profile_gpu.py`` wrote.  Errors: InputError for a missing file or column.
    """
    if Path(path).is_dir():
        return _read_profiled(Path(path))
    return read_rows(path, "kernel", _needed, _row)


def _needed(columns: Collection[str]) -> Collection[str]:
    return (engines.TIME_COLUMN, "op", "gpu") if engines.TIME_COLUMN in columns else COLUMNS


def _read_profiled(folder: Path) -> tuple[list[KernelRow], list[dict[str, Any]]]:
    """The kernels that were measured alone on the GPU of ``device.json``, replayed in CUDA graphs."""
    gpu = profiled_gpu(folder)

    def row(line: int, columns: dict[str, str]) -> KernelRow:
        kernel = profiled_kernel(columns)
        seconds = within("time_us", number(columns, "time_us"), LEAST_US, MOST_US, "us") * 1e-6
        family = f"{kernel.op_class} {kernel.dtype} {gpu}"
        return KernelRow(line, gpu, family, (kernel,), seconds, 0.0, columns, sustained=True)

    return read_rows(folder / "kernels.csv", "kernel", _PROFILED_COLUMNS, row)


def profiled_gpu(folder: Path) -> str:
    """Profile of the GPU that ``profile_gpu.py`` measured into ``folder``.  InputError when there is none."""
    where = folder / "device.json"
    facts = json_document(read_text(where, "measurements"), str(where))
    return profile_of(str(facts.get("gpu")) if isinstance(facts, dict) else "")


def profiled_kernel(columns: dict[str, str]) -> KernelShape:
    """The kernel of a row that ``profile_gpu.py`` wrote.  InputError for one that no formula covers."""
    dtype, op_class = parse_dtype(columns["dtype"]), columns["op_class"]
    case = KernelCase(
        columns["op"], op_class, dtype, parse_shapes(columns["in_shapes"]),
        parse_shapes(columns["out_shapes"]), int(number(columns, "bytes")),
    )  # fmt: skip
    if op_class in _BY_SHAPES:  # lookups: all that counts is in their shapes and names
        return KernelShape(case.op, op_class, dtype, case.in_shapes, case.out_shapes, replayed=True)
    try:
        ins, outs = shapes_of(case)
    except KeyError:
        raise InputError(f"no formula for op {case.op!r} by its bytes alone") from None
    if op_class not in OP_CLASSES:
        raise InputError(f"unknown op_class {op_class!r}{nearest(op_class, OP_CLASSES)}")
    kernel = KernelShape(f"aten::{case.op}", op_class, dtype, ins, outs, case.flops, replayed=True)
    if op_class != "embedding_fwd":
        return kernel
    moved = kernel.element_bytes * sum(map(numel, outs))  # of the table only the rows that are looked up
    return replace(kernel, bytes_read=moved + 8 * numel(ins[-1]), bytes_written=moved)


def _row(line: int, columns: dict[str, str]) -> KernelRow:
    """InputError, with the reason, for a row that no formula covers."""
    engine = ""
    if engines.TIME_COLUMN in columns:
        told = engines.kernel_columns(columns)
        columns = dict.fromkeys(COLUMNS, "") | columns | told
        engine = f" {told['engine']}"
    op = columns["op"]
    dtype = parse_dtype(_DTYPES.get(columns["dtype"], columns["dtype"]))
    gpu = profile_of(columns["gpu"])
    around_s = 0.0
    if op == "gemm" or op.startswith(("gemm fp8", "grouped gemm")):
        kernels = grouped(columns, dtype) if op.startswith("grouped") else gemm(columns, dtype)
        flops = float(kernels[-1].flops)
        if columns.get("cast"):
            kernels = (cast(columns, dtype), *kernels)
        elif op == "gemm" and dtype.startswith(("float8", "float4")):
            around_s = _quantising_s(columns)
        family = f"{'grouped ' if op.startswith('grouped') else ''}gemm {columns['dtype']} {gpu}"
    elif op == _EXPERTS:
        tokens, ffn, hidden, experts = sizes(columns, "m", "n", "k", "groups")
        kernels = expert_layer(tokens, ffn, hidden, experts, dtype, columns["notes"])
        flops = float(sum(kernel.flops for kernel in kernels))
        family = f"experts {columns['dtype']} {engine_of(columns['notes'])} {gpu}"
    elif op == "attention PyTorch":
        kernels, flops = unfused(columns, dtype)
        family = f"{op} {columns['pass']} {gpu}"
    elif op in _ATTENTION or op == "attention":
        inferred = "flash3" if "flash_attn" in columns["notes"] else "trtllm"
        kernels, flops = attention(columns, dtype, _ATTENTION.get(op, inferred))
        family = f"{op} {columns['pass']} {gpu}"
    else:
        raise InputError(f"no formula for op {op!r} yet")
    if columns["time_us"]:
        seconds = positive(columns, "time_us") * 1e-6
    else:
        seconds = flops / (within("tflops", positive(columns, "tflops"), 1e-6, 1e6, "Tflop/s") * 1e12)
    within("time_us", seconds * 1e6, LEAST_US, MOST_US, "us")
    sustained = "sustained" in columns["notes"]
    return KernelRow(line, gpu, family + engine, kernels, seconds, around_s, columns, sustained)


def _quantising_s(columns: dict[str, str]) -> float:
    """What a linear layer does to its input before the product that a row is about."""
    m, k = sizes(columns, "m", "k")
    known = next(((s, rate) for words, s, rate in _QUANTISES if re.search(words, columns["notes"])), None)
    if known is not None:
        return known[0] + 2 * m * k / known[1]
    return FP8_QUANTISE_S + 3 * m * k / FP8_QUANTISE_BYTES_PER_S


def predict_row(row: KernelRow, cost: RooflineCost) -> float:
    """Seconds that the row's kernels take one after the other on an idle GPU."""
    return row.around_s + sum(cost.seconds(kernel) for kernel in row.kernels)


def predict_rows(rows: Sequence[KernelRow]) -> list[float]:
    """Seconds of each row on its GPU."""
    kinds = {(row.gpu, row.sustained) for row in rows}
    costs = {kind: cost_of(*kind) for kind in kinds}
    return [predict_row(row, costs[row.gpu, row.sustained]) for row in rows]


def cost_of(gpu: str, sustained: bool) -> RooflineCost:
    """Prices of a GPU in a short burst, or held at its power limit, where short products are slowed, too."""
    spec = load_gpu(gpu)
    constants = parameters_of(spec)
    if not sustained:
        return RooflineCost(spec, parameters=constants)
    return RooflineCost(spec, parameters=held_at_the_limit(constants))


def held_at_the_limit(constants: GenerationParameters) -> GenerationParameters:
    """``constants`` of products that the power limit slows from their start."""
    slowed = {
        unit: replace(own, throttle_s=sustained_throttle_s())
        for unit in ("tensor", "fp4", "blockwise")
        if (own := getattr(constants, unit)) is not None
    }
    return replace(constants, **slowed)
