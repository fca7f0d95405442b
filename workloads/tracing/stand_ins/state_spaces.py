"""What mamba_ssm compiles for GPUs: causal convolutions of each channel, the selective scan of Mamba-1.

Its other kernels are Triton's.  A scan costs 9 operations for each number of its states and step
(state-spaces/mamba, issue 110); its backward pass, which computes the states again, three times as many.
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel

_VERSION = "1.5.3"
#: Steps of a scan between states that are kept (csrc/selective_scan/selective_scan.cpp).
_CHUNK = 2048
_SCAN_FLOPS, _BACKWARD = 9, 3


def _convolution_flops(x: torch.Tensor, weight: torch.Tensor) -> int:
    return 2 * x.numel() * weight.shape[-1]


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: torch.Tensor | None = None,  # noqa: ARG001
    activation: str | None = None,  # noqa: ARG001
) -> Any:
    """``causal_conv1d.causal_conv1d_fn``: (batch, channels, steps), with the last states where asked for."""
    flops = _convolution_flops(x, weight)
    kernel = ExtensionKernel(
        *("causal_conv1d_fwd_kernel", "causal_conv1d_bwd_kernel", "elementwise", "elementwise"),
        forward_flops=flops,
        backward_flops=2 * flops,
    )
    found = kernel([x, weight, bias, seq_idx, initial_states], torch.empty_like(x))
    if not return_final_states:
        return found
    return found, x.new_empty(x.shape[0], x.shape[1], weight.shape[-1] - 1)


def causal_conv1d_fwd_function(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *_: Any
) -> torch.Tensor:
    """``causal_conv1d.cpp_functions.causal_conv1d_fwd_function``."""
    found = torch.empty_like(x)
    _launch("causal_conv1d_fwd_kernel", [x, weight, bias], [found], _convolution_flops(x, weight))
    return found


def causal_conv1d_bwd_function(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dout: torch.Tensor,
    _seq_idx: Any = None,
    initial_states: torch.Tensor | None = None,
    _dfinal_states: Any = None,
    dx: torch.Tensor | None = None,
    return_dinitial_states: bool = False,
    *_: Any,
) -> tuple[torch.Tensor | None, ...]:
    """``causal_conv1d.cpp_functions.causal_conv1d_bwd_function``."""
    made = [torch.empty_like(x) if dx is None else dx, torch.empty_like(weight)]
    of_bias = None if bias is None else torch.empty_like(bias)
    states = (
        torch.empty_like(initial_states) if return_dinitial_states and initial_states is not None else None
    )
    writes = [*made, *(one for one in (of_bias, states) if one is not None)]
    _launch("causal_conv1d_bwd_kernel", [x, weight, bias, dout], writes, 2 * _convolution_flops(x, weight))
    return (*made, of_bias, states)


def _scan_flops(u: torch.Tensor, states: torch.Tensor) -> int:
    return _SCAN_FLOPS * u.numel() * states.shape[-1]


def _scan(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    D: torch.Tensor | None,  # noqa: N803
    z: torch.Tensor | None,
    delta_bias: torch.Tensor | None,
    *_: Any,
) -> list[torch.Tensor]:
    """``selective_scan_cuda.fwd``: the result, states between chunks, and the gated result."""
    batch, width, steps = u.shape
    chunks = -(-steps // _CHUNK)
    made = [torch.empty_like(delta), u.new_empty(batch, width, chunks, 2 * A.shape[1], dtype=torch.float32)]
    made += [] if z is None else [torch.empty_like(z)]
    _launch("selective_scan_fwd_kernel", [u, delta, A, B, C, D, z, delta_bias], made, _scan_flops(u, A))
    return made


def _scan_backward(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    D: torch.Tensor | None,  # noqa: N803
    z: torch.Tensor | None,
    delta_bias: torch.Tensor | None,
    dout: torch.Tensor,
    x: torch.Tensor | None,
    out: torch.Tensor | None,
    dz: torch.Tensor | None = None,
    _delta_softplus: bool = False,
    recompute_out_z: bool = False,
) -> list[Any]:
    """``selective_scan_cuda.bwd``: gradients in the order of the arguments, of ``z`` last."""
    given = (u, delta, A, B, C, D, delta_bias)
    made = [None if one is None else torch.empty_like(one) for one in given]
    if z is not None:
        made.append(torch.empty_like(z) if dz is None else dz)
        made += [torch.empty_like(z)] if recompute_out_z else []
    reads = [*given, z, dout, x, out]
    writes = [one for one in made if one is not None]
    _launch("selective_scan_bwd_kernel", reads, writes, _BACKWARD * _scan_flops(u, A))
    return made


def _launch(name: str, reads: list[Any], writes: list[Any], flops: int) -> None:
    present = [one for one in reads if one is not None]
    kernels.launch(name, reads=present, writes=writes, cost=KernelCost(flops, op_class="elementwise"))


def _of_inference(*_: Any, **__: Any) -> None:
    raise NotImplementedError("causal_conv1d is not installed, and its stand-in updates no states")


_MODULES: dict[str, dict[str, Any]] = {
    "causal_conv1d": {
        "__version__": _VERSION,
        "causal_conv1d_fn": causal_conv1d_fn,
        "causal_conv1d_update": _of_inference,
    },
    "causal_conv1d.causal_conv1d_interface": {"causal_conv1d_fn": causal_conv1d_fn},
    "causal_conv1d.cpp_functions": {
        "causal_conv1d_fwd_function": causal_conv1d_fwd_function,
        "causal_conv1d_bwd_function": causal_conv1d_bwd_function,
        "causal_conv1d_update_function": _of_inference,
    },
    "selective_scan_cuda": {"fwd": _scan, "bwd": _scan_backward},
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)
