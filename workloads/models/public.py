"""Public models by name; their dimensions are in ``public.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.tables import TEXT, Each, Maybe, Plain, Rows, load
from workloads.models.model import AnyModel
from workloads.models.spec import ModelSpec
from workloads.models.zoo import listed_model, listed_names

_FIELDS: Final = dict.fromkeys(ModelSpec.model_fields.keys() - {"name"}, Maybe(Any))
#: Tokens of a sequence where nothing else is known, and the most that a model is trained on unasked.
USUAL_CONTEXT: Final = 4096
MOST_CONTEXT: Final = 8192
_SCHEMA: Final = {
    "context": Rows({"of": TEXT, "tokens": Plain(integer=True), "source": TEXT}),
    "base": Each({"extends": Maybe(TEXT), **_FIELDS}),
    "models": Each({"pattern": TEXT, "base": TEXT, "source": TEXT, **_FIELDS}),
}


@cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = load(_SCHEMA, "workloads.models", "public.toml")
    return found


def model_names() -> tuple[str, ...]:
    """Names of all models, sorted."""
    return tuple(sorted({*_tables()["models"], *listed_names()}))


@cache
def named_model(name: str) -> AnyModel:
    """A model by name.  InputError, with the nearest name, when there is none of that name."""
    models = _tables()["models"]
    if name in models:
        return ModelSpec(name=name, **_fields(models[name]))
    found = listed_model(name)
    if found is None:
        raise InputError(f"unknown model {name!r}{nearest(name, model_names())}")
    return found


def is_named(name: str) -> bool:
    """Whether a model has that name: one of :func:`model_names`, or of a family of names (``resnet50d``)."""
    return name in _tables()["models"] or listed_model(name) is not None


def context_of(name: str) -> int:
    """Tokens of the sequences that the model of that name is usually trained on."""
    rows = _tables()["context"]
    return next((int(row["tokens"]) for row in rows if re.match(row["of"], name)), USUAL_CONTEXT)


def find_model(text: str) -> Mapping[str, Any]:
    """Fields of the model that a table means by ``text`` ("Llama 3.1 8B", "mixtral_8x7b"); empty if none."""
    name = found_name(text)
    return _fields(_tables()["models"][name]) if name else {}


def found_name(text: str) -> str:
    """Name of that model: the first pattern of ``public.toml`` found in ``text``, in lower case with "-" for
    blanks; "" if none is.
    """
    said = re.sub(r"[\s_/-]+", "-", text.lower())
    models = _tables()["models"].items()
    return next((name for name, entry in models if re.search(entry["pattern"], said)), "")


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in entry.items() if key not in ("pattern", "source", "base")}
    return {**_shared(entry["base"]), **own}


def _shared(base: str) -> dict[str, Any]:
    """What models of a kind have in common."""
    fields = dict(_tables()["base"][base])
    further = fields.pop("extends", "")
    return {**(_shared(further) if further else {}), **fields}
