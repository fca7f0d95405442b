"""Measured kernels (a CSV of GEMM and attention rows) and the kernels that each row really timed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from simcore.apps.measured import engines
from simcore.apps.measured.experts import engine_of, expert_layer
from simcore.apps.measured.tables import LEAST_US, MOST_US, number, read_rows, within
from simcore.cost.classify import OP_CLASSES
from simcore.cost.gemm import ONE_BY_ONE, operand_bytes
from simcore.cost.kernel import KernelShape, Shape, numel, parse_dtype, parse_shapes
from simcore.cost.like import parameters_of
from simcore.cost.parameters import GenerationParameters
from simcore.cost.roofline import RooflineCost
from simcore.errors import InputError, nearest
from simcore.hardware import load_gpu, named_board
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
#: Of L2, what a benchmark that cycles its weights leaves of the activations that it reads again: the best of
#: 0.5, 0.85 and 1 for the bf16 rows of B200 and GB200.
_KEPT_IN_L2: Final = 0.85
_LAYERS_IN_TURN: Final = 6  # Note [Layers in turn]

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

_MOST_DIM = 1 << 31  # no tensor has a longer dimension


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


def profile_of(gpu: str) -> str:
    """Profile of a GPU by its name in measurement files.  InputError when there is none."""
    found = named_board(gpu)
    if found is None:
        raise InputError(f"no profile of GPU {gpu!r}")
    return found.gpu


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
        kernels = _grouped(columns, dtype) if op.startswith("grouped") else _gemm(columns, dtype)
        flops = float(kernels[-1].flops)
        if columns.get("cast"):
            kernels = (_cast(columns, dtype), *kernels)
        elif op == "gemm" and dtype.startswith(("float8", "float4")):
            around_s = _quantising_s(columns)
        family = f"{'grouped ' if op.startswith('grouped') else ''}gemm {columns['dtype']} {gpu}"
    elif op == _EXPERTS:
        tokens, ffn, hidden, experts = _sizes(columns, "m", "n", "k", "groups")
        kernels = expert_layer(tokens, ffn, hidden, experts, dtype, columns["notes"])
        flops = float(sum(kernel.flops for kernel in kernels))
        family = f"experts {columns['dtype']} {engine_of(columns['notes'])} {gpu}"
    elif op == "attention PyTorch":
        kernels, flops = _unfused(columns, dtype)
        family = f"{op} {columns['pass']} {gpu}"
    elif op in _ATTENTION or op == "attention":
        inferred = "flash3" if "flash_attn" in columns["notes"] else "trtllm"
        kernels, flops = _attention(columns, dtype, _ATTENTION.get(op, inferred))
        family = f"{op} {columns['pass']} {gpu}"
    else:
        raise InputError(f"no formula for op {op!r} yet")
    if columns["time_us"]:
        seconds = _number(columns, "time_us") * 1e-6
    else:
        seconds = flops / (within("tflops", _number(columns, "tflops"), 1e-6, 1e6, "Tflop/s") * 1e12)
    within("time_us", seconds * 1e6, LEAST_US, MOST_US, "us")
    sustained = "sustained" in columns["notes"]
    return KernelRow(line, gpu, family + engine, kernels, seconds, around_s, columns, sustained)


def _quantising_s(columns: dict[str, str]) -> float:
    """What a linear layer does to its input before the product that a row is about."""
    m, k = _sizes(columns, "m", "k")
    known = next(((s, rate) for words, s, rate in _QUANTISES if re.search(words, columns["notes"])), None)
    if known is not None:
        return known[0] + 2 * m * k / known[1]
    return FP8_QUANTISE_S + 3 * m * k / FP8_QUANTISE_BYTES_PER_S


def _cast(columns: dict[str, str], dtype: str) -> KernelShape:
    """The input of a product from 16 bits, in one kernel."""
    m, k = _sizes(columns, "m", "k")
    narrow = round(m * k * operand_bytes(dtype, "gemm"))
    return KernelShape(
        "cast", "elementwise", "bfloat16", (), (), bytes_read=2 * m * k, bytes_written=narrow, replayed=True
    )


def _gemm(columns: dict[str, str], dtype: str) -> tuple[KernelShape, ...]:
    m, n, k = _sizes(columns, "m", "n", "k")
    name = "blockwise_gemm" if "1x128" in columns["op"] or "1x128" in columns["notes"] else "gemm"
    if "torch_flow" in columns["notes"] and dtype.startswith("float4"):
        name = "cutlass_gemm"  # TensorRT-LLM's own
    if wide := _summed(columns):
        name = f"wgrad_{name}_accum"
    shapes = ((m, k), (k, n))
    each, warm = operand_bytes(dtype, name), 0
    kept = _kept_in_l2(profile_of(columns["gpu"]))
    if "layers in turn" in columns["notes"] and (
        _LAYERS_IN_TURN * each * n * k + each * m * k + 2 * m * n <= kept
    ):
        warm = int(each * (m + n) * k)
    elif re.search("weights cycled beyond L2|layers in turn", columns["notes"]):
        warm = int(min(max(0.0, kept - each * n * k - 2 * m * n), each * m * k))
    return (
        KernelShape(
            name,
            "gemm",
            dtype,
            shapes,
            ((m, n),),
            flops=2 * m * n * k,
            replayed=True,
            warm_bytes=warm,
            bytes_written=wide * m * n,
        ),
    )


@lru_cache
def _kept_in_l2(gpu: str) -> float:
    return _KEPT_IN_L2 * load_gpu(gpu).l2_bytes


def _summed(columns: dict[str, str]) -> int:
    """Bytes of an element of the sum that a weight gradient is added to; 0 for other products."""
    return 4 if "added to fp32" in columns["notes"] else 2 if "added to bf16" in columns["notes"] else 0


def _grouped(columns: dict[str, str], dtype: str) -> tuple[KernelShape, ...]:
    """``groups`` products of ``m`` rows each: DeepGEMM's one launch, whose fp8 is scaled by blocks, or
    Transformer Engine's, each for itself on several streams.
    """
    m, n, k, groups = _sizes(columns, "m", "n", "k", "groups")
    each = columns["op"] == "grouped gemm TE"
    name, wide = "grouped_gemm" if each else "blockwise_grouped_gemm", _summed(columns)
    name = f"{name}{'_wgrad_accum' if wide else ''}{ONE_BY_ONE if each else ''}"
    kernel = KernelShape(
        name, "bgemm", dtype, ((groups, m, k), (groups, k, n)), ((groups, m, n),),
        flops=2 * groups * m * n * k, replayed=not each,
        bytes_written=wide * groups * m * n,
    )  # fmt: skip
    return (kernel,)


def _unfused(columns: dict[str, str], dtype: str) -> tuple[tuple[KernelShape, ...], float]:
    """PyTorch's own ops, forward and backward, and the row's own flop count."""
    if columns["pass"] != "fwd+bwd":
        raise InputError(f"no formula for pass {columns['pass']!r}")
    batch, seq, heads, dim = _sizes(columns, "batch", "seq", "heads", "head_dim")
    causal = _number(columns, "causal") > 0
    kernels = unfused_attention(batch, heads, seq, dim, dtype, causal=causal)
    return kernels, 3.5 * 4.0 * batch * heads * seq * seq * dim * (0.5 if causal else 1.0)


def _attention(columns: dict[str, str], dtype: str, family: str) -> tuple[tuple[KernelShape, ...], float]:
    """Kernels and the row's own flop count (causal counted half, backward 2.5 x forward)."""
    batch, seq, heads, dim = _sizes(columns, "batch", "seq", "heads", "head_dim")
    kv_heads = _sizes(columns, "kv_heads")[0] if columns["kv_heads"] else heads
    causal = _number(columns, "causal") > 0
    window = re.search(r"sliding window (\d{1,7})\b", columns["notes"])
    keys = min(seq, int(window[1])) if window else seq
    mask = "window" if keys < seq else "causal" if causal else "full"
    query, key = (batch, heads, seq, dim), (batch, kv_heads, keys, dim)
    name = f"{family}_scaled_dot_product_attention_{mask}"
    forward = KernelShape(f"{name}_fwd", "attention_fwd", dtype, (query, key, key), (query,))
    backward = KernelShape(f"{name}_bwd", "attention_bwd", dtype, (query, query, key, key), (query, key, key))
    flops = 4.0 * batch * heads * seq * seq * dim * (0.5 if causal else 1.0)
    if columns["pass"] == "fwd":
        if family != "trtllm" or "no cache" in columns["notes"]:
            return (forward,), flops
        # The op around the kernel first writes rotated queries, keys and values (to the KV cache).
        moved = 2 * batch * seq * dim * (heads + 2 * kv_heads)
        cache = KernelShape("kv_write", "copy", dtype, (), (), bytes_read=moved, bytes_written=moved)
        return (cache, forward), flops
    passes = {"bwd": ((backward,), 2.5 * flops), "fwd+bwd": ((forward, backward), 3.5 * flops)}
    if columns["pass"] in passes:
        return passes[columns["pass"]]
    raise InputError(f"no formula for pass {columns['pass']!r}")


def _sizes(columns: dict[str, str], *names: str) -> list[int]:
    """Dimensions by column.  InputError unless each is a whole number of at least 1."""
    values = [_number(columns, name) for name in names]
    for name, value in zip(names, values, strict=True):
        if not 1 <= value <= _MOST_DIM or value != int(value):
            whole = f"a whole number from 1 to {_MOST_DIM:,}"
            raise InputError(f"{name} = {value:g} is not a dimension: {whole}")
    return [int(value) for value in values]


def _number(columns: dict[str, str], name: str) -> float:
    value = number(columns, name)
    if value < 0:
        raise InputError(f"{name} = {value:g} is negative")
    return value


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


def unfused_attention(
    batch: int, heads: int, seq: int, head_dim: int, dtype: str, *, causal: bool
) -> tuple[KernelShape, ...]:
    """Forward and backward of ``softmax(q k^T + mask) v`` from packed ``[batch, seq, 3, heads, head_dim]``.

    The mask is added as a tensor; backward gathers three gradients into a packed one.
    """
    rows = batch * heads
    part: Shape = (rows, seq, head_dim)
    scores: Shape = (rows, seq, seq)
    flops = 2 * numel(scores) * head_dim

    def product(left: Shape, right: Shape, out: Shape) -> KernelShape:
        return KernelShape("aten::bmm", "bgemm", dtype, (left, right), (out,), flops=flops)

    def kernel(name: str, op_class: str, inputs: tuple[Shape, ...], out: Shape) -> KernelShape:
        return KernelShape(name, op_class, dtype, inputs, (out,))

    gather = kernel("aten::clone", "copy", (part,), part)
    mask = (kernel("aten::add", "elementwise", (scores, (seq, seq)), scores),) if causal else ()
    forward = (
        gather, gather, product(part, part, scores), *mask,
        kernel("aten::_softmax", "softmax_fwd", (scores,), scores),
        gather, product(scores, part, part), gather,
    )  # fmt: skip
    backward = (
        gather, product(scores, part, part), product(part, part, scores),
        kernel("aten::_softmax_backward_data", "softmax_bwd", (scores, scores), scores),
        product(scores, part, part), product(scores, part, part),
        kernel("aten::stack", "copy", (part,) * 3, (3, *part)),
    )  # fmt: skip
    return (*forward, *backward)
