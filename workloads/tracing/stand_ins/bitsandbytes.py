"""bitsandbytes: weights of 4 bits, and optimizers: states of 8 bits in blocks, one kernel a parameter.

Parameters below 4,096 elements keep states of 32 bits, as do all of an optimizer not named for 8 bits (paged
ones, which may leave the GPU, are taken to stay).
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.stand_ins import four_bit_weights

#: Elements from which states have 8 bits, and elements of a block that share a scale (optim/optimizer.py).
_FEW, _BLOCK = 4096, 256


class _Optimizer(torch.optim.Optimizer):
    """``states``: tensors kept for each parameter; ``bits`` of them."""

    name, states, bits = "adam", 2, 32

    def __init__(self, params: Any, lr: float = 1e-3, *_: Any, weight_decay: float = 0.0, **__: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One kernel a parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter)
                    torch.cuda.synchronize()  # as it does (0.49, optim/optimizer.py)
        return loss

    def _update(self, parameter: torch.Tensor) -> None:
        eight = self.bits == 8 and parameter.numel() >= _FEW
        held = self.state[parameter]
        if not held:
            held["step"] = 0
            for number in range(1, self.states + 1):
                dtype = torch.uint8 if eight else torch.float32
                held[f"state{number}"] = torch.zeros_like(parameter, dtype=dtype)
                if eight:
                    blocks = -(-parameter.numel() // _BLOCK)
                    held[f"absmax{number}"] = torch.zeros(blocks, device=parameter.device)
        held["step"] += 1
        kept = [one for one in held.values() if isinstance(one, torch.Tensor)]
        suffix = f"8bit{self.states}StateBlockwise" if eight else f"32bit{self.states}State"
        kernels.launch(
            f"kOptimizerStatic{suffix}" if eight else f"kOptimizer{suffix}",
            reads=[parameter, parameter.grad, *kept],
            writes=[parameter, *kept],
        )


def _optimizers() -> dict[str, Any]:
    """By the names under which programs ask for them."""
    found: dict[str, Any] = {}
    for name, states in (("Adam", 2), ("AdamW", 2), ("LAMB", 2), ("Lion", 1), ("RMSprop", 1), ("SGD", 1)):
        for paged in ("", "Paged"):
            for bits in (8, 32):
                for suffix in (str(bits) + "bit", "" if bits == 32 else None):
                    if suffix is not None:
                        called = f"{paged}{name}{suffix}"
                        found[called] = type(called, (_Optimizer,), {"states": states, "bits": bits})
    return found


_OPTIMIZERS = _optimizers()
_MODULES: dict[str, dict[str, Any]] = {
    "bitsandbytes": {"__version__": "0.49.0", "matmul_4bit": four_bit_weights.matmul_4bit},
    "bitsandbytes.functional": four_bit_weights.FUNCTIONS,
    "bitsandbytes.nn": four_bit_weights.LAYERS,
    "bitsandbytes.nn.modules": four_bit_weights.LAYERS,
    "bitsandbytes.optim": _OPTIMIZERS,
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)


def submodules(name: str) -> list[str]:
    """Modules that the import of ``name`` imports."""
    return [one for one in _MODULES if one.rpartition(".")[0] == name]
