"""Recipes: whole jobs that a framework publishes as functions, by the names of these functions.

Note [Recipes]
    ``recipes/<framework>.csv`` holds a recipe a line: the file and line of its function, the model, what is
    done (pretrain, sft, peft), on how many of which GPUs, the preset that stands for the rest, and settings
    (``section.key``; lists are separated by spaces, layers of stages are written ``4*15+1``).  They are what
    the function's own flags and those of the functions that it calls come to.  Megatron-Bridge: commit
    067f987df0 of August 2026, src/megatron/bridge/perf_recipes.  "false" where a flag is off, empty where it
    has no meaning.  cuda_graphs "true" stands for graphs of a whole iteration or of whole layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from simcore.hardware import cluster_for
from simcore.outside import csv_rows
from simcore.records import dataclass
from workloads.models.model import AnyModel
from workloads.models.public import found_name, named_model
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import FSDP

_FOLDER: Final = files("workloads.jobs.presets") / "recipes"
_LISTS: Final = ("recompute_modules", "offload")
_STAGES: Final = "stage_layers"
#: Degrees by which a published run is told from another of the same model.
_DEGREES: Final = ("tp", "pp", "cp", "ep")


@dataclass(frozen=True)
class PublishedRecipe:
    """``settings[section][key]``; ``gpu`` and ``gpus``: what it was written for."""

    name: str
    source: str
    model: str
    kind: str
    gpu: str
    gpus: int
    preset: str
    settings: Mapping[str, Mapping[str, Any]]

    def content(self) -> dict[str, Any]:
        """The description of its job, as a YAML file would have it."""
        software = {"preset": self.preset, **self.settings["software"]}
        return {"model": self.model, **self.settings, "software": software}

    def scenario(self) -> dict[str, Any]:
        """The same on a cluster of its GPUs."""
        cluster, placed = cluster_for(self.gpu, self.gpus)
        return {**self.content(), "cluster": cluster, "set": dict(placed)}


@cache
def recipes() -> Mapping[str, PublishedRecipe]:
    """All recipes by name."""
    found = {}
    for entry in sorted(_FOLDER.iterdir(), key=lambda entry: entry.name):
        for _, row in csv_rows(entry.read_bytes(), "recipes", where=entry.name):
            one = _recipe(row)
            found[one.name] = one
    return found


def recipe_of(
    model: ModelSpec, gpu: str, gpus: int, kind: str, training: Mapping[str, Any], fp8_recipe: str,
    parallel: Mapping[str, Any],
) -> PublishedRecipe | None:  # fmt: skip
    """The recipe that a run of ``model`` followed: the same precision and degrees, nearest in GPUs.

    Of several models of the same sizes that of the run's name, of several ways to shard the run's.  What a
    pretraining recipe freezes, it freezes of its own model alone.  None where no recipe for the GPU has these
    degrees: flags of another layout say nothing of it.
    """
    degrees = tuple(parallel.get(key, 1) for key in _DEGREES)
    precision = training.get("precision", "bf16")
    name, sharded = found_name(model.name), training.get("sharding", "zero1") in FSDP
    alike = [
        one
        for one in recipes().values()
        if (one.gpu, one.kind) == (gpu, kind)
        and _sizes(named_model(one.model)) == _sizes(model)
        and (one.model == name or kind != "pretrain" or "trainable" not in one.settings["training"])
        and one.settings["training"]["precision"] == precision
        and (not fp8_recipe or one.settings["software"].get("fp8_recipe", fp8_recipe) == fp8_recipe)
        and tuple(one.settings["parallel"][key] for key in _DEGREES) == degrees
    ]
    chunks, micro = parallel.get("virtual_stages", 1), training.get("micro_batch")
    return min(
        alike,
        key=lambda one: (
            one.model != name,
            (one.settings["training"]["sharding"] in FSDP) != sharded,
            one.settings["parallel"]["virtual_stages"] != chunks,
            one.settings["software"].get("fp8_recipe", "mxfp8") != "mxfp8",  # Blackwell's, where none is said
            one.settings["training"]["micro_batch"] != micro,
            max(one.gpus / gpus, gpus / one.gpus),
            one.name,
        ),
        default=None,
    )


def _sizes(model: AnyModel) -> tuple[object, ...]:
    moe = getattr(model, "moe", None)
    return model.num_layers, getattr(model, "hidden", 0), moe.num_experts if moe else 0


def _recipe(row: Mapping[str, str]) -> PublishedRecipe:
    settings: dict[str, dict[str, Any]] = {"parallel": {}, "training": {}, "software": {}}
    for column, text in row.items():
        section, _, key = column.partition(".")
        if key and text:
            settings[section][key] = _value(key, text)
    return PublishedRecipe(
        row["recipe"], row["source"], row["model"], row["kind"], row["gpu"], int(row["gpus"]), row["preset"],
        settings,
    )  # fmt: skip


def _value(key: str, text: str) -> Any:
    if key in _LISTS:
        return tuple(text.split(" "))
    if key == _STAGES:
        runs = (part.partition("*") for part in text.split("+"))
        return tuple(int(layers) for layers, _, times in runs for _ in range(int(times or 1)))
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"\d+", text) else text
