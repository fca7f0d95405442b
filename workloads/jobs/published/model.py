"""A row's model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from simcore.errors import InputError
from simcore.tables import TEXT, Maybe, Rows, load
from workloads.jobs.presets import Preset
from workloads.jobs.published.row import RunRow
from workloads.models.public import find_model
from workloads.models.spec import ModelSpec, MoeSpec

#: GPT-2's vocabulary as Megatron-LM pads it, where a row gives none.
_DEFAULT_VOCAB = 51200

#: Elements of a head where neither the row nor the name tells how many heads there are.
_USUAL_HEAD = 128

#: ``blocks.toml``; a block without pattern is any other's.
_BLOCKS: Final = {
    "refused": Rows({"pattern": TEXT, "reason": TEXT}),
    "block": Rows(
        {"pattern": Maybe(TEXT), "source": TEXT, **{key: Maybe(Any) for key in ModelSpec.model_fields}}
    ),
}

_DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab", "moe", "mla")


def model_of(row: RunRow, preset: Preset) -> ModelSpec:
    """The model that a row names and measures.

    Errors: InputError for layers that are not modelled, or dimensions that neither the row nor the public
    model of that name gives.
    """
    name = row.text("model")
    for entry in _blocks()["refused"]:
        if re.search(entry["pattern"], f"{name} ", re.IGNORECASE):
            raise InputError(f"{row.id}: {name}: {entry['reason']}")
    public = _public(row)
    hidden = _count(row, "hidden", public)
    usual = hidden // _USUAL_HEAD if hidden % _USUAL_HEAD == 0 else None
    heads = _count(row, "heads", public, usual)
    try:
        moe = _moe(row, public)
    except InputError as error:
        raise InputError(f"{row.id}: experts: {error}") from None
    ffn = _ffn(row, public, hidden, moe)
    sizes = {
        "layers": _layers_of_a_cut(row) or _count(row, "layers", public),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _count(row, "kv_heads", public, 0) or heads,
        "ffn": ffn,
        "vocab": _count(row, "vocab", public, 0 if public.get("family") == "vit" else _DEFAULT_VOCAB),
        "moe": moe,
    }
    blocks = _block(name, ffn, hidden) if not public else {}
    settings = {**blocks, **public, **preset.values("model"), **sizes}
    try:
        return ModelSpec(**{"name": name or "model", **settings})
    except InputError as error:
        raise InputError(f"{row.id}: {error}") from None


def told_columns(row: RunRow) -> Mapping[str, str]:
    """The row's columns, and of its public model whether it has experts."""
    experts = _public(row).get("moe")
    if experts is None or row.says("moe_experts"):
        return row.columns
    return {**row.columns, "moe_experts": str(experts["num_experts"])}


def assumed_sizes(row: RunRow) -> list[str]:
    """Dimensions that neither the row nor the name gives and that were taken for granted, as remarks."""
    public = _public(row)
    remarks = []
    if not row.says("vocab") and "vocab" not in public and public.get("family") != "vit":
        remarks.append(f"vocab is not given: {_DEFAULT_VOCAB}")
    if not row.says("heads") and "heads" not in public:
        remarks.append(f"heads are not given: hidden / {_USUAL_HEAD}")
    if not row.says("ffn") and "ffn" not in public:
        remarks.append("ffn is not given: 4 x hidden")
    cut = _layers_of_a_cut(row)
    if 0 < cut <= public.get("moe", {}).get("first_layer", 0):
        remarks.append(f"cut to {cut} layers: all with experts, where the model begins without")
    if re.search(r"\bproxy\b", row.text("model"), re.IGNORECASE) and not (row.says("layers") or cut):
        remarks.append("a proxy of unknown depth: predicted with all layers")
    return remarks


def knows(name: str) -> bool:
    """Whether blocks of models of this name are known."""
    return bool(find_model(name)) or "pattern" in _named(name)


@cache
def _blocks() -> dict[str, tuple[dict[str, Any], ...]]:
    found: dict[str, tuple[dict[str, Any], ...]] = load(_BLOCKS, "workloads.jobs.published", "blocks.toml")
    return found


def _public(row: RunRow) -> dict[str, Any]:
    """The public model of the row's name; only its blocks where the row's width says that it is another."""
    public = dict(find_model(row.text("model")))
    if public and row.says("hidden") and row.count("hidden") != public["hidden"]:
        return {key: value for key, value in public.items() if key not in _DIMENSIONS}
    return public


def _layers_of_a_cut(row: RunRow) -> int:
    """Layers of a model that is cut by its name ("proxy, 4 layers", "cut to 4 layers"); 0 where it is not."""
    said = re.search(r"\b(\d{1,3})[\s-]layers?\b", row.text("model"), re.IGNORECASE)
    return int(said[1]) if said and not row.says("layers") else 0


def _named(name: str) -> dict[str, Any]:
    return next(e for e in _blocks()["block"] if re.search(e.get("pattern", ""), name, re.IGNORECASE))


def _block(name: str, ffn: int, hidden: int) -> dict[str, Any]:
    """Blocks by name; of an unknown model Llama's where its FFN is narrower than 4 x hidden: gated."""
    block = _named(name)
    if "pattern" not in block and ffn < 4 * hidden:
        block = _named("llama")
    return {key: value for key, value in block.items() if key not in ("pattern", "source")}


def _count(row: RunRow, column: str, public: Mapping[str, Any], default: int | None = None) -> int:
    """The row's own number, else the public model's, else ``default``."""
    if row.says(column):
        return row.count(column)
    if column in public:
        return int(public[column])
    if default is None:
        raise InputError(f"{row.id}: {column} is not given and {row.text('model')!r} is no known model")
    return default


def _ffn(row: RunRow, public: Mapping[str, Any], hidden: int, moe: MoeSpec | None) -> int:
    """Width of dense blocks: a number, "dense18432/moe2048", or 4 x hidden."""
    widths = _widths(row)
    return widths[0] if widths else int(public.get("ffn", moe.ffn if moe else 4 * hidden))


def _widths(row: RunRow) -> list[int]:
    """What the column ``ffn`` says: a number as it is meant ("1.2e4"), else those in its words."""
    try:
        float(row.text("ffn").replace(",", ""))
    except ValueError:
        return [int(float(width)) for width in re.findall(r"\d{1,9}(?:\.\d+)?", row.text("ffn"))]
    return [row.count("ffn")] if row.says("ffn") else []


def _moe(row: RunRow, public: Mapping[str, Any]) -> MoeSpec | None:
    """Experts: "8", "256+1shared", "64+shared 20480 (8x2560)"; width of one from ``ffn``, where it stands
    last or by name ("12288 dense / 1536 expert + 3072 shared"); dense layers of a model that is cut by its
    name ("cut to 4 layers, 1 dense").
    """
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
    if widths := _widths(row):
        named = re.search(r"(\d{1,9}) expert", row.text("ffn"))
        known["ffn"] = int(named[1]) if named else widths[-1]
    layers = _layers_of_a_cut(row)
    if dense := re.search(r"\b(\d{1,4}) dense", row.text("model")):
        known["first_layer"] = int(dense[1])
    elif 0 < layers <= known.get("first_layer", 0):
        known["first_layer"] = 0
    if "top_k" not in known or "ffn" not in known:
        raise InputError(f"{row.id}: experts without moe_topk or ffn")
    shared = re.search(r"shared\s*(\d+)", row.text("moe_experts")) or re.search(
        r"(\d{1,9}) shared", row.text("ffn")
    )
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
