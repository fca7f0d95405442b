"""Values of a Hugging Face configuration, each asked for with its type."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.errors import InputError, nearest

#: Sizes beyond it are damage: nothing of a model is counted in more.
_MOST: Final = 2**32
#: A key that is nobody's and as near as this to one that is missing may be that one, misspelt.
_NEAR: Final = 0.75
#: Keys of published configurations that say nothing of a model's size and are near to ones that do.
_OTHERS: Final = frozenset({
    "_sliding_window_pattern", "sliding_window_size", "qk_head_dim", "hidden_dropout_prob", "embed_dropout",
    "position_embedding_type", "num_ln_in_parallel_attn", "max_position_embeddings",
})  # fmt: skip

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
        self._asked: set[str] = set()
        self._inner: list[Values] = []

    def misspelt(self) -> Iterator[str]:
        """A warning for each key that nobody asked for and that is near to one that was missed."""
        missed = {_plain(key): key for key in sorted(self._asked) if self._config.get(key) is None}
        for key in self._config.keys() - self._asked - _OTHERS if missed else ():
            close = difflib.get_close_matches(_plain(key), missed, 1, _NEAR)
            if close:
                yield (
                    f"{self._where}: key {key[:80]!r} is not known and ignored; did you mean"
                    f" {missed[close[0]]!r}, which is missing?"
                )
        for inner in self._inner:
            yield from inner.misspelt()

    def _value(self, key: str) -> Any:
        self._asked.add(key)
        return self._config.get(key)

    def number(self, key: str, default: int | None = None, *, least: int = 0, or_key: str = "") -> int:
        """An integer of at least ``least`` where it is given; None (null) counts as missing.

        ``or_key``: the same in another version of the configuration's class.
        """
        value = self._value(key)
        if value is None and or_key and (value := self._value(or_key)) is not None:
            key = or_key
        value = default if value is None else value
        if value is None:
            raise self._missing(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number", value)
        if value < least and self._config.get(key) is not None:
            raise self._wrong(key, f"at least {least}", value)
        if value > _MOST:
            raise InputError(f"{self._where}: {key} = {value} is more than any model has (at most {_MOST:,})")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean."""
        value = self._value(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return default if value is None else value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key)
        value = default if value is None else value
        if value is None:
            raise self._missing(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def inner(self, key: str, *shared: str) -> Values:
        """Values of a configuration inside this one, ``shared`` ones also from here; none if missing."""
        value = self._value(key)
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        value = {**{name: self._config[name] for name in shared if name in self._config}, **value}
        self._inner.append(Values(value, f"{self._where}: {key}"))
        return self._inner[-1]

    def share(self, key: str) -> float:
        """A share of 0 to less than 1; 0 if it is missing."""
        value = self._value(key)
        value = 0.0 if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self._wrong(key, "a share, at least 0 and less than 1", value)
        return float(value)

    def factor(self, key: str, default: float) -> float:
        """A positive number."""
        value = self._value(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise self._wrong(key, "a positive number", value)
        return float(value)

    def empty(self, key: str, what: str) -> None:
        """InputError unless a list is empty or missing: ``what`` it would say is not modelled."""
        value = self._value(key)
        if value is not None and not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        if value:
            raise self.not_modelled(key, what)

    def last(self, key: str, layers: int, what: str) -> None:
        """InputError unless it is the last of ``layers``, -1 or missing: ``what`` else is not modelled."""
        if self._value(key) not in (None, -1, layers - 1):
            raise self.not_modelled(key, what)

    def said(self, key: str) -> Any:
        """A value as it stands; None where it is missing."""
        return self._value(key)

    def indices(self, key: str) -> list[int]:
        """Numbers of layers; empty where it is not said."""
        value = self._value(key) or []
        if not isinstance(value, list) or any(isinstance(k, bool) or not isinstance(k, int) for k in value):
            raise self._wrong(key, "a list of whole numbers", value)
        return value

    def kinds(self, key: str) -> list[str]:
        """What each layer is, by a name; empty where it is not said."""
        value = self._value(key) or []
        if not isinstance(value, list) or not all(isinstance(kind, str) for kind in value):
            raise self._wrong(key, "a list of strings", value)
        return value

    def not_modelled(self, key: str, what: str) -> InputError:
        """That ``what`` a key says is not modelled."""
        return InputError(
            f"{self._where}: {key} = {str(self._config.get(key))[:80]}: {what} are not modelled"
        )

    def labels(self) -> int:
        """How many classes there are; the configuration's default is two."""
        named = self._value("id2label")
        if named is not None and not isinstance(named, Mapping):
            raise self._wrong("id2label", "an object", named)
        return len(named or ()) or self.number("num_labels", 2)

    def activation(self, key: str, default: str) -> str:
        """An activation's name in a model."""
        name = self.text(key, default)
        if name not in _ACTIVATIONS:
            raise InputError(
                f"{self._where}: {key}: unknown activation {name!r}{nearest(name, _ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    def _missing(self, key: str) -> InputError:
        said = " (null)" if key in self._config else nearest(key, self._config)
        return InputError(f"{self._where}: key {key!r} is missing{said}")

    def _wrong(self, key: str, expected: str, value: object) -> InputError:
        return InputError(f"{self._where}: {key} must be {expected}, not {repr(value)[:80]}")


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")
