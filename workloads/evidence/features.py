"""What of a job decides how well its step time is predicted: framework, hardware, model, degrees."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from simcore.records import dataclass
from workloads.parallel.axis import AXES
from workloads.parallel.spec import FSDP

#: Libraries whose programs are traced as scripts, by the name of their package.
_LIBRARIES: Final = ("torchtitan", "deepspeed", "megatron-core")

_PRECISIONS: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LISTS: Final = ("tables", "images")


@dataclass(frozen=True)
class JobFeatures:
    """A job as far as it is known; "" and 0 stand for unknown.

    ``framework``: the preset; ``source``: "row" (words of a table), "described", "traced" or "edited".
    ``die`` is the chip that boards share.  ``blocks``: "dense", "experts"; of a list of blocks "tables" or
    "images", and with " forward" where nothing is trained.
    ``params_b``: parameters in billions, all experts counted.  ``microbatches``: of one replica.
    """

    framework: str = ""
    source: str = ""
    board: str = ""
    die: str = ""
    blocks: str = ""
    precision: str = ""
    sharding: str = ""
    recompute: str = ""
    gpus: float = 0
    params_b: float = 0
    layers: float = 0
    hidden: float = 0
    seq: float = 0
    tp: float = 0
    pp: float = 0
    vpp: float = 0
    cp: float = 0
    ep: float = 0
    dp: float = 0
    micro_batch: float = 0
    microbatches: float = 0

    @property
    def lineage(self) -> str:
        """The stem of the framework's name: presets of one stem share most settings."""
        return self.framework.partition("-")[0]

    @property
    def is_list(self) -> bool:
        """Whether the model is a list of blocks, which has evidence of its own."""
        return self.blocks.startswith(_LISTS)

    @property
    def whole(self) -> bool:
        """Whether data-parallel ranks split the parameters themselves (FSDP, ZeRO-3)."""
        return self.sharding in FSDP


NAMES: Final = tuple(field.name for field in fields(JobFeatures))
NUMBERS: Final = tuple(field.name for field in fields(JobFeatures) if field.type == "float")


def job_features(
    model: Mapping[str, Any], parallel: Mapping[str, Any], training: Mapping[str, Any], *,
    framework: str, source: str, board: str, die: str,
) -> JobFeatures:  # fmt: skip
    """Features of a complete job: its specs as plain values, its preset, and the names of its GPU and die."""
    dense, samples = (
        math.prod(parallel.get(axis.name, 1) for axis in AXES.values() if wanted(axis))
        for wanted in (attrgetter("is_dense"), attrgetter("splits_batch"))
    )
    listed = "blocks" in model
    return JobFeatures(
        framework=framework, source=source, board=board, die=die,
        blocks=_listed(model, training) if listed else "experts" if model.get("moe") else "dense",
        precision=training["precision"], sharding=training["sharding"], recompute=training["recompute"],
        gpus=dense, params_b=0 if listed else _parameters(model) / 1e9, layers=model.get("layers", 0),
        hidden=model.get("hidden", 0),
        seq=training["seq"], tp=parallel["tp"], pp=parallel["pp"], vpp=parallel["virtual_stages"],
        cp=parallel["cp"], ep=parallel["ep"], dp=parallel["dp"], micro_batch=training["micro_batch"],
        microbatches=training["global_batch"] / (training["micro_batch"] * samples),
    )  # fmt: skip


def _listed(model: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    tables = any(block["block"] == "tables" for block in model["blocks"])
    return _LISTS[not tables] + (" forward" if training["trainable"] == "none" else "")


def workload_features(
    workload: Mapping[str, Any], board: str, die: str, *, edited: bool = False
) -> JobFeatures:
    """Features of a graph: fields of its ``Workload`` as plain values, and the names of its GPU and die.

    A generated graph holds its specs; of a traced or recorded one what it holds is taken, and the rest is
    unknown.
    """
    options, model, dims = workload["options"], workload["model"], workload["dims"]
    named = re.fullmatch(r"generated \((.*)\)", workload["framework"])
    if named and "parallel" in options and "training" in options:
        source = "edited" if edited else "described"
        return job_features(
            model, options["parallel"], options["training"], framework=named[1], source=source,
            board=board, die=die,
        )  # fmt: skip
    traced = _traced_framework(workload)
    optimizer = "zero1" if options.get("distributed_optimizer") else "ddp"
    # A script's dimensions are its process groups: an axis that it does not name is not known to be 1.
    absent = 1 if traced.startswith("megatron") else 0
    experts = model.get("num_experts") or model.get("moe")
    return JobFeatures(
        framework=traced, source="edited" if edited else "traced", board=board,
        die=die, blocks=("experts" if experts else "dense") if model.get("layers") else "",
        precision=_PRECISIONS.get(workload["precision"], workload["precision"]),
        sharding=optimizer if "distributed_optimizer" in options else "",
        recompute=str(options.get("recompute", "")), gpus=workload["world_size"],
        params_b=_parameters(model) / 1e9 if model.get("layers") else 0,
        layers=_number(model.get("layers")), hidden=_number(model.get("hidden")),
        seq=workload["seq_len"], tp=dims.get("tp", absent), pp=dims.get("pp", absent),
        vpp=_number(options.get("virtual_pipeline")), cp=dims.get("cp", absent),
        ep=_number(model.get("ep")) or absent, dp=dims.get("dp", 0),
        micro_batch=workload["micro_batch_size"], microbatches=workload["num_microbatches"],
    )  # fmt: skip


def _traced_framework(workload: Mapping[str, Any]) -> str:
    """Whose program was traced: a script's library, where its command or its versions name one."""
    said = f"{workload['command']} {' '.join(workload['versions'])}"
    library = next((name for name in _LIBRARIES if name in said), "")
    return str(library or workload["framework"])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _parameters(model: Mapping[str, Any]) -> float:
    """Weights of all layers and of the embedding, from a model's dimensions; norms and biases aside."""
    hidden, layers, moe = model["hidden"], model["layers"], model.get("moe")
    heads = model["heads"]
    size = model.get("head_size") or hidden // heads
    asked = heads * (2 if model.get("attention_gate") else 1)
    attention = hidden * size * (asked + heads + 2 * (model.get("kv_heads") or heads))
    products = 3 if model.get("gated") else 2
    ffn = products * hidden * (model.get("ffn") or model.get("ffn_hidden") or 4 * hidden)
    ffn *= 1 if moe else model.get("num_experts") or 1
    experts = _experts(moe, hidden, products) if moe else 0.0
    embedding = hidden * (model.get("vocab") or 0)
    if pattern := model.get("layer_pattern"):
        each = {"*": attention, "-": ffn, "E": experts, "C": 4 * hidden * hidden}
        each |= {letter: hidden * _mixed(model[key]) for letter, key in _MIXERS.items() if model.get(key)}
        each["H"] = attention + each.get("M", 0)
        return float(embedding + sum(pattern.count(letter) * weights for letter, weights in each.items()))
    count = len(range(moe["first_layer"], layers, moe["every"])) if moe else 0
    blocks = count * experts + (layers - count) * ffn
    layers += model.get("decoder_layers") or 0
    return float(layers * attention + blocks + embedding)


#: Letters of layers that are neither attention nor feed-forward, and the sections of their dimensions.
_MIXERS: Final = {"M": "mamba", "G": "delta"}


def _mixed(mixer: Mapping[str, Any]) -> int:
    """Columns of both projections of a state-space or delta-rule layer; one for each head aside."""
    if "state" in mixer:
        return int(3 * mixer["heads"] * mixer["head_size"] + 2 * mixer["groups"] * mixer["state"])
    return int(3 * mixer["heads"] * mixer["value_size"] + 2 * mixer["key_heads"] * mixer["key_size"])


def _experts(moe: Mapping[str, Any], hidden: int, products: int) -> float:
    latent = moe.get("latent") or 0
    own = products * (latent or hidden) * moe["num_experts"] * moe["ffn"] + 2 * hidden * latent
    return float(own + products * hidden * moe["shared_ffn"])
