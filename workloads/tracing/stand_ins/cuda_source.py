"""Kernels that a program compiles from CUDA source: a launch reads what its parameters call constant, and
writes what other pointers point to, each once; what it computes is not seen.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from workloads.tracing import kernels


class CudaKernel:
    """What ``torch.cuda._compile_kernel`` gives, its parameters read off the source."""

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        found = re.search(rf"__global__[^;{{]*?\b{re.escape(name)}\s*\(([^)]*)\)", source)
        self._parameters = found.group(1).split(",") if found else []

    def __call__(self, _grid: Any = None, _block: Any = None, args: Any = None, **_: Any) -> None:
        """One launch.  UnknownKernelError where the source does not declare as many parameters."""
        given = list(args or ())
        if kernels.is_described(self.name):
            kernels.launch_described(self.name, given, {})
            return
        if len(given) != len(self._parameters):
            raise kernels.UnknownKernelError(self.name, "its source does not declare its parameters")
        pairs = list(zip(self._parameters, given, strict=True))
        tensors = [(text, one) for text, one in pairs if isinstance(one, torch.Tensor)]
        kernels.counted.add(self.name)
        kernels.launch(
            self.name,
            reads=[one for text, one in tensors if "const " in text],
            writes=[one for text, one in tensors if "const " not in text],
        )

    def set_shared_memory_config(self, _num_bytes: int) -> None:
        """Nothing is launched."""


def install() -> None:
    """Patch ``torch.cuda``, once per process."""
    cuda: Any = torch.cuda
    for name in ("_compile_kernel", "compile_kernel"):
        setattr(cuda, name, lambda source, kernel, *_, **__: CudaKernel(source, kernel))
