"""Models by name; their dimensions are in ``named.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from simcore.errors import InputError, nearest
from workloads.models.spec import ModelSpec

#: What all Llama-like models share (arXiv 2302.13971, section 2.2).
LLAMA: dict[str, Any] = {
    "family": "llama",
    "gated": True,
    "activation": "silu",
    "norm": "rmsnorm",
    "bias": False,
    "positions": "rotary",
    "tied_embeddings": False,
}


@cache
def _tables() -> dict[str, dict[str, Any]]:
    text = (resources.files("workloads.descriptions") / "named.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def model_names() -> tuple[str, ...]:
    """Names of all models, sorted."""
    return tuple(sorted(_tables()))


def named_model(name: str) -> ModelSpec:
    """A model by name.  InputError, with the nearest name, when there is none of that name."""
    tables = _tables()
    if name not in tables:
        raise InputError(f"unknown model {name!r}{nearest(name, tables)}")
    table = {key: value for key, value in tables[name].items() if key not in ("source", "base")}
    shared = LLAMA if tables[name].get("base") == "llama" else {}
    return ModelSpec(name=name, **{**shared, **table})
