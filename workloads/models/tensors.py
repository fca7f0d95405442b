"""Tensors as kernels see them, and kernels as functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcore.collectives.kinds import kind_of
from simcore.records import dataclass
from workloads.models.pieces import KernelLaunch

ELEMENT_BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int64": 8, "int32": 4, "int8": 1,
    "bool": 1, "uint8": 1, "float4_e2m1fn_x2": 1,
}  # fmt: skip
#: Half a byte, and a byte of scale for each 16 (NVFP4).
_FP4, _FP4_BITS = "float4_e2m1fn_x2", 4.5


@dataclass(frozen=True)
class Tensor:
    """A tensor as kernels see it."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        if self.dtype == _FP4:
            return math.ceil(self.numel * _FP4_BITS / 8)
        return self.numel * ELEMENT_BYTES[self.dtype]

    def like(self, *shape: int, dtype: str = "") -> Tensor:
        """A tensor of another shape (and dtype)."""
        return Tensor(shape, dtype or self.dtype)


def compute(
    name: str,
    ins: Sequence[Tensor],
    outs: Sequence[Tensor],
    *,
    op_class: str = "",
    flops: int = 0,
    module: str = "",
) -> KernelLaunch:
    """A compute kernel that reads and writes each tensor once."""
    return KernelLaunch(
        name=name,
        op_class=op_class,
        dtype=ins[0].dtype if ins else outs[0].dtype,
        in_shapes=tuple(t.shape for t in ins),
        out_shapes=tuple(t.shape for t in outs),
        flops=flops,
        bytes_read=sum(t.num_bytes for t in ins),
        bytes_written=sum(t.num_bytes for t in outs),
        module=module,
    )


def collective(
    what: str, tensor: Tensor, group: str, *, stream: str = "compute", module: str = "", peer_delta: int = 0,
    reduce_op: str = "",
) -> KernelLaunch:  # fmt: skip
    """A collective over ``group``; ``tensor`` is the whole one by nccl-tests' convention.

    "send_recv" sends ``tensor`` to the member ``peer_delta`` further on and receives as much.
    """
    return KernelLaunch(
        name=f"nccl::{what}",
        dtype=tensor.dtype,
        in_shapes=(tensor.shape,),
        out_shapes=(tensor.shape,),
        module=module,
        stream=stream,
        group=group,
        collective=what,
        num_bytes=tensor.num_bytes,
        reduce_op=reduce_op or ("sum" if kind_of(what).reduces else ""),
        peer_delta=peer_delta,
    )
