"""One rank's view of a model: which shard of every tensor it holds, for one microbatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from workloads.models.software import SoftwareSpec
from workloads.models.tensors import Tensor

Recompute = Literal["none", "selective", "full", "ops"]
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "bfloat16"}


@dataclass(frozen=True)
class Shard:
    """Degrees and sizes as the layers need them.

    ``seq`` is the whole sequence; a rank holds ``seq / cp`` of it, between tensor-parallel regions
    ``seq / cp / tp`` where ``sequence_parallel``.  ``etp``: tensor parallelism of experts.
    """

    micro_batch: int
    seq: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    cp_style: str = "ring"
    precision: str = "bf16"
    grad_dtype: str = "fp32"
    recompute: Recompute = "none"
    tp_overlap: bool = False
    software: SoftwareSpec = field(default_factory=SoftwareSpec)

    @property
    def dtype(self) -> str:
        """Dtype of activations."""
        return DTYPES[self.precision]

    @property
    def main_grad_dtype(self) -> str:
        """Dtype that weight gradients are kept in."""
        return DTYPES[self.grad_dtype]

    @property
    def fp8(self) -> bool:
        """Whether linear layers multiply in fp8."""
        return self.precision == "fp8"

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch that pass a tensor-parallel region of this rank."""
        return self.micro_batch * self.seq // self.cp

    @property
    def residual_tokens(self) -> int:
        """Tokens between tensor-parallel regions."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def local_seq(self) -> int:
        """Tokens of one sequence on this rank's context-parallel slice."""
        return self.seq // self.cp

    def tensor(self, *shape: int, dtype: str = "") -> Tensor:
        """An activation."""
        return Tensor(shape, dtype or self.dtype)
