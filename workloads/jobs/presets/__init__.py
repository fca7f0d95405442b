"""What a framework version does by default: kernels, fusions, dtypes, overlap; one TOML file each."""

from workloads.jobs.presets.preset import (
    Preset,
    Setting,
    load_preset,
    megatron_build,
    preset_names,
    read_preset,
)
from workloads.jobs.presets.recipe import PublishedRecipe, recipe_of, recipes
from workloads.jobs.presets.recognise import assumption, recognise

__all__ = [
    "Preset",
    "PublishedRecipe",
    "Setting",
    "assumption",
    "load_preset",
    "megatron_build",
    "preset_names",
    "read_preset",
    "recipe_of",
    "recipes",
    "recognise",
]
