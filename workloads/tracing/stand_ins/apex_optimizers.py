"""``apex.optimizers``: each step of a group is one kernel over all of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from workloads.tracing import kernels


class FusedAdam(torch.optim.AdamW):
    """As torch's fused AdamW."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **_: Any,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


class _MultiTensor(torch.optim.Optimizer):
    """``kernel`` reads gradients, parameters and ``states`` (fp32, as many elements each), and
    writes the last two.
    """

    kernel: str
    states: tuple[str, ...]

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._before()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            owned = [one for one in group["params"] if one.grad is not None]
            for one in owned:
                for name in self.states:
                    if name not in self.state[one]:
                        self.state[one][name] = torch.zeros_like(one, dtype=torch.float32)
            kept = [*owned, *(self.state[one][name] for one in owned for name in self.states)]
            if owned:
                kernels.launch(self.kernel, reads=[*(one.grad for one in owned), *kept], writes=kept)
        return loss

    def _before(self) -> None:
        """What goes before all groups."""


class FusedAdagrad(_MultiTensor):
    """``apex.optimizers.FusedAdagrad``."""

    kernel, states = "multi_tensor_adagrad", ("sum",)


class FusedLAMB(_MultiTensor):
    """``apex.optimizers.FusedLAMB``: the norm of all gradients, then norms and updates of each group."""

    kernel, states = "multi_tensor_lamb", ("exp_avg", "exp_avg_sq")

    def _before(self) -> None:
        owned = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
        if owned:
            kernels.launch("multi_tensor_l2norm", reads=owned, writes=[owned[0].new_empty(1)])
