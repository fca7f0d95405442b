"""Casts to 8 and 4 bits around products (Transformer Engine's recipes).

Note [fp8 recipes]
    "delayed": one pass writes a tensor and its transpose in fp8 with a scale from earlier steps, and its
    maximum for later ones, which are shared once a step.  "current": a pass more finds the maximum first;
    where the tensor is a slice of the tokens its owners share it.  "blockwise" (arXiv 2412.19437, section
    3.3) and "mxfp8" (OCP microscaling 1.0): a scale for each block, found in the pass that casts.
    torch.compile's kernel that writes a tensor in both orders loads it twice (pytorch/pytorch issue 133242:
    1.4 TB/s on an H100 where other casts reach 2.2).
    "nvfp4" (4 bits, a scale for each 16 elements and one for the tensor): a pass finds the maximum; forward's
    order and the transpose, which is rotated first (random Hadamard transform), are then cast each by a
    kernel of its own (Transformer Engine 2.8, common/hadamard_transform, NVFP4Quantizer).

Note [Scales by row]
    "rowwise" (torchao): a scale for each row of what is multiplied, so each of the three products casts both
    of its operands for itself (float8_linear.py, matmul_with_hp_or_float8_args).  Along the sum of a product
    that reads rows, maximum and cast are one kernel that keeps a row in cache.  For the weight gradient
    scales run along the other dimension: a pass for the maxima of columns, then one that casts and turns (op
    class "transpose": what the compiler makes of it reads or writes out of order).  No rank shares a maximum,
    but what is gathered is gathered in 16 bits and cast behind (torchtitan parallelize_llama.py: float8
    all_gather for tensorwise scales alone), and no gather moves beside a product that a cast lies before.
    Backward's products are scaled behind, in a kernel that follows anyway (float8_ops.py,
    addmm_float8_unwrapped).
"""

from __future__ import annotations

from dataclasses import replace

from workloads.models.local import NARROW, Shard
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tensors import Tensor, collective, compute

#: In how many bits what a gate reads is kept where that is narrowed.
_GATED_BITS = 8
#: Elements that share a scale, and bytes of one.
_BLOCKS = {"blockwise": (128, 4), "mxfp8": (32, 1)}


def operand(tensor: Tensor, narrow: str) -> Tensor:
    """What a product reads; ``narrow``: its dtype, where it is not the tensor's own."""
    return replace(tensor, dtype=narrow) if narrow else tensor


def recipe_of(shard: Shard) -> str:
    """How what products read is scaled."""
    return "nvfp4" if shard.narrow == NARROW["nvfp4"] else shard.software.fp8_recipe


def gathered(shard: Shard, tensor: Tensor, narrow: str) -> Tensor:
    """What tensor-parallel ranks gather of the operand of a product."""
    return operand(tensor, "" if by_rows(shard) else narrow)


def by_rows(shard: Shard) -> bool:
    """Whether each row has a scale of its own, so that casts come behind what is gathered."""
    return recipe_of(shard) == "rowwise"


def fp8_row_bytes(width: int) -> int:
    """Bytes of a row in fp8 with a scale for each 128 elements (arXiv 2412.19437, section 3.3.2)."""
    elements, size = _BLOCKS["blockwise"]
    return width + -(-width // elements) * size


def cast_for_product(x: Tensor, module: str) -> KernelLaunch:
    """One cast of ``x`` in rows, without its transpose: what a product reads, or what is dispatched."""
    scales = Tensor((fp8_row_bytes(x.shape[-1]) - x.shape[-1], x.numel // x.shape[-1]), "uint8")
    out = [operand(x, NARROW["fp8"]), scales]
    return compute("cast_fp8_tiles", [x], out, op_class="quantize", module=module)


def product_name(shard: Shard, narrow: str) -> str:
    """Kernel of a plain product."""
    if not narrow:
        return "aten::mm" + sms_left(shard)
    named = {"blockwise": "blockwise_gemm", "mxfp8": "mxfp8_gemm", "nvfp4": "nvfp4_gemm"}
    name = named.get(recipe_of(shard), "aten::_scaled_mm")
    return name + sms_left(shard)


def weight_product_name(shard: Shard, narrow: str, *, grouped: bool = False) -> str:
    """Kernel of a weight gradient that is added to what is there."""
    scaled = "blockwise_" if narrow and recipe_of(shard) == "blockwise" else ""
    return f"{scaled}{'grouped_' if grouped else ''}wgrad_gemm_accum{sms_left(shard)}"


def sms_left(shard: Shard) -> str:
    """Behind a product's name: SMs that it leaves to others."""
    return f".sms_left={shard.software.product_sms_left}" if shard.software.product_sms_left else ""


def casts_at_use(shard: Shard) -> bool:
    """Whether operands are cast in rows, and turned only when a gradient needs it."""
    return bool(shard.narrow) and shard.software.fp8_transposes == "at_use"


def casts(shard: Shard, x: Tensor, module: str, *, is_slice: bool = False) -> list[KernelLaunch]:
    """Kernels that cast ``x`` and its transpose; ``is_slice``: other ranks of "tp" hold the rest of it."""
    recipe = recipe_of(shard)
    if by_rows(shard):
        scales = Tensor((x.numel // x.shape[-1],), "float32")
        return [
            compute(
                "cast_fp8_rows",
                [x],
                [operand(x, shard.narrow), scales],
                op_class="elementwise",
                module=module,
            )
        ]
    # A slice is turned once it is gathered; see Note [fp8 across ranks] of exchange.py.
    out = [operand(x, shard.narrow)] * (1 if is_slice and recipe not in _BLOCKS else 2)
    if recipe == "nvfp4":
        return _four_bit_casts(x, out, module)
    if recipe in _BLOCKS:
        elements, size = _BLOCKS[recipe]
        scales = Tensor((x.numel // elements * size,), "uint8")
        name = f"cast_transpose_fp8_{recipe}"
        return [compute(name, [x], [*out, scales, scales], op_class="elementwise", module=module)]
    name = "cast_fp8" if is_slice else "cast_transpose_fp8"
    ins = [x, x] if shard.software.compiled and len(out) > 1 else [x]
    kernels = [compute(name, ins, out, op_class="elementwise", module=module)]
    if recipe == "current":
        maximum = Tensor((1,), "float32")
        shared = [collective("all_reduce", maximum, "tp", module=module, reduce_op="max")]
        found = compute("amax_fp8", [x], [maximum], op_class="reduction", module=module)
        kernels = [found, *(shared if is_slice else []), *kernels]
    return kernels


def _four_bit_casts(x: Tensor, out: list[Tensor], module: str) -> list[KernelLaunch]:
    maximum = Tensor((1,), "float32")
    found = compute("amax_nvfp4", [x], [maximum], op_class="reduction", module=module)
    names = ("cast_nvfp4", "cast_transpose_nvfp4")
    return [
        found,
        *(
            compute(name, [x, maximum], [cast], op_class="quantize", module=module)
            for name, cast in zip(names, out, strict=False)
        ),
    ]


def column_casts(shard: Shard, x: Tensor, module: str) -> list[KernelLaunch]:
    """Casts by columns of what was cast by rows before; none where one cast serves all products."""
    if not by_rows(shard):
        return []
    scales = Tensor((x.shape[-1],), "float32")
    return [
        compute("amax_fp8_columns", [x], [scales], op_class="reduction", module=module),
        compute("cast_transpose_fp8_columns", [x, scales], [operand(x, shard.narrow)], op_class="transpose",
                module=module),
    ]  # fmt: skip


def turned(shard: Shard, own: list[Tensor], arrived: list[Tensor], module: str) -> list[KernelLaunch]:
    """What a weight gradient's operands take: casts of ``own`` by columns, or turns of what was gathered."""
    if by_rows(shard):
        return [kernel for tensor in own for kernel in column_casts(shard, tensor, module)]
    return [transposed(operand(tensor, shard.narrow), module) for tensor in arrived]


def requantised(x: Tensor, module: str, *, kept: bool) -> KernelLaunch:
    """The transpose of ``x`` in fp8, scaled along its other dim; ``kept``: from what is in fp8 already."""
    out = operand(x, NARROW["fp8"])
    source = out if kept else x
    return compute("transpose_cast_fp8", [source], [out], op_class="quantize", module=module)


def keep_narrow(tape: OpTape, shard: Shard, x: Tensor, bits: int, module: str) -> None:
    """Cast ``x`` to ``bits`` for its backward, which casts it back (arXiv 2412.19437, section 3.3.3)."""
    kept = shard.software.fp8_kept_activations
    if not (shard.narrow and kept) or (kept == "gate" and bits != _GATED_BITS):
        return
    narrow, op, name = Tensor((x.numel * bits // 8,), "uint8"), tape.op(), f"{module}.kept"
    op.run("cast_kept", [x], [narrow], op_class="quantize", module=name)
    op.back(compute("cast_back", [narrow], [x], op_class="quantize", module=name))


def transposed(x: Tensor, module: str) -> KernelLaunch:
    """The narrow tensor ``x``, gathered in slices, turned for the weight gradient."""
    return compute("transpose_fp8", [x], [x], op_class="elementwise", module=module)


def cast_weight(tape: OpTape, shard: Shard, weight: Tensor, module: str) -> list[TapedLaunch]:
    """Casts of a weight before its product; once a step they go to ``tape.first``."""
    kernels = casts(shard, weight, module)
    if shard.software.fp8_weight_cast == "first":
        tape.first.extend(kernels)
    return [TapedLaunch(kernel) for kernel in kernels] if shard.software.fp8_weight_cast == "every" else []


def share_maxima(tape: OpTape, shard: Shard, num_tensors: int) -> None:
    """Delayed scaling: once a step all ranks agree on the maxima of ``num_tensors`` tensors."""
    if shard.narrow and recipe_of(shard) == "delayed" and shard.tp > 1:
        maxima = Tensor((num_tensors,), "float32")
        tape.first.append(collective("all_reduce", maxima, "tp", module="fp8", reduce_op="max"))
