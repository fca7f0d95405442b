"""A strategy in the field's short form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from simcore.planning.ground import classes_of
from workloads.jobs import Description
from workloads.models.pieces import LayerClass
from workloads.parallel.strategy import WORDS


def short_form(job: Description) -> str:
    """Degrees, chunks, schedule, micro batch, sharding and recomputation: "tp4 pp2 cp2 v8 mb1 zero1".

    Of a list of blocks what each class of layers does: "dense fsdp.ddp, embedding mp row_wise".
    """
    if classes := classes_of(job):
        return ", ".join(_class_words(job, layers) for layers in WORDS if layers in classes)
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
        of_kind = {"selective": t.recompute_modules, "full": tuple(f"-{name}" for name in t.recompute_keeps)}
        which = of_kind.get(t.recompute, ())
        words.append(f"{t.recompute}{some}" + (f":{'+'.join(which)}" if which else ""))
    if t.offload:
        some = f"={t.offload_layers}" if t.offload_layers >= 0 else ""
        words.append(f"offload{some}:{'+'.join(t.offload)}")
    if p.stage_layers:
        words.append("-".join(_runs(p.stage_layers)))
    return " ".join(words)


def _class_words(job: Description, layers: LayerClass) -> str:
    """What a class does, ranks on which tables lie included."""
    strategy = job.parallel.strategy
    words = getattr(strategy, layers) or ("mp" if layers == "embedding" else job.training.sharding)
    tables = "by plan" if strategy.plan else strategy.tables
    return f"{layers} {words}" + (f" {tables}" if layers == "embedding" and "mp" in words else "")


def fine_form(job: Description, base: Description) -> str:
    """What a strategy has otherwise than ``base`` along the axes that its short form leaves out, with a space
    before each: " bucket160M no-tp-overlap".
    """
    p, t = job.parallel, job.training
    switches = {
        "sp": (p.sequence_parallel, base.parallel.sequence_parallel),
        "tp-overlap": (t.tp_overlap, base.training.tp_overlap),
        "grad-overlap": (t.overlap_grad_reduce, base.training.overlap_grad_reduce),
    }
    words = [name if now else f"no-{name}" for name, (now, before) in switches.items() if now != before]
    if t.bucket_parameters != base.training.bucket_parameters:
        size = t.bucket_parameters
        words.append(f"bucket{size // 10**6}M" if size > 0 else f"bucket{'-auto' if size < 0 else '-one'}")
    if p.order != base.parallel.order:
        words.append(p.order)
    ends = {
        "emb": (p.embedding_as_layer, base.parallel.embedding_as_layer),
        "head": (p.head_as_layer, base.parallel.head_as_layer),
    }
    words += [f"{name}{'+' if now else '-'}1" for name, (now, before) in ends.items() if now != before]
    return "".join(f" {word}" for word in words)


def _runs(counts: Sequence[int]) -> Iterator[str]:
    """Layers of stages in a row, equal ones together: "7-6x8-5"."""
    for count, group in groupby(counts):
        times = len(list(group))
        yield f"{count}x{times}" if times > 1 else f"{count}"
