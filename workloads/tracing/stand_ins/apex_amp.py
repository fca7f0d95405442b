"""``apex.amp`` for who does not use it (``opt_level="O0"``); what it would cast is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


def initialize(
    models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", **_: object
) -> Any:
    """Models and optimizers as they are.  NotImplementedError where they would be cast."""
    if enabled and opt_level != "O0":
        raise NotImplementedError(
            f"apex.amp with opt_level {opt_level} casts what torch computes and has no stand-in: "
            "torch.autocast can be traced"
        )
    return models if optimizers is None else (models, optimizers)


@contextlib.contextmanager
def scale_loss(loss: Any, *_: object, **__: object) -> Iterator[Any]:
    """The loss as it is."""
    yield loss


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    """All parameters of an optimizer."""
    return (one for group in optimizer.param_groups for one in group["params"])


def _registered(*_: object) -> None:
    """Nothing is cast."""


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


MEMBERS: dict[str, Any] = {
    "initialize": initialize,
    "scale_loss": scale_loss,
    "master_params": master_params,
    "state_dict": dict,
    "load_state_dict": _registered,
    **dict.fromkeys(
        ("register_half_function", "register_float_function", "register_promote_function"), _registered
    ),
    **dict.fromkeys(("half_function", "float_function", "promote_function"), _as_it_is),
}
