"""``kernels``, which fetches compiled kernels from a hub: those of flash-attn are stood in for."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from workloads.tracing.kernels import UnknownKernelError
from workloads.tracing.stand_ins.flash_attn import hopper


def get_kernel(repo_id: str, *_: Any, **__: Any) -> ModuleType:
    """``kernels.get_kernel``.  UnknownKernelError for what is not here."""
    name = repo_id.rpartition("/")[2].replace("_", "-").lower()
    if "flash-attn" not in name and "flash-attention" not in name:
        raise UnknownKernelError(repo_id)
    return hopper.of_hub(name)


def has_kernel(repo_id: str, *_: Any, **__: Any) -> bool:
    """Whether :func:`get_kernel` would give one."""
    return "flash" in repo_id


def take_over(module: ModuleType) -> None:
    """Fetch nothing where the package is installed."""
    vars(module).update(get_kernel=get_kernel, has_kernel=has_kernel)


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return {"get_kernel": get_kernel, "has_kernel": has_kernel} if name == "kernels" else None
