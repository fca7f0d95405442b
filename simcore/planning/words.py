"""A strategy in the field's short form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from workloads.jobs import Description


def short_form(job: Description) -> str:
    """Degrees, chunks, schedule, micro batch, sharding and recomputation: "tp4 pp2 cp2 v8 mb1 zero1"."""
    p, t = job.parallel, job.training
    degrees = {"tp": p.tp, "pp": p.pp, "cp": p.cp, "ep": p.ep, "etp": p.etp if p.ep > 1 else 0}
    words = [f"{name}{size}" for name, size in degrees.items() if size > 1 or (name == "etp" and size)]
    words.append(f"dp{p.dp}" + (f"/{p.dp_shard}" if p.dp_shard else ""))
    if p.virtual_stages > 1 and p.pipeline.loops:
        words.append(f"v{p.virtual_stages}")
    if p.pp > 1 and p.schedule != "1f1b":
        words.append(p.schedule)
    words += [f"mb{t.micro_batch}", t.sharding]
    if t.sharding in ("fsdp1", "fsdp2", "zero3") and not t.reshard_after_forward:
        words.append("kept")
    if t.recompute != "none":
        some = f"={t.recompute_layers}" if t.recompute_layers >= 0 else ""
        modules = t.recompute == "selective" and t.recompute_modules
        words.append(f"{t.recompute}{some}" + (f":{'+'.join(modules)}" if modules else ""))
    if p.stage_layers:
        words.append("-".join(_runs(p.stage_layers)))
    return " ".join(words)


def _runs(counts: Sequence[int]) -> Iterator[str]:
    """Layers of stages in a row, equal ones together: "7-6x8-5"."""
    for count, group in groupby(counts):
        times = len(list(group))
        yield f"{count}x{times}" if times > 1 else f"{count}"
