"""Models as dimensions, and their parts as kernels."""

from workloads.models.pieces import KernelLaunch, ModelPiece, ModelPieces, Parameter
from workloads.models.spec import MlaSpec, ModelSpec, MoeSpec

__all__ = [
    "KernelLaunch", "MlaSpec", "ModelPiece", "ModelPieces", "ModelSpec", "MoeSpec", "Parameter",
]  # fmt: skip
