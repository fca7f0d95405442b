"""bitsandbytes: weights of 4 and 8 bits, and optimizers whose states have 8."""

from __future__ import annotations

from typing import Any

from workloads.tracing.stand_ins import bitsandbytes_optimizers, eight_bit_weights, four_bit_weights

_LAYERS = {**four_bit_weights.LAYERS, **eight_bit_weights.LAYERS}
_MODULES: dict[str, dict[str, Any]] = {
    "bitsandbytes": {
        "MatmulLtState": eight_bit_weights.MatmulLtState,
        "__version__": "0.49.0",
        "features": {"multi_backend"},
        "matmul": eight_bit_weights.matmul,
        "matmul_4bit": four_bit_weights.matmul_4bit,
        "supported_torch_devices": {"cpu", "cuda"},
    },
    "bitsandbytes.functional": {**four_bit_weights.FUNCTIONS, **eight_bit_weights.FUNCTIONS},
    "bitsandbytes.nn": _LAYERS,
    "bitsandbytes.nn.modules": _LAYERS,
    "bitsandbytes.optim": bitsandbytes_optimizers.BY_NAME,
    "bitsandbytes.optim.optimizer": bitsandbytes_optimizers.BASES,
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)


def submodules(name: str) -> list[str]:
    """Modules that the import of ``name`` imports."""
    return [one for one in _MODULES if one.rpartition(".")[0] == name]
