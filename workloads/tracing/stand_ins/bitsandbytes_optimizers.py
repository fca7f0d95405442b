"""bitsandbytes' optimizers: states of 8 bits in blocks, one kernel a parameter, for which the host waits.

Parameters below 4,096 elements keep states of 32 bits, as do all of an optimizer not named for 8 bits (paged
ones, which may leave the GPU, are taken to stay).
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels

#: Elements from which states have 8 bits, and elements of a block that share a scale (optim/optimizer.py).
_FEW, _BLOCK = 4096, 256


class GlobalOptimManager:
    """Which parameters keep states of other bits: a trainer asks for 32 for tables of embeddings."""

    _only: GlobalOptimManager | None = None

    def __init__(self) -> None:
        self._of_modules: list[tuple[Any, str, dict[str, Any]]] = []
        self._of_parameters: dict[int, dict[str, Any]] = {}

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        """The one there is."""
        cls._only = cls._only or cls()
        return cls._only

    def register_parameters(self, params: Any) -> None:
        """They are told apart by themselves here."""

    def register_module_override(self, module: Any, param_name: str, config: dict[str, Any]) -> None:
        """For a parameter that a module will have."""
        self._of_modules.append((module, param_name, config))

    def override_config(
        self, parameters: Any, key: str = "", value: Any = None, key_value_dict: dict[str, Any] | None = None
    ) -> None:
        """For parameters that there are."""
        for one in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            self._of_parameters.setdefault(id(one), {}).update(key_value_dict or {key: value})

    def bits(self, parameter: torch.Tensor, default: int) -> int:
        """Bits of the states of ``parameter``."""
        of_module = [
            told for module, name, told in self._of_modules if getattr(module, name, None) is parameter
        ]
        told = {**(of_module[-1] if of_module else {}), **self._of_parameters.get(id(parameter), {})}
        return int(told.get("optim_bits", default))


class Optimizer8bit(torch.optim.Optimizer):
    """What programs derive their own from: those make states and update parameter by parameter.

    ``states``: tensors kept for each parameter; ``bits`` of them.
    """

    states, bits, least = 2, 32, _FEW

    def __init__(
        self, params: Any, defaults: dict[str, Any], optim_bits: int = 32, is_paged: bool = False
    ) -> None:
        super().__init__(params, defaults)
        self.bits, self.is_paged, self.initialized = optim_bits, is_paged, False

    def check_overrides(self) -> None:
        """Looked up where states are made."""

    def to_gpu(self) -> None:
        """States are made where their parameters are."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One kernel a parameter that has a gradient; the host waits for each."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.init_state(group, parameter, number, index)
                self.prefetch_state(parameter)
                self.update_step(group, parameter, number, index)
                torch.cuda.synchronize()
        return loss

    def init_state(self, group: dict[str, Any], p: torch.Tensor, gindex: int, pindex: int) -> None:  # noqa: ARG002
        """Zeros."""
        eight = GlobalOptimManager.get_instance().bits(p, self.bits) == 8 and p.numel() >= self.least
        held = self.state[p]
        held["step"] = 0
        for number in range(1, self.states + 1):
            held[f"state{number}"] = torch.zeros_like(p, dtype=torch.uint8 if eight else torch.float32)
            if eight:
                held[f"absmax{number}"] = torch.zeros(-(-p.numel() // _BLOCK), device=p.device)

    def prefetch_state(self, p: torch.Tensor) -> None:
        """It is there."""

    def update_step(self, group: dict[str, Any], p: torch.Tensor, gindex: int, pindex: int) -> None:  # noqa: ARG002
        """One kernel."""
        held = self.state[p]
        held["step"] += 1
        kept = [one for name, one in held.items() if name.startswith(("state", "absmax"))]
        eight = held["state1"].dtype == torch.uint8
        suffix = f"8bit{self.states}StateBlockwise" if eight else f"32bit{self.states}State"
        name = f"kOptimizerStatic{suffix}" if eight else f"kOptimizer{suffix}"
        kernels.launch(name, reads=[p, p.grad, *kept], writes=[p, *kept])


class Optimizer2State(Optimizer8bit):
    """Two states for each parameter."""

    def __init__(
        self,
        optimizer_name: str,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        optim_bits: int = 32,
        args: Any = None,  # noqa: ARG002
        min_8bit_size: int = _FEW,
        *_: Any,
        is_paged: bool = False,
        **__: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, optim_bits, is_paged)
        self.optimizer_name, self.least = optimizer_name, min_8bit_size


class Optimizer1State(Optimizer2State):
    """One state for each parameter."""

    states = 1


def _named(name: str, states: int, bits: int) -> type[Optimizer8bit]:
    """An optimizer under its own name, whose first arguments are parameters and learning rate."""

    def __init__(  # noqa: N807
        self: Any, params: Any, lr: float = 1e-3, *_: Any, weight_decay: float = 0.0, **__: Any
    ) -> None:
        Optimizer2State.__init__(self, name, params, lr, weight_decay=weight_decay, optim_bits=bits)

    base = Optimizer2State if states == 2 else Optimizer1State
    return type(name, (base,), {"__init__": __init__})


def _optimizers() -> dict[str, Any]:
    """By the names under which programs ask for them."""
    found: dict[str, Any] = {}
    for name, states in (("Adam", 2), ("AdamW", 2), ("LAMB", 2), ("Lion", 1), ("RMSprop", 1), ("SGD", 1)):
        for paged in ("", "Paged"):
            for bits in (8, 32):
                for suffix in (str(bits) + "bit", "" if bits == 32 else None):
                    if suffix is not None:
                        called = f"{paged}{name}{suffix}"
                        found[called] = _named(called, states, bits)
    return found


BY_NAME = {**_optimizers(), "GlobalOptimManager": GlobalOptimManager}
BASES: dict[str, Any] = {one.__name__: one for one in (Optimizer8bit, Optimizer1State, Optimizer2State)}
