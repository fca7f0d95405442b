"""The model that is said: a name, a config.json or fields, with changes of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simcore.errors import InputError, nearest
from simcore.outside import inside, json_document, read_text, there
from workloads.jobs.presets import Preset
from workloads.models.block import BLOCKS
from workloads.models.checked import checked
from workloads.models.hugging_face import longest_sequence, model_fields
from workloads.models.listed import BlockModel
from workloads.models.model import AnyModel
from workloads.models.public import (
    MOST_CONTEXT,
    USUAL_CONTEXT,
    context_of,
    is_named,
    model_names,
    named_model,
)
from workloads.models.spec import ModelSpec


def file_beside(name: str, where: str, folder: Path | None) -> Path:
    """The file ``name``: in ``folder``, where a file in it names it."""
    return Path(name) if folder is None else inside(folder, name, where)


def said_model(
    said: dict[str, Any], preset: Preset, where: str, folder: Path | None
) -> tuple[AnyModel, tuple[str, ...], tuple[int, str]]:
    """The model, warnings of what was said of it, and tokens of its usual sequences with the reason."""
    fields = dict(said)
    source = fields.pop("model", None)
    base: dict[str, Any] = {}
    remarks: tuple[str, ...] = ()
    context = USUAL_CONTEXT, "as most models are trained on"
    if source is not None:
        if not isinstance(source, str):
            raise InputError(f"{where}: model must be a name, not {str(source)[:80]!r}")
        path = file_beside(source, where, folder)
        if path.suffix == ".json" or there(path):
            config = _read_json(path)
            found, remarks = model_fields(config, str(path))
            base = {**found, "name": _name_of(path)}
            if (longest := longest_sequence(config)) > 0:
                context = min(longest, MOST_CONTEXT), f"{path.name} takes up to {longest:,} tokens"
        elif is_named(source):
            named = named_model(source)
            context = context_of(source), f"sequences that {source} is trained on"
            if not fields and not preset.values("model"):
                return named, (), _context_of_images(named) or context
            base = named.model_dump(exclude_unset=True)
        else:
            raise InputError(f"{where}: unknown model {source!r}{nearest(source, model_names())}")
    if isinstance(fields.get("blocks"), dict) and "blocks" in base:
        fields["blocks"] = _changed_blocks(base["blocks"], fields["blocks"], where)
    if "blocks" in fields or "blocks" in base:
        listed = _listed({**base, **fields}, where)
        return listed, remarks, _context_of_images(listed) or context
    values = {**preset.values("model"), **base, **fields}
    for key in (block.key for block in BLOCKS.values()):
        if isinstance(base.get(key), dict) and isinstance(fields.get(key), dict):
            values[key] = {**base[key], **fields[key]}
    model = checked(ModelSpec, values, f"{where}: model")
    if source is None and model.max_positions:
        context = model.max_positions, "the model's positions"
    return model, remarks, _context_of_images(model) or context


def _context_of_images(model: AnyModel) -> tuple[int, str] | None:
    """Nothing of a list of blocks is as long as a sequence."""
    if not isinstance(model, ModelSpec):
        return 1, "a sample of this model is one thing, no sequence"
    return (model.sequence(1), "an image's patches and its class token") if model.image_size else None


def _changed_blocks(
    blocks: Sequence[Mapping[str, Any]], changes: Mapping[str, Any], where: str
) -> list[dict[str, Any]]:
    """A named model's blocks with changes of some, said by name, kind or place (``blocks.tables.memory``)."""
    found = [dict(block) for block in blocks]
    for key, values in changes.items():
        meant = [
            block
            for number, block in enumerate(found)
            if str(key) in (str(number), block["block"], block.get("name"))
        ]
        if not meant or not isinstance(values, dict):
            known = dict.fromkeys(block.get("name") or block["block"] for block in found)
            raise InputError(f"{where}: model.blocks.{key}: no block to change{nearest(str(key), known)}")
        for block in meant:
            block.update(values)
    return found


def _listed(values: Mapping[str, Any], where: str) -> BlockModel:
    """A list of blocks; ``image_size`` is that of its first block."""
    found = dict(values)
    size = found.pop("image_size", None)
    if size is not None:
        first, *others = found["blocks"]
        found["blocks"] = [{**dict(first), "size": size}, *others]
    return checked(BlockModel, found, f"{where}: model")


def _name_of(path: Path) -> str:
    return path.parent.resolve().name if path.stem == "config" else path.stem


def _read_json(path: Path) -> Mapping[str, Any]:
    content = json_document(read_text(path, "a model's config.json", "json"), str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object, got {type(content).__name__}")
    return content
