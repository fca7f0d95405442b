"""Launches that a training log tells: Megatron-LM's list of arguments, torchtitan's configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError
from simcore.outside import json_document
from workloads.jobs.launch.dialect import Dialect
from workloads.jobs.launch.options import Words, whole

#: Megatron's "  hidden_size ............. 4096", perhaps behind a rank or a time.
_ARGUMENT: Final = re.compile(r"^.{0,80}?\b([a-z][A-Za-z0-9_]*) \.{3,} ?(.*?)\s*$")
_BEGIN: Final = re.compile(r"^.{0,80}-{6,} arguments -{6,}")
_END: Final = re.compile(r"^.{0,80}-{6,} end of arguments -{6,}")
_PADDED: Final = re.compile(r"> padded vocab \(size: [0-9]+\) .*\(new size: ([0-9]+)\)")
_CONFIGURATION: Final = re.compile(r"Running with (?:args|configs): (?=\{)")
#: Arguments whose flag says the contrary, and those that flags call otherwise.
_CONTRARY: Final = {
    "add_bias_linear": "--disable-bias-linear",
    "add_position_embedding": "--no-position-embedding",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "apply_rope_fusion": "--no-rope-fusion",
    **{
        f"{name}_fusion": f"--no-{name.replace('_', '-')}-fusion"
        for name in ("bias_gelu", "bias_swiglu", "bias_dropout", "masked_softmax", "gradient_accumulation")
    },
}
_OTHERWISE: Final = {
    "fp8": "--fp8-format", "fp4": "--fp4-format",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
}  # fmt: skip
#: What Megatron sets itself from others, or for models that are no matter, whatever was asked.
_DERIVED: Final = ("encoder_num_layers", "decoder_num_layers", "is_hybrid_model")
_DTYPES: Final = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.uint8": "fp8",
}
_MOST_LETTERS: Final = 1 << 20


def logged_launch(dialect: Dialect, text: str, where: str) -> tuple[Words, int, list[str]] | None:
    """Words of the launch that a log tells, on how many GPUs (0: not told), and notes; None for other texts.

    InputError for a log that tells a configuration which is damaged.
    """
    if dialect.name == "megatron":
        return _arguments(dialect, text)
    found = _CONFIGURATION.search(text)
    if dialect.name != "torchtitan" or found is None:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, found.end())
    except (json.JSONDecodeError, RecursionError):
        raise InputError(f"{where}: the configuration in it is no JSON, or truncated") from None
    content: Any = json_document(text[found.end() : end], where)
    ranks = re.search(r"\bWORLD_SIZE[=:]\s*([0-9]{1,8})\b|with world_size ([0-9]{1,8})\b", text)
    count = int(ranks[1] or ranks[2]) if ranks else 0
    return dialect.document(content, where), count, ["the configuration is the log's"]


def _arguments(dialect: Dialect, text: str) -> tuple[Words, int, list[str]] | None:
    """Megatron's block of arguments as flags."""
    values: dict[str, str] = {}
    inside = False
    for line in text.split("\n"):
        if _END.match(line):
            break
        if _BEGIN.match(line):
            inside = True
        elif inside and (found := _ARGUMENT.match(line[:_MOST_LETTERS])):
            values[found[1]] = found[2]
    if not values:
        return None
    words, others = _as_flags(values, frozenset(dialect.names))
    padded = _PADDED.search(text)
    if padded:
        words["--padded-vocab-size"] = (padded[1],)
    notes = [f"the log's {len(values)} arguments, {len(words)} of which say what is described"]
    if others:
        notes.append(f"arguments of the log without a counterpart: {' '.join(others)[:200]}")
    return words, whole(values.get("world_size", "")) or 0, notes


def _as_flags(
    values: Mapping[str, str], known: frozenset[str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Flags that lead to these arguments, and those of parallelism or kernels that none knows."""
    words: dict[str, tuple[str, ...]] = {}
    others = []
    for name, value in values.items():
        flag = _OTHERWISE.get(name, "--" + name.replace("_", "-"))
        if name in _CONTRARY:
            if value == "False":
                words[_CONTRARY[name]] = ()
        elif name in _DERIVED or value in ("None", "False", "", "[]"):
            continue
        elif flag in known:
            words[flag] = () if value == "True" else _words(flag, value)
        elif name.endswith(("_overlap", "_parallel_size", "_offload", "_offloading")) and value != "1":
            others.append(f"{name}={value[:40]}")
    if values.get("group_query_attention") == "False":
        words.pop("--num-query-groups", None)
    if "--num-layers-per-virtual-pipeline-stage" in words:
        words.pop("--num-virtual-stages-per-pipeline-rank", None)
    if "--recompute-granularity" not in words:
        words.pop("--recompute-modules", None)
    if "--num-experts" not in words:
        words = {flag: said for flag, said in words.items() if "expert" not in flag and "moe" not in flag}
    return words, [one for one in others if not one.startswith(("data_parallel", "transformer_pipeline"))]


def _words(flag: str, value: str) -> tuple[str, ...]:
    """A value as it was said: lists without their brackets, enumerations without their class."""
    if value.startswith("[") and flag != "--moe-layer-freq":
        return tuple(part.strip(" '\"") for part in value.strip("[]").split(",") if part.strip())
    if re.fullmatch(r"[A-Z]\w+\.\w+", value):
        value = value.rpartition(".")[2]
    return (_DTYPES.get(value, value),)
