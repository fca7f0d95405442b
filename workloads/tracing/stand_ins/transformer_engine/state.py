"""What Transformer Engine keeps beside its layers: random states, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

from workloads.tracing.stand_ins.refusal import NotStoodInError


class CudaRNGStatesTracker:
    """``transformer_engine.pytorch.distributed.CudaRNGStatesTracker``: random states by name."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def get_states(self) -> dict[str, Any]:
        """By name."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        """Replace all."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """A state that starts at ``seed``.  RuntimeError: there is one with this name or seed."""
        if seed in self.seeds_ or name in self.states_:
            raise RuntimeError(f"cuda rng state {name} or seed {seed} already exists")
        self.seeds_.add(seed)
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Draw from the state ``name`` inside.  KeyError: there is none."""
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = True,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Any = None,  # noqa: ARG001
    tp_group: Any = None,  # noqa: ARG001
    **options: Any,
) -> Any:
    """``transformer_engine.pytorch.checkpoint``: computes ``function`` again in the backward pass."""
    if distribute_saved_activations:
        raise NotStoodInError("checkpoints that share what they save among ranks")
    if options and use_reentrant:  # torch's reentrant kind takes no keyword arguments
        return torch.utils.checkpoint.checkpoint(
            lambda *given: function(*given, **options), *args, use_reentrant=True
        )
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=use_reentrant, **options)


@contextmanager
def activation_recompute_forward(*_: Any, **__: Any) -> Iterator[None]:
    """``transformer_engine.pytorch.distributed.activation_recompute_forward``: fp8 alone needs to know."""
    yield
