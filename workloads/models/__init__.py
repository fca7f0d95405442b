"""Models as dimensions, and their parts as kernels."""

from workloads.models.pieces import Kernel, ModelPieces, Parameter, Piece
from workloads.models.spec import MlaSpec, ModelSpec, MoeSpec

__all__ = [
    "Kernel", "MlaSpec", "ModelPieces", "ModelSpec", "MoeSpec", "Parameter", "Piece",
]  # fmt: skip
