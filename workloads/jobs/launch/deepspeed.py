"""DeepSpeed's configuration file: batch, ZeRO and precision; the model is the training program's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.complete import Description
from workloads.jobs.launch.dialect import Dialect
from workloads.jobs.launch.options import Option, Said, Settings, Words, flat_words, truth
from workloads.parallel.spec import FSDP

_ZERO: Final = "zero_optimization."
_STAGES: Final = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
_KINDS: Final = ("fp32", "fp16", "bf16")


def _read_batch(said: Said) -> Settings:
    micro = said.needed("train_micro_batch_size_per_gpu")
    rounds = said.number("gradient_accumulation_steps", 1)
    batch = said.number("train_batch_size", micro * rounds * said.num_gpus)
    return {"training.micro_batch": micro, "training.global_batch": batch}


def _write_batch(job: Description) -> Words:
    training = job.training
    return {
        "train_batch_size": (str(training.global_batch),),
        "train_micro_batch_size_per_gpu": (str(training.micro_batch),),
        "gradient_accumulation_steps": (str(training.num_microbatches(job.parallel)),),
    }


def _read_zero(said: Said) -> Settings:
    kind = said.meant(f"{_ZERO}stage", _STAGES, "ddp")
    bucket = said.real(f"{_ZERO}reduce_bucket_size", 5e8)
    return {"training.sharding": kind, "training.bucket_parameters": round(bucket)}


def _write_zero(job: Description) -> Words:
    stages = {kind: stage for stage, kind in _STAGES.items()}
    found = {f"{_ZERO}stage": (stages.get(job.training.sharding, "3"),)}
    bucket = job.training.bucket_parameters
    return {**found, f"{_ZERO}reduce_bucket_size": (str(bucket),)} if bucket > 0 else found


def _read_precision(said: Said) -> Settings:
    on = [kind for kind in _KINDS[1:] if said.truth(f"{kind}.enabled", default=False)]
    if len(on) > 1:
        raise said.wrong("fp16.enabled", "contradicts bf16.enabled")
    wide = on[0] if on else "fp32"
    names = dict(zip(_KINDS, _KINDS, strict=True))
    return {
        "training.precision": wide, "training.param_gather_dtype": wide,
        "training.grad_dtype": said.meant("data_types.grad_accum_dtype", names, wide),
        "training.grad_reduce_dtype": said.meant("communication_data_type", names, wide),
    }  # fmt: skip


def _write_precision(job: Description) -> Words:
    training = job.training
    found = {f"{kind}.enabled": (str(kind == training.precision).lower(),) for kind in _KINDS[1:]}
    return {
        **found, "communication_data_type": (training.grad_reduce_dtype,),
        "data_types.grad_accum_dtype": (training.grad_dtype,),
    }  # fmt: skip


def _read_optimizer(said: Said) -> Settings:
    kinds = {"AdamW": "adam", "Adam": "adam", "SGD": "sgd"}
    return {"training.optimizer": said.meant("optimizer.type", kinds, "adam")}


def _write_optimizer(job: Description) -> Words:
    return {"optimizer.type": ("SGD" if job.training.optimizer == "sgd" else "AdamW",)}


_TABLE: Final = (
    Option(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        _read_batch, _write_batch,
    ),
    Option((f"{_ZERO}stage", f"{_ZERO}reduce_bucket_size"), _read_zero, _write_zero),
    truth(f"{_ZERO}overlap_comm", "training.overlap_grad_reduce", default=False),
    Option(
        ("fp16.enabled", "bf16.enabled", "communication_data_type", "data_types.grad_accum_dtype"),
        _read_precision, _write_precision,
    ),
    Option(
        ("gradient_clipping",),
        lambda said: {"training.clip_gradients": said.real("gradient_clipping", 0.0) > 0},
        lambda job: {"gradient_clipping": ("1.0" if job.training.clip_gradients else "0.0",)},
    ),
    Option(("optimizer.type",), _read_optimizer, _write_optimizer),
)  # fmt: skip


def _refused(job: Description) -> Iterator[str]:
    p, training = job.parallel, job.training
    for axis in ("tp", "pp", "cp", "ep"):
        if p.degree(axis) > 1:
            yield f"parallel.{axis}={p.degree(axis)}: its file has data parallelism alone"
    if training.sharding in FSDP and training.sharding != "zero3":
        yield f"training.sharding={training.sharding}: it has ZeRO-1, 2, 3, and none"
    if training.precision not in _KINDS:
        yield f"training.precision={training.precision}: it has {', '.join(_KINDS)}"


def _parsed(words: Sequence[str], where: str) -> tuple[Words, list[str]]:
    del words
    raise InputError(f"{where}: DeepSpeed is told by a JSON file")


def _value(key: str, text: str) -> Any:
    if key.endswith("type"):
        return text
    return json.loads(text)


def _rendered(_: Description, words: Words, __: int) -> str:
    content: dict[str, Any] = {}
    for key, values in words.items():
        *path, last = key.split(".")
        place = content
        for part in path:
            place = place.setdefault(part, {})
        place[last] = _value(key, values[0])
    return json.dumps(content, indent=2) + "\n"


def _commented(lines: Sequence[str], text: str) -> str:
    """JSON has no comments: a key that DeepSpeed does not read."""
    return json.dumps({"_comment": list(lines), **json.loads(text)}, indent=2) + "\n"


def _document(content: Mapping[str, Any], where: str) -> Words:
    return flat_words({key: value for key, value in content.items() if key != "_comment"}, where)


DEEPSPEED: Final = Dialect(
    name="deepspeed",
    called="DeepSpeed",
    table=_TABLE,
    preset=lambda _: "deepspeed",
    no_influence=re.compile(
        r"(steps_per_print|wall_clock_breakdown|scheduler|optimizer\.params|tensorboard)(\..*)?"
    ),
    refused=_refused,
    parsed=_parsed,
    document=_document,
    rendered=_rendered,
    suffix=".json",
    left=("model.", "software.", "parallel.", "training.seq", "training.recompute", "training.trainable"),
    commented=_commented,
)
