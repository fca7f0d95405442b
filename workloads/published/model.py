"""A row's model."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from pydantic import ValidationError

from simcore.errors import InputError
from workloads.models.spec import MlaSpec, ModelSpec, MoeSpec
from workloads.presets import Preset
from workloads.published.row import RunRow

#: What public models say of their layers beside sizes.
_BLOCK_KEYS = ("qk_norm", "sliding_window", "global_every")

#: GPT-2's vocabulary as Megatron-LM pads it, where a row gives none.
_DEFAULT_VOCAB = 51200


def model_of(row: RunRow, preset: Preset) -> ModelSpec:
    """The model that a row names and measures.

    Errors: InputError for layers that are not modelled, or dimensions that neither the row nor the public
    model of that name gives.
    """
    name = row.text("model")
    for entry in _shapes()["refused"]:
        if re.search(entry["pattern"], f"{name} ", re.IGNORECASE):
            raise InputError(f"{row.id}: {name}: {entry['reason']}")
    public = _first(_shapes()["model"], name)
    block = _first(_shapes()["block"], name) or {}
    hidden = _count(row, "hidden", public)
    heads = _count(row, "heads", public)
    try:
        moe = _moe(row, public)
    except ValidationError as error:
        raise InputError(f"{row.id}: experts: {error.errors()[0]['msg']}") from None
    ffn = _ffn(row, public, hidden, moe)
    if not _named(block) and ffn < 4 * hidden:
        block = _first(_shapes()["block"], "llama") or {}  # narrower than 4 x: gated
    settings = {key: value for key, value in block.items() if key not in ("pattern", "source")}
    settings |= {key: public[key] for key in _BLOCK_KEYS if key in public}
    settings |= preset.values("model")
    try:
        return ModelSpec(
            name=name or "model",
            layers=_count(row, "layers", public),
            hidden=hidden,
            heads=heads,
            kv_heads=_count(row, "kv_heads", public, 0) or heads,
            head_size=public.get("head_size", 0),
            ffn=ffn,
            vocab=_count(row, "vocab", public, _DEFAULT_VOCAB),
            moe=moe,
            mla=MlaSpec(**public["mla"]) if "mla" in public else None,
            **settings,
        )
    except ValidationError as error:
        raise InputError(f"{row.id}: {error.errors()[0]['msg']}") from None


def knows(name: str) -> bool:
    """Whether blocks of models of this name are known."""
    return _named(_first(_shapes()["block"], name))


@cache
def _shapes() -> dict[str, list[dict[str, Any]]]:
    text = (resources.files("workloads.published") / "shapes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _first(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((e for e in entries if re.search(e["pattern"], name, re.IGNORECASE)), {})


def _named(block: dict[str, Any]) -> bool:
    return bool(block.get("pattern"))


def _count(row: RunRow, column: str, public: dict[str, Any], default: int | None = None) -> int:
    """The row's own number, else the public model's, else ``default``."""
    if row.says(column):
        return row.count(column)
    if column in public:
        return int(public[column])
    if default is None:
        raise InputError(f"{row.id}: {column} is not given and {row.text('model')!r} is no known model")
    return default


def _ffn(row: RunRow, public: dict[str, Any], hidden: int, moe: MoeSpec | None) -> int:
    """Width of dense blocks: a number, "dense18432/moe2048", or 4 x hidden."""
    numbers = [int(float(number)) for number in re.findall(r"\d+(?:\.\d+)?", row.text("ffn"))]
    if numbers:
        return numbers[0]
    return int(public.get("ffn", moe.ffn if moe else 4 * hidden))


def _moe(row: RunRow, public: dict[str, Any]) -> MoeSpec | None:
    """Experts: "8", "256+1shared", "64+shared 20480 (8x2560)"; width of one from ``ffn``."""
    known = dict(public.get("moe", {}))
    said = re.match(r"\s*(\d+)", row.text("moe_experts"))
    if said and not int(said[1]):
        return None
    if said:
        known["num_experts"] = int(said[1])
    if not known:
        return None
    if row.says("moe_topk"):
        known["top_k"] = row.count("moe_topk")
    widths = [int(float(number)) for number in re.findall(r"\d+(?:\.\d+)?", row.text("ffn"))]
    if widths:
        known["ffn"] = widths[-1]
    if "top_k" not in known or "ffn" not in known:
        raise InputError(f"{row.id}: experts without moe_topk or ffn")
    shared = re.search(r"shared\s*(\d+)", row.text("moe_experts"))
    count = re.search(r"\+\s*(\d+)\s*shared", row.text("moe_experts"))
    if shared:
        known["shared_ffn"] = int(shared[1])
    elif count:
        known["shared_ffn"] = int(count[1]) * known["ffn"]
    capacity = re.search(r"capacity factor (\d+(?:\.\d+)?)", row.text("overlap_notes"))
    if capacity:
        known["capacity_factor"] = float(capacity[1])
    elif re.search(r"token.?drop", f"{row.text('model')} {row.text('notes')}", re.IGNORECASE):
        known["capacity_factor"] = 1.0
    return MoeSpec(**known)
