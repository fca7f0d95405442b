"""A Hugging Face ``config.json`` as a model.

Keys are those of the configuration classes of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError, nearest
from workloads.models.check import check_model
from workloads.models.hugging_face_experts import WITH_EXPERTS
from workloads.models.hugging_face_families import FAMILIES
from workloads.models.hugging_face_values import Values
from workloads.models.spec import ModelSpec

#: model_type -> the description of its configuration.
KNOWN: Final = {**FAMILIES, **WITH_EXPERTS}

#: Kinds of layers that are not modelled, by a pattern on ``model_type``.
_NOT_MODELLED: Final = (
    (r"mamba|jamba|bamba|zamba|nemotron_h|falcon_h1|granitemoehybrid|plamo2", "state-space (Mamba) layers"),
    (r"qwen3_next|qwen3_5|kimi_linear|olmo_hybrid", "gated delta-rule layers"),
    (r"rwkv|xlstm|recurrent_gemma|griffin|retnet", "recurrent layers"),
)


def from_hugging_face(config: Mapping[str, Any], where: str = "config.json") -> ModelSpec:
    """The model of a configuration's values.

    Errors: InputError as for :func:`model_fields`, and for sizes that do not fit each other.
    """
    model = ModelSpec(**model_fields(config, where))
    check_model(model, where)
    return model


def model_fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of a :class:`ModelSpec`; ``where`` begins messages.

    Errors: InputError for an unknown ``model_type`` (with the nearest known one) or a missing or wrong value.
    """
    values = Values(config.get("text_config") or config, where)
    kind = values.text("model_type", "")
    if not kind:
        raise InputError(f"{where}: model_type is missing: this is no Hugging Face config.json")
    for pattern, layers in _NOT_MODELLED:
        if re.search(pattern, kind):
            raise InputError(f"{where}: model_type {kind!r}: {layers} are not modelled, only attention")
    if kind not in KNOWN:
        raise InputError(f"{where}: model_type {kind!r} is not known{nearest(kind, KNOWN)}")
    return {"name": kind, **KNOWN[kind](values)}
