"""What was asked, as an answer says it: the job, what of it was assumed, how to change that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Protocol

from simcore.units import what_counts

if TYPE_CHECKING:
    from simcore.graph import Workload
    from simcore.timeline.info import WorkloadInfo

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


class Assumption(Protocol):
    """A key that was left open, its value and why: of a description, or as a run's record keeps it."""

    @property
    def key(self) -> str:
        """The setting, or "cluster", or "" where there is none to say it by."""

    @property
    def value(self) -> Any:
        """What it was given."""

    @property
    def why(self) -> str:
        """Why so."""


class AskedJob(Protocol):
    """A question: :class:`simcore.timeline.info.RunInfo`, or one that nothing was simulated for."""

    @property
    def workload(self) -> Workload | WorkloadInfo:
        """The job, how it is spread and trained."""

    @property
    def cluster(self) -> Mapping[str, Any]:
        """Its ``name`` and ``gpu``, and what else is known of it."""

    @property
    def network(self) -> str:
        """How traffic is modelled."""

    @property
    def software(self) -> Mapping[str, Any]:
        """Kernel choices of a described job."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What was set."""

    @property
    def asked(self) -> str:
        """The question, as arguments of the command that asks it."""

    @property
    def assumed(self) -> Sequence[Assumption]:
        """What was left open."""


def asked_lines(info: AskedJob) -> list[str]:
    """Lines of at most 80 letters: where, the job, what was assumed and matters most; for a terminal."""
    lines = wrap(title(info), WIDTH, subsequent_indent="  ")
    stated = ", ".join(stated_job(info))
    lines += wrap(stated, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    matter = what_matters(info)
    if matter:
        text = f"* assumed; what matters most: {', '.join(flag_of(one) for one in matter)}"
        lines += _wrapped_flags(text)
    elif "*" in "".join(lines):
        lines.append("  * assumed")
    return lines


def title(info: AskedJob) -> str:
    """The workload and where it runs."""
    gpu = info.cluster.get("gpu", {})
    gpus = info.workload.world_size
    gpu_name = gpu.get("name", "GPU") if isinstance(gpu, dict) else "GPU"
    name = f"{info.cluster.get('name', '')}{_star(info, 'cluster')}"
    return (
        f"{info.workload.name} on {gpus:,} GPU{'s' if gpus > 1 else ''} ({gpu_name}) of cluster {name},"
        f" {info.network} network"
    )


def stated_job(info: AskedJob) -> list[str]:
    """The job part by part: "TP8 x PP4", "global batch 512*", ...; a star marks what was assumed."""
    return [part for part in _parts(info) if part]


def what_matters(info: AskedJob, count: int = _NAMED) -> list[Assumption]:
    """Of what was assumed the values that move the answer most, with flags that say others."""
    by_key = {one.key: one for one in info.assumed if flag_of(one)}
    if what_counts(info.workload.seq_len) == "samples":
        by_key.pop("training.seq", None)  # samples have no tokens
    if "moe" not in info.workload.model:
        by_key.pop("parallel.ep", None)  # nothing to spread
    return [by_key[key] for key in MATTERS if key in by_key][:count]


def flag_of(assumed: Assumption) -> str:
    """The option that says it, and so changes it; "" where there is none."""
    key, value = assumed.key, assumed.value
    if not key or value is None:
        return ""
    value = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    text = str(value).lower() if isinstance(value, bool) else f"{value}"
    return f"--cluster {text}" if key == "cluster" else f"--set {key}={text}"


def job_object(info: AskedJob) -> dict[str, Any]:
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


def _parts(info: AskedJob) -> Iterator[str]:
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
        counted = what_counts(workload.seq_len)
        length = f"of {workload.seq_len:,}{_star(info, 'training.seq')} " if counted == "tokens" else ""
        if workload.seq_len:
            yield f"global batch {batch} {length}{counted}"
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


def _degrees(info: AskedJob, parallel: Mapping[str, Any]) -> str:
    """Degrees that are not 1, or that there is one GPU alone."""
    shown = [
        f"{name.upper()}{size}{_star(info, f'parallel.{name}')}"
        for name in dict.fromkeys((*_DEGREES, *info.workload.dims))
        if isinstance(size := parallel.get(name, 1), int)
        and size > 1
        and (name != "etp" or parallel.get("ep", 1) > 1)
    ]
    return " x ".join(shown)


def _global_batch(info: AskedJob) -> int:
    workload = info.workload
    said = workload.options.get("training", {}).get("global_batch")
    return int(said or (workload.tokens_per_step // workload.seq_len if workload.seq_len else 0))


def _star(info: AskedJob, key: str) -> str:
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
