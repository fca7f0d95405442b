"""What Transformer Engine keeps beside its layers: recipes of fp8 (refused where used), random states."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

from workloads.tracing.stand_ins.transformer_engine.refusal import NotStoodInError


class Format(enum.Enum):
    """``transformer_engine.common.recipe.Format``."""

    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"


class Recipe:
    """How numbers are scaled; says what it was made with."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.args = args
        for name, value in options.items():
            setattr(self, name, value)


#: Recipes that programs name, each a class of its own.
RECIPES: dict[str, type] = {
    name: type(name, (Recipe,), {})
    for name in (
        *("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling"),
        *("MXFP8BlockScaling", "NVFP4BlockScaling", "CustomRecipe"),
    )
}


@contextmanager
def autocast(enabled: bool = True, *_: Any, **__: Any) -> Iterator[None]:
    """``transformer_engine.pytorch.autocast`` (and ``fp8_autocast``): refuses to be enabled."""
    _refuse(enabled)
    yield


@contextmanager
def quantized_model_init(enabled: bool = True, *_: Any, **__: Any) -> Iterator[None]:
    """``transformer_engine.pytorch.quantized_model_init`` (and ``fp8_model_init``): refuses to be enabled."""
    _refuse(enabled)
    yield


def _refuse(enabled: bool) -> None:
    if enabled:
        raise NotStoodInError("fp8: trace in bf16, or describe the model, which knows fp8")


class FP8GlobalStateManager:
    """``transformer_engine.pytorch.fp8.FP8GlobalStateManager``: fp8 is off."""

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Never."""
        return False

    is_fp8_calibration = with_fp8_parameters = is_first_fp8_module = is_fp8_enabled

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """The default."""
        found: Recipe = RECIPES["DelayedScaling"]()
        return found

    @classmethod
    def reset(cls) -> None:
        """Nothing is kept."""

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """There are no weights in fp8."""


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
