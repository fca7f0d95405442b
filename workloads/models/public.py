"""Public models by name; their dimensions are in ``public.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.tables import TEXT, Each, Maybe, load
from workloads.models.spec import ModelSpec

_FIELDS: Final = dict.fromkeys(ModelSpec.model_fields.keys() - {"name"}, Maybe(Any))
_SCHEMA: Final = {
    "base": Each({"extends": Maybe(TEXT), **_FIELDS}),
    "models": Each({"pattern": TEXT, "base": TEXT, "source": TEXT, **_FIELDS}),
}


@cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = load(_SCHEMA, "workloads.models", "public.toml")
    return found


def model_names() -> tuple[str, ...]:
    """Names of all models, sorted."""
    return tuple(sorted(_tables()["models"]))


@cache
def named_model(name: str) -> ModelSpec:
    """A model by name.  InputError, with the nearest name, when there is none of that name."""
    models = _tables()["models"]
    if name not in models:
        raise InputError(f"unknown model {name!r}{nearest(name, models)}")
    return ModelSpec(name=name, **_fields(models[name]))


def find_model(text: str) -> Mapping[str, Any]:
    """Fields of the model that a table means by ``text`` ("Llama 3.1 8B", "mixtral_8x7b"); empty if none.

    The first pattern of ``public.toml`` that is found in the text, in lower case with "-" for blanks.
    """
    said = re.sub(r"[\s_/-]+", "-", text.lower())
    models = _tables()["models"].values()
    found = next((entry for entry in models if re.search(entry["pattern"], said)), None)
    return _fields(found) if found is not None else {}


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in entry.items() if key not in ("pattern", "source", "base")}
    return {**_shared(entry["base"]), **own}


def _shared(base: str) -> dict[str, Any]:
    """What models of a kind have in common."""
    fields = dict(_tables()["base"][base])
    further = fields.pop("extends", "")
    return {**(_shared(further) if further else {}), **fields}
