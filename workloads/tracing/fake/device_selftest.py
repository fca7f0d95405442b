"""What a usable fake CUDA device must be able to do; run as a child process, once per torch.

``python -m workloads.tracing.fake.device_selftest TIER FOLDER`` installs the tier ("ctypes", "compiled") and
prints :data:`PASSED` when every check holds.  A wrong vtable slot ends this process, never the caller's.
"""

from __future__ import annotations

import sys
from pathlib import Path

PASSED = "fake-cuda-selftest: passed"
CHECK = "fake-cuda-selftest: "


def run_checks() -> None:
    """Forward, backward and optimizer on fake CUDA tensors.  AssertionError or a torch error otherwise."""
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    torch.autograd.set_multithreading_enabled(False)
    device = torch.device("cuda", 0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        _announce("linear, layer_norm, gelu on cuda")
        model = nn.Sequential(nn.Linear(8, 8, device="cuda"), nn.LayerNorm(8, device="cuda"), nn.GELU())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        hidden = model(torch.randn(2, 8).to("cuda"))
        _announce("scaled_dot_product_attention on cuda")
        query = torch.randn(1, 2, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        attended = nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        _announce("backward")
        (hidden.float().sum() + attended.float().sum()).backward()
        _announce("gradients on cuda:0")
        for parameter in (*model.parameters(), query):
            gradient = parameter.grad
            assert type(gradient) is FakeTensor and gradient.device == device, parameter.shape
        _announce("fused AdamW step")
        optimizer.step()
        _announce("conv2d on cuda")
        picture = nn.functional.conv2d(
            torch.randn(1, 3, 8, 8, device="cuda"), torch.randn(4, 3, 3, 3, device="cuda")
        )
        assert picture.device == device


def _announce(check: str) -> None:
    print(f"{CHECK}{check}", flush=True)


def main(arguments: list[str]) -> None:
    """Entry of the child process."""
    tier, folder = arguments
    _announce(f"install ({tier})")
    from workloads.tracing.fake import libtorch

    print(libtorch.install(tier, Path(folder)), flush=True)
    run_checks()
    print(PASSED, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
