"""What was asked, as an answer says it: the job, what of it was assumed, how to change that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Final

from simcore.timeline.info import AssumedValue, RunInfo

WIDTH: Final = 80
#: Keys of what a question may leave open, what moves answers most first (docs/python.md says by how much).
MATTERS: Final = (
    "cluster", "training.seq", "training.global_batch", "parallel.tp", "parallel.pp", "training.recompute",
    "parallel.ep", "software.preset", "workload.kernels", "training.micro_batch", "training.precision",
    "software.fp8_recipe", "training.sharding", "parallel.virtual_stages", "parallel.schedule", "parallel.cp",
)  # fmt: skip
_NAMED: Final = 3
_CLASSES: Final = ("embedding", "dense", "transformer", "expert")
_DEGREES: Final = ("tp", "cp", "pp", "dp", "ep", "etp")


def asked_lines(info: RunInfo) -> list[str]:
    """Lines of at most 80 letters: where, the job, what was assumed and matters most; for a terminal."""
    lines = wrap(title(info), WIDTH, subsequent_indent="  ")
    stated = ", ".join(stated_job(info))
    lines += wrap(stated, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    matter = what_matters(info)
    if matter:
        text = f"* assumed; what matters most: {', '.join(one.flag for one in matter)}"
        lines += _wrapped_flags(text)
    elif "*" in "".join(lines):
        lines.append("  * assumed")
    return lines


def title(info: RunInfo) -> str:
    """The workload and where it runs."""
    gpu = info.cluster.get("gpu", {})
    gpus = info.workload.world_size
    gpu_name = gpu.get("name", "GPU") if isinstance(gpu, dict) else "GPU"
    name = f"{info.cluster.get('name', '')}{_star(info, 'cluster')}"
    return (
        f"{info.workload.name} on {gpus:,} GPU{'s' if gpus > 1 else ''} ({gpu_name}) of cluster {name},"
        f" {info.network} network"
    )


def stated_job(info: RunInfo) -> list[str]:
    """The job part by part: "TP8 x PP4", "global batch 512*", ...; a star marks what was assumed."""
    return [part for part in _parts(info) if part]


def what_matters(info: RunInfo, count: int = _NAMED) -> list[AssumedValue]:
    """Of what was assumed the values that move the answer most, with flags that say others."""
    by_key = {one.key: one for one in info.assumed if one.flag}
    if info.workload.counted == "samples":
        by_key.pop("training.seq", None)  # samples have no tokens
    if "moe" not in info.workload.model:
        by_key.pop("parallel.ep", None)  # nothing to spread
    return [by_key[key] for key in MATTERS if key in by_key][:count]


def job_object(info: RunInfo) -> dict[str, Any]:
    """The complete job by section, as far as it is known: of a recording little is."""
    options, workload = info.workload.options, info.workload
    gpu = info.cluster.get("gpu", {})
    parallel = options.get("parallel", workload.dims)
    training = options.get("training") or {
        "micro_batch": workload.micro_batch_size,
        "global_batch": _global_batch(info),
        "seq": workload.seq_len,
        "precision": workload.precision,
        "recompute": options.get("recompute", ""),
    }
    return {
        "name": workload.name,
        "asked": info.asked,
        "model": {key: value for key, value in workload.model.items() if not key.startswith("model_flops_")},
        "parallel": parallel,
        "training": training,
        "software": info.software
        or {"name": workload.framework, "versions": workload.versions, "kernels": options.get("kernels", "")},
        "cluster": {
            "name": info.cluster.get("name", ""),
            "gpu": gpu.get("name", ""),
            "gpus": workload.world_size,
            "num_nodes": info.cluster.get("num_nodes"),
            "gpus_per_node": info.cluster.get("gpus_per_node"),
            "network": info.network,
            "settings": info.settings,
        },
    }


def _parts(info: RunInfo) -> Iterator[str]:
    job, workload = job_object(info), info.workload
    parallel, training = job["parallel"], job["training"]
    yield _degrees(info, parallel)
    if training.get("sharding"):
        name = str(training["sharding"])
        some = f" over {parallel['dp_shard']}" if parallel.get("dp_shard") else ""
        if not any(parallel.get("strategy", {}).get(key) for key in _CLASSES[1:]):
            yield f"{name}{some}{_star(info, 'training.sharding')}"
    for key in _CLASSES:
        if said := parallel.get("strategy", {}).get(key):
            yield f"{key} {said}"
    if (schedule := parallel.get("schedule")) and parallel.get("pp", 1) > 1:
        chunks = parallel.get("virtual_stages", 1)
        chunked = (
            f" with {chunks} chunks a stage{_star(info, 'parallel.virtual_stages')}" if chunks > 1 else ""
        )
        yield f"schedule {schedule}{_star(info, 'parallel.schedule')}{chunked}"
    if workload.tokens_per_step:
        batch = f"{_global_batch(info):,}{_star(info, 'training.global_batch')}"
        length = f"of {workload.seq_len:,}{_star(info, 'training.seq')} tokens"
        if workload.seq_len:
            yield f"global batch {batch} {'samples' if workload.counted == 'samples' else length}"
        else:
            yield f"{workload.tokens_per_step:,} tokens a step"
        micro = f"{workload.micro_batch_size}{_star(info, 'training.micro_batch')}"
        several = "es" if workload.num_microbatches > 1 else ""
        yield f"{workload.num_microbatches:,} microbatch{several} of {micro}"
    yield f"{workload.precision}{_star(info, 'training.precision')}" if workload.precision else ""
    if workload.precision == "fp8" and (recipe := info.software.get("fp8_recipe")):
        yield f"{recipe} scaling{_star(info, 'software.fp8_recipe')}"
    if recompute := training.get("recompute"):
        said = "no recomputation" if recompute == "none" else f"recompute {recompute}"
        yield said + _star(info, "training.recompute")
    if info.software:
        yield f"preset {info.software.get('name', '')}{_star(info, 'software.preset')}"
    elif kernels := workload.options.get("kernels"):
        yield f"kernels of a {kernels!r} build{_star(info, 'workload.kernels')}"


def _degrees(info: RunInfo, parallel: Mapping[str, Any]) -> str:
    """Degrees that are not 1, or that there is one GPU alone."""
    shown = [
        f"{name.upper()}{size}{_star(info, f'parallel.{name}')}"
        for name in dict.fromkeys((*_DEGREES, *info.workload.dims))
        if isinstance(size := parallel.get(name, 1), int)
        and size > 1
        and (name != "etp" or parallel.get("ep", 1) > 1)
    ]
    return " x ".join(shown)


def _global_batch(info: RunInfo) -> int:
    workload = info.workload
    said = workload.options.get("training", {}).get("global_batch")
    return int(said or (workload.tokens_per_step // workload.seq_len if workload.seq_len else 0))


def _star(info: RunInfo, key: str) -> str:
    return "*" if any(one.key == key for one in info.assumed) else ""


def _wrapped_flags(text: str) -> list[str]:
    """``text`` in lines that break before options only, so that each can be copied."""
    held = text.replace("--set ", "--set\0").replace("--cluster ", "--cluster\0")
    lines = wrap(
        held,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\0", " ") for line in lines]
