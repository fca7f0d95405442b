"""``list``: the names that commands take, each with what tells it from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import typer

from simcore.apps.options import Json

Row = dict[str, Any]
_WIDTH: Final = 80


def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="models, gpus, clusters, presets, recipes, settings or workloads."
        ),
    ],
    word: Annotated[str, typer.Argument(help="Only those whose name holds this.")] = "",
    as_json: Json = False,
) -> None:
    """List the names that other commands take."""
    import json
    from textwrap import wrap

    from simcore.errors import InputError, nearest

    if kind not in KINDS:
        raise InputError(f"list {kind!r}: one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    rows = [row for row in KINDS[kind]() if word.lower() in row["name"].lower()]
    if word and not rows:
        names = [row["name"] for row in KINDS[kind]()]
        raise InputError(f"list {kind}: none has {word!r} in its name{nearest(word, names)}")
    if as_json:
        print(json.dumps({kind: rows}))
        return
    widest = max(len(row["name"]) for row in rows)
    for row in rows:
        indent = " " * min(widest + 2, _WIDTH // 2)
        print(
            "\n".join(
                wrap(
                    row["about"],
                    _WIDTH,
                    initial_indent=f"{row['name']:<{widest}}  ",
                    subsequent_indent=indent,
                )
            )
        )


def _models() -> Iterator[Row]:
    from workloads.jobs import model_names, named_model
    from workloads.models.public import context_of
    from workloads.models.spec import ModelSpec

    for name in model_names():
        model = named_model(name)
        if not isinstance(model, ModelSpec):
            blocks = model.num_layers + 2
            yield {
                "name": name, "about": f"a list of {blocks} blocks", "family": "listed", "layers": blocks,
                "hidden": 0, "seq": 0, "experts": 0,
            }  # fmt: skip
            continue
        about = f"{model.family}, {model.layers + model.decoder_layers} layers of {model.hidden:,}"
        if model.moe is not None:
            about += f", {model.moe.num_experts} experts, {model.moe.top_k} a token"
        tokens = model.sequence(1) if model.image_size else context_of(name)
        yield {
            "name": name, "about": f"{about}, {tokens:,} tokens", "family": model.family,
            "layers": model.layers + model.decoder_layers, "hidden": model.hidden, "seq": tokens,
            "experts": model.moe.num_experts if model.moe is not None else 0,
        }  # fmt: skip


def _gpus() -> Iterator[Row]:
    from simcore.hardware import gpu_names, load_gpu
    from simcore.units import GIB

    for name in gpu_names():
        gpu = load_gpu(name)
        mode = "bf16" if "bf16" in gpu.peak_flops else "fp16"
        peak = gpu.peak_flops[mode] / 1e12
        about = (
            f"{gpu.name}, {gpu.generation}, {gpu.hbm_bytes / GIB:.0f} GiB,"
            f" {peak:,.0f} TFLOP/s {mode}, {gpu.hbm_bytes_per_s / 1e12:.2f} TB/s"
        )
        yield {
            "name": name, "about": about, "gpu": gpu.name, "generation": gpu.generation,
            "hbm_bytes": gpu.hbm_bytes, "peak_flops": dict(gpu.peak_flops),
            "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        }  # fmt: skip


def _clusters() -> Iterator[Row]:
    from simcore.hardware import cluster_names, load_cluster

    for name in cluster_names():
        one = load_cluster(name)
        about = (
            f"{one.gpu.name}, nodes of {one.gpus_per_node}, {one.nics_per_node} x"
            f" {one.nic_bytes_per_s * 8e-9:g} Gb/s, {one.fabric}; {name}-N: N GPUs"
        )
        yield {
            "name": name, "about": about, "gpu": one.gpu.name, "num_gpus": one.num_gpus,
            "gpus_per_node": one.gpus_per_node, "nics_per_node": one.nics_per_node,
            "nic_bytes_per_s": one.nic_bytes_per_s, "fabric": one.fabric,
        }  # fmt: skip


def _presets() -> Iterator[Row]:
    from workloads.jobs.presets import load_preset, preset_names

    for name in preset_names():
        yield {"name": name, "about": load_preset(name).description}


def _recipes() -> Iterator[Row]:
    from workloads.jobs.presets import recipes

    for one in recipes().values():
        about = f"{one.model} on {one.gpus} {one.gpu.upper()} as {one.source} has it"
        yield {"name": one.name, "about": about, "model": one.model, "gpu": one.gpu, "gpus": one.gpus}


def _settings() -> Iterator[Row]:
    """Keys of ``--set``: the job's with their defaults, then those of the run and of hardware."""
    from simcore.apps.run.settings import KEYS, NUMBERED
    from workloads.models.software import SoftwareSpec
    from workloads.models.spec import ModelSpec
    from workloads.parallel.spec import ParallelSpec, TrainingSpec

    specs = {"parallel": ParallelSpec, "training": TrainingSpec, "software": SoftwareSpec, "model": ModelSpec}
    for section, spec in specs.items():
        for key, field in spec.model_fields.items():
            default = (
                "needed"
                if field.is_required()
                else f"default {_shown(field.get_default(call_default_factory=True))}"
            )
            yield {"name": f"{section}.{key}", "about": f"{_kind(field.annotation)}; {default}"}
    for key in (*KEYS, *NUMBERED):
        yield {"name": key, "about": _about(key)}


def _workloads() -> Iterator[Row]:
    import json

    from workloads import catalog

    for name in catalog.names():
        header = json.loads((catalog.path(name) / "graph.json").read_text(encoding="utf-8"))["workload"]
        dims = " x ".join(f"{axis.upper()}{size}" for axis, size in header["dims"].items() if size > 1)
        about = (
            f"{header['world_size']:,} GPUs, {dims}, {header['precision']},"
            f" {header['num_microbatches']} microbatches"
        )
        yield {"name": name, "about": about, "gpus": header["world_size"], "dims": header["dims"]}


def _shown(value: Any) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else "none" if value in ("", (), None) else f"{value}"
    )


def _kind(annotation: Any) -> str:
    """What a key takes, in a word or two."""
    from typing import Literal, get_args, get_origin

    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    names = {"int": "whole number", "bool": "true|false", "str": "text", "float": "number"}
    return names.get(getattr(annotation, "__name__", ""), "see docs/models.md")


def _about(key: str) -> str:
    """What a setting of the run or of hardware takes."""
    from simcore.apps.run.settings import NCCL_VARIABLES, choices_of
    from simcore.hardware.keys import CLUSTER, GPU_OVERRIDES
    from simcore.tables import Maybe, Text
    from simcore.units import Number

    if key in NCCL_VARIABLES:
        return f"NCCL's own name of {NCCL_VARIABLES[key]}"
    if choices := choices_of(key):
        return "|".join(choices)
    scope, _, name = key.partition(".")
    rule: Any = {"gpu": GPU_OVERRIDES, "cluster": CLUSTER}.get(scope, {}).get(name)
    rule = rule.schema if isinstance(rule, Maybe) else rule
    if isinstance(rule, Number):
        return f"{rule.dimension}, such as {rule.example}"
    if isinstance(rule, Text) and rule.choices:
        return "|".join(rule.choices)
    return "see run-sim --help"


def complete_workload(incomplete: str) -> list[str]:
    """Names of workloads and models that begin so, for a shell."""
    from workloads import catalog
    from workloads.jobs import model_names
    from workloads.jobs.presets import recipes

    names = (*catalog.names(), *model_names(), *recipes())
    return [name for name in names if name.startswith(incomplete)]


def complete_cluster(incomplete: str) -> list[str]:
    """Names of clusters that begin so, for a shell."""
    from simcore.hardware import cluster_names

    return [name for name in cluster_names() if name.startswith(incomplete)]


#: What can be listed.
KINDS: Final[dict[str, Callable[[], Iterator[Row]]]] = {
    "models": _models,
    "gpus": _gpus,
    "clusters": _clusters,
    "presets": _presets,
    "recipes": _recipes,
    "settings": _settings,
    "workloads": _workloads,
}
