"""What a row of a kernels CSV ran, from its columns: products, attention, layers of experts."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from simcore.apps.measured.tables import number
from simcore.cost.gemm import ONE_BY_ONE, operand_bytes
from simcore.cost.kernel import KernelShape, Shape, numel
from simcore.errors import InputError
from simcore.hardware import load_gpu, named_board

#: Of L2, what a benchmark that cycles its weights leaves of the activations that it reads again: the best of
#: 0.5, 0.85 and 1 for the bf16 rows of B200 and GB200.
_KEPT_IN_L2: Final = 0.85
_LAYERS_IN_TURN: Final = 6  # Note [Layers in turn]
_MOST_DIM = 1 << 31  # no tensor has a longer dimension
#: What the notes of a row say of a layer of experts, and of the engine whose kernels ran.
_SAID: Final = re.compile(r"\b(topk|experts|ep|tp|distribution)=([\w.]+)")
_ENGINE: Final = re.compile(r"distribution=[\w.]+; (\w+)")


def profile_of(gpu: str) -> str:
    """Profile of a GPU by its name in measurement files.  InputError when there is none."""
    found = named_board(gpu)
    if found is None:
        raise InputError(f"no profile of GPU {gpu!r}")
    return found.gpu


def cast(columns: dict[str, str], dtype: str) -> KernelShape:
    """The input of a product from 16 bits, in one kernel."""
    m, k = sizes(columns, "m", "k")
    narrow = round(m * k * operand_bytes(dtype, "gemm"))
    return KernelShape(
        "cast", "elementwise", "bfloat16", (), (), bytes_read=2 * m * k, bytes_written=narrow, replayed=True
    )


def gemm(columns: dict[str, str], dtype: str) -> tuple[KernelShape, ...]:
    """One product, with what the benchmark leaves of its operands in L2."""
    m, n, k = sizes(columns, "m", "n", "k")
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


def grouped(columns: dict[str, str], dtype: str) -> tuple[KernelShape, ...]:
    """``groups`` products of ``m`` rows each: DeepGEMM's one launch, whose fp8 is scaled by blocks, or
    Transformer Engine's, each for itself on several streams.
    """
    m, n, k, groups = sizes(columns, "m", "n", "k", "groups")
    each = columns["op"] == "grouped gemm TE"
    name, wide = "grouped_gemm" if each else "blockwise_grouped_gemm", _summed(columns)
    name = f"{name}{'_wgrad_accum' if wide else ''}{ONE_BY_ONE if each else ''}"
    kernel = KernelShape(
        name, "bgemm", dtype, ((groups, m, k), (groups, k, n)), ((groups, m, n),),
        flops=2 * groups * m * n * k, replayed=not each,
        bytes_written=wide * groups * m * n,
    )  # fmt: skip
    return (kernel,)


def unfused(columns: dict[str, str], dtype: str) -> tuple[tuple[KernelShape, ...], float]:
    """PyTorch's own ops, forward and backward, and the row's own flop count."""
    if columns["pass"] != "fwd+bwd":
        raise InputError(f"no formula for pass {columns['pass']!r}")
    batch, seq, heads, dim = sizes(columns, "batch", "seq", "heads", "head_dim")
    causal = positive(columns, "causal") > 0
    kernels = unfused_attention(batch, heads, seq, dim, dtype, causal=causal)
    return kernels, 3.5 * 4.0 * batch * heads * seq * seq * dim * (0.5 if causal else 1.0)


def attention(columns: dict[str, str], dtype: str, family: str) -> tuple[tuple[KernelShape, ...], float]:
    """Kernels and the row's own flop count (causal counted half, backward 2.5 x forward)."""
    batch, seq, heads, dim = sizes(columns, "batch", "seq", "heads", "head_dim")
    kv_heads = sizes(columns, "kv_heads")[0] if columns["kv_heads"] else heads
    causal = positive(columns, "causal") > 0
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


def sizes(columns: dict[str, str], *names: str) -> list[int]:
    """Dimensions by column.  InputError unless each is a whole number of at least 1."""
    values = [positive(columns, name) for name in names]
    for name, value in zip(names, values, strict=True):
        if not 1 <= value <= _MOST_DIM or value != int(value):
            whole = f"a whole number from 1 to {_MOST_DIM:,}"
            raise InputError(f"{name} = {value:g} is not a dimension: {whole}")
    return [int(value) for value in values]


def positive(columns: dict[str, str], name: str) -> float:
    """A number of at least 0.  InputError for another."""
    value = number(columns, name)
    if value < 0:
        raise InputError(f"{name} = {value:g} is negative")
    return value


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


def engine_of(notes: str) -> str:
    """Whose kernels ran, as the notes call them; "" where they do not say."""
    found = _ENGINE.search(notes)
    return found[1] if found else ""


def expert_layer(
    tokens: int, ffn: int, hidden: int, experts: int, dtype: str, notes: str
) -> tuple[KernelShape, ...]:
    """A layer of experts as inference engines time it: routing, permutation, products, activation and
    combination of ``experts`` on one rank.

    ``tokens``: that the router sees, of which the rank has ``topk / ep`` each; ``ffn``: columns of its slice.
    ``notes``: ``topk``, ``ep`` and the distribution of tokens; "non-gated" layers have two products, others
    three in two kernels.  Errors: InputError where tokens are not spread evenly, as nothing says how many an
    expert has.
    """
    said = dict(_SAID.findall(notes))
    if said.get("distribution") != "balanced":
        raise InputError(
            f"tokens of experts spread by {said.get('distribution', 'nothing said')!r} are not counted"
        )
    pairs = max(1, tokens * int(said["topk"]) // int(said["ep"]))
    busy = min(experts, pairs)
    rows = -(-pairs // busy)
    both = ffn if "non-gated" in notes else 2 * ffn
    name = "blockwise_experts_gemm" if "deepgemm" in notes else "experts_gemm"

    def moved(op: str, read: int, written: int) -> KernelShape:
        return KernelShape(
            op, "elementwise", "bfloat16", (), (), bytes_read=2 * read, bytes_written=2 * written
        )

    def product(depth: int, width: int) -> KernelShape:
        shapes = ((busy, rows, depth), (busy, depth, width))
        flops = 2 * busy * rows * depth * width
        return KernelShape(name, "bgemm", dtype, shapes, ((busy, rows, width),), flops=flops, replayed=True)

    narrow = dtype != "bfloat16"
    return (
        moved("topk", tokens * int(said["experts"]), tokens * int(said["topk"])),
        moved("permute", pairs * hidden, pairs * hidden),
        *([moved("quantise", pairs * hidden, pairs * hidden // 2)] if narrow else []),
        product(hidden, both),
        moved("activation", pairs * both, pairs * ffn),
        product(ffn, hidden),
        moved("combine", pairs * hidden, tokens * hidden),
    )
