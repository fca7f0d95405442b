"""Public models by name; their dimensions are in ``public.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from simcore.errors import InputError, nearest
from workloads.models.spec import ModelSpec


@cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    text = (resources.files("workloads.models") / "public.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def model_names() -> tuple[str, ...]:
    """Names of all models, sorted."""
    return tuple(sorted(_tables()["models"]))


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
