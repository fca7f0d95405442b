"""Graph passes: rewrite a traced graph into what an optimised framework build launches."""

from simcore.graph.passes.kernels import MAPPINGS, apply_kernels, fuse_regions, usual_kernels
from simcore.graph.passes.match import compilable

__all__ = ["MAPPINGS", "apply_kernels", "compilable", "fuse_regions", "usual_kernels"]
