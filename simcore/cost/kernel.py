"""One distinct kernel (name, shapes, dtype), what it demands, and the registry of formulas.

A formula is a function of a kernel's shapes, registered for its op classes by decorator::

    @formula("gemm", "bgemm")
    def gemm(kernel: KernelShape, context: Context) -> Work: ...
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import lru_cache

from simcore.cost.parameters import GenerationParameters
from simcore.errors import InputError, nearest
from simcore.hardware.specs import GpuSpec
from simcore.outside import quoted
from simcore.records import dataclass

Shape = tuple[int, ...]
_MOST_DIM = 1 << 48

#: Bytes of one element of each dtype, by torch's name without its prefix.
ELEMENT_BYTES: dict[str, int] = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

_DTYPE_ALIASES = {
    "": "float32", "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32",
    "tf32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn",
    "fp4": "float4_e2m1fn_x2", "nvfp4": "float4_e2m1fn_x2", "mxfp4": "float4_e2m1fn_x2",
    "int": "int32", "long": "int64", "uint16": "int16", "uint32": "int32", "uint64": "int64",
}  # fmt: skip


#: Narrow products and the first GPUs that have them.
_SINCE = {"fp8": "; fp8 came with Hopper, Ada and MI300", "fp4": "; fp4 came with Blackwell and MI350"}


@dataclass(frozen=True)
class KernelShape:
    """A distinct compute kernel.  Shapes are tensors in argument order; bytes are HBM bytes of tensors.

    ``strided``: known to compute the address of every element, where name and shapes do not tell.
    ``replayed``: launched as part of a CUDA graph, not by itself.  ``warm_bytes``: of its inputs that L2 is
    known to hold, as a benchmark leaves them.  ``float4_e2m1fn_x2`` holds two numbers in an element.
    """

    name: str
    op_class: str
    dtype: str
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    strided: bool = False
    replayed: bool = False
    warm_bytes: int = 0

    @property
    def element_bytes(self) -> int:
        """Bytes per element of the main input."""
        return ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Work:
    """What a kernel demands of a GPU; see :class:`~simcore.cost.demand.Demands` for the meaning.

    ``prologue_s`` comes on top of the GPU's gap between kernels, once per launch.
    """

    sm_s: float
    hbm_bytes: float
    prologue_s: float = 0.0
    blocks: int = 0
    blocks_per_sm: int = 1
    launches: int = 1
    fitted: bool = False


@dataclass(frozen=True)
class Context:
    """What formulas know beside the kernel: the GPU, its generation's constants, and the software preset.

    ``beyond``: by math mode how many times more products the GPU's SMs do than those that kernels were fitted
    on, where they do more; ``other_sms``: whether it has fewer or more SMs than any of those GPUs.
    """

    gpu: GpuSpec
    parameters: GenerationParameters
    fp32_math: str
    attention: str
    beyond: Mapping[str, float] = field(default_factory=dict)
    other_sms: bool = False

    @property
    def hbm_bytes_per_s(self) -> float:
        """Bandwidth that a streaming kernel reaches."""
        return self.gpu.hbm_bytes_per_s * self.gpu.hbm_efficiency

    def math_mode(self, dtype: str) -> str:
        """Math mode (key of ``GpuSpec.peak_flops``) in which matrix products of ``dtype`` run."""
        if dtype == "float32":
            return "tf32" if self.fp32_math == "tf32" and "tf32" in self.gpu.peak_flops else "fp32"
        mode = {"float64": "fp64", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}.get(dtype)
        if mode is None and dtype.startswith(("float8", "float4")):
            mode = "fp8" if dtype.startswith("float8") else "fp4"
        if mode is None:
            return "fp32"
        if mode not in self.gpu.peak_flops:
            raise InputError(
                f"GPU {self.gpu.name!r} has no {mode} math, only {', '.join(self.gpu.peak_flops)}"
                f"{_SINCE.get(mode, '')}"
            )
        return mode


Formula = Callable[[KernelShape, Context], Work]

FORMULAS: dict[str, Formula] = {}


def formula(*op_classes: str) -> Callable[[Formula], Formula]:
    """Register a formula for ``op_classes``."""

    def register(function: Formula) -> Formula:
        for op_class in op_classes:
            assert op_class not in FORMULAS, f"two formulas for op class {op_class!r}"
            FORMULAS[op_class] = function
        return function

    return register


def numel(shape: Shape) -> int:
    """Elements of a tensor."""
    return math.prod(shape)


@lru_cache(maxsize=1 << 10)
def parse_dtype(dtype: str) -> str:
    """Canonical dtype name ("torch.bfloat16", "bf16" -> "bfloat16").  InputError when unknown."""
    name = dtype.removeprefix("torch.").lower()
    name = _DTYPE_ALIASES.get(name, name)
    if name not in ELEMENT_BYTES:
        raise InputError(f"unknown dtype {dtype!r}{nearest(name, (*ELEMENT_BYTES, *_DTYPE_ALIASES))}")
    return name


@lru_cache(maxsize=1 << 12)
def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Shapes from a column's JSON, ``"[[2048,12288],[12288]]"``.

    Errors: InputError when the text is not a list of lists of integers >= 0.
    """
    if not text:
        return ()
    try:
        shapes = tuple(tuple(shape) for shape in json.loads(text))
    except (ValueError, TypeError, RecursionError):  # ValueError: of int(), too, for thousands of digits
        raise InputError(f"shapes {quoted(text)} are not a JSON list of lists") from None
    for shape in shapes:
        for size in shape:
            if type(size) is not int or not 0 <= size < _MOST_DIM:
                wrong = f"dimension {quoted(size)} is not an integer >= 0 and below 2^48"
                raise InputError(f"shapes {quoted(text)}: {wrong}")
    return shapes
