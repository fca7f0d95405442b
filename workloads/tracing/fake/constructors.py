"""Constructors of torch that a program has replaced are its own: torch itself gets torch's.

Programs replace ``torch.empty`` and the like while they make their models, to choose device and dtype.
torch's rules for shapes are Python that calls these, too: on a GPU it is compiled code, which does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMES = ("empty", "zeros", "ones", "full")
_OWN = {name: getattr(torch, name) for name in _NAMES}
_module = vars(torch)


def are_own() -> bool:
    """Whether nothing is replaced."""
    return all(_module[name] is function for name, function in _OWN.items())


def with_own(call: Callable[[], Any]) -> Any:
    """What ``call`` gives while torch's are in place."""
    replaced = {name: _module[name] for name in _NAMES}
    _module.update(_OWN)
    try:
        return call()
    finally:
        _module.update(replaced)
