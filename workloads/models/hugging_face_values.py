"""Values of a Hugging Face configuration, each asked for with its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError, nearest

_ACTIVATIONS: Final[dict[str, str]] = {
    "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
    "gelu_python": "gelu", "quick_gelu": "gelu", "silu": "silu", "swish": "silu", "relu": "relu",
    "relu2": "squared_relu",
}  # fmt: skip


class Values:
    """Values of a configuration; a missing one that is needed is an error that names it."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def number(self, key: str, default: int | None = None) -> int:
        """An integer; None (null) counts as missing."""
        value = self._config.get(key)
        value = default if value is None else value
        if value is None:
            raise InputError(f"{self._where}: key {key!r} is missing{nearest(key, self._config)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{self._where}: {key} must be a whole number, not {value!r}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean."""
        value = self._config.get(key)
        return default if value is None else bool(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._config.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise InputError(f"{self._where}: key {key!r} is missing or no string")
        return value

    def inner(self, key: str) -> Values:
        """The values of a configuration inside this one; none where it is missing."""
        value = self._config.get(key) or {}
        if not isinstance(value, Mapping):
            raise InputError(f"{self._where}: {key} must map keys to values, not {value!r}")
        return Values(value, f"{self._where}: {key}")

    def share(self, *keys: str) -> float:
        """The first of ``keys`` that is there, a share; 0 if none is."""
        found = (self._config[key] for key in keys if self._config.get(key) is not None)
        return float(next(found, 0.0))

    def labels(self) -> int:
        """How many classes there are; the configuration's default is two."""
        return len(self._config.get("id2label") or ()) or self.number("num_labels", 2)

    def activation(self, key: str, default: str) -> str:
        """An activation's name in a model."""
        name = self.text(key, default)
        if name not in _ACTIVATIONS:
            raise InputError(
                f"{self._where}: {key}: unknown activation {name!r}{nearest(name, _ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]
