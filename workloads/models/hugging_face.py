"""A Hugging Face ``config.json`` as a model.

Keys are those of the configuration classes of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcore.errors import InputError, nearest
from workloads.models.check import read_model
from workloads.models.hugging_face_families import FAMILIES
from workloads.models.hugging_face_values import Values
from workloads.models.spec import ModelSpec


def load_hugging_face(path: str | Path) -> ModelSpec:
    """The model that a ``config.json``, or the folder that holds one, describes.

    Errors: InputError when there is none, it is no JSON object, or as for :func:`from_hugging_face`.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: a configuration is an object, not {type(config).__name__}")
    return from_hugging_face(config, str(file))


def from_hugging_face(config: Mapping[str, Any], where: str = "config.json") -> ModelSpec:
    """The model of a configuration's values.

    Errors: InputError for an unknown ``model_type`` (with the nearest known one), a missing key, or sizes
    that do not fit each other; ``where`` begins the message.
    """
    values = Values(config.get("text_config") or config, where)
    kind = values.text("model_type")
    if kind not in FAMILIES:
        raise InputError(f"{where}: model_type {kind!r} is not known{nearest(kind, FAMILIES)}")
    return read_model({"name": kind, **FAMILIES[kind](values)}, where)
