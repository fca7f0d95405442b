"""Rows of tables that count samples: images of vision models, users of recommendation models.

Their columns are others than those of language models' runs: ``model`` is an architecture's name, ``gpu``,
``num_gpus`` and ``framework`` say on what it ran, ``phase`` what: "train", or forward only ("infer",
"eval").  What was measured is a rate of samples or the time of a batch.  A row becomes words for the same
rules as any other.
"""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.presets import Preset
from workloads.jobs.published.columns import RATES
from workloads.jobs.published.recommenders import (
    PAIRS,
    counts_queries,
    is_recommender,
    recommender_words,
    samples_at_once,
)
from workloads.jobs.published.row import RunRow
from workloads.models.zoo import listed_model

#: Images per GPU where a row gives none (its README's command line), by model; others have the default.
_USUAL_BATCH: Final = (
    (r"efficientnet.*b4", {"mixed": 64, "": 32}), (r"efficientnet.*b0", {"mixed": 256, "": 128}),
    (r"se-?resnext101", {"mixed": 128, "": 64}), (r"", {"": 128}),
)  # fmt: skip

#: Time that hosts of V100 take for an op, over that of hosts of A100 (DGX-1's Xeon E5-2698 v4, DGX A100's
#: EPYC 7742): NeuMF of 1,024 samples 1.30 and 0.61 ms, DLRM of 2,048 2.35 or 1.78 and 1.48
#: (NVIDIA/DeepLearningExamples).
_OLDER_HOST: Final = 1.5


#: Presets of timm's benchmarks.  Inferred from their inference rows: group norms compute in 16 bits there, as
#: benchmark.py's --fast-norm has them (hybrids behind a ResNet come out 2 to 12% off, 25 to 65% slow with
#: wide ones), while the training rows of the same models, and layer norms (torch's own), are wide.
_NARROW_NORMS: Final = "timm"


def phase_of(row: RunRow) -> str:
    """What a row measured: "train", or "infer" where only the forward pass ran."""
    return "infer" if re.match(r"infer|eval|serv", row.text("phase"), re.IGNORECASE) else "train"


def image_words(row: RunRow, preset: Preset) -> dict[str, dict[str, Any]]:
    """A row of images, or of users, as a description.  InputError for an architecture that is not known."""
    if is_recommender(row):
        return _of_users(row, preset)
    name, size = row.text("model"), row.count("img_size", 0) if row.says("img_size") else 0
    if listed_model(name, size) is None:
        raise InputError(f"{row.id}: {name!r} is no architecture that is known by name")
    gpus = row.count("gpus")
    each = max(1, int(row.number("batch_per_gpu", 0)) or int(row.number("global_batch", 0)) // gpus)
    if not (row.says("batch_per_gpu") or row.says("global_batch")):
        each = _usual_batch(row)
    training: dict[str, Any] = {
        "precision": precision_of_samples(row), "micro_batch": each, "global_batch": each * gpus,
    }  # fmt: skip
    software: dict[str, Any] = {"preset": preset.name, **_host(row, preset)}
    if phase_of(row) == "infer":
        training |= {"trainable": "none"}
        software |= {"narrow_norms": preset.name.startswith(_NARROW_NORMS)}
    if row.says("layout") and not row.text("compile").strip().lower().startswith("torch.compile"):
        software["channels_last"] = row.text("layout").lower() == "nhwc"
    if training["precision"] in ("fp32", "tf32"):
        software |= {"autocast": False, "channels_last": False}
    return {
        "model": {"model": name, **({"image_size": size} if size else {})}, "parallel": {"dp": gpus},
        "training": training, "software": software,
    }  # fmt: skip


def _of_users(row: RunRow, preset: Preset) -> dict[str, dict[str, Any]]:
    words = recommender_words(row, preset)
    precision = precision_of_samples(row)
    words["training"] |= {"precision": precision}
    words["software"] |= {"preset": preset.name}
    if phase_of(row) == "infer":
        words["training"] |= {"trainable": "none"}
        words["software"] |= {"autocast": False}  # weights were cast before
    if precision in ("fp32", "tf32"):
        words["software"] |= {"autocast": False, "embedding_output": "float32"}
    elif precision == "int8":
        words["software"] |= {"embedding_output": "int8"}
    words["software"] |= _host(row, preset)
    nodes = row.count("num_nodes", 1) if row.says("num_nodes") else 1
    words["parallel"]["strategy"]["local"] = max(1, row.count("gpus") // nodes)
    if re.search(r"no|eager|off", row.text("xla"), re.IGNORECASE):
        words["software"]["compiled"] = False
    return words


def _host(row: RunRow, preset: Preset) -> dict[str, float]:
    """How long a launch takes the host, where it is an older one than the preset's."""
    eager_us = float(preset.values("software").get("host_us_per_kernel", 0.0))
    older = re.search("v100", row.text("gpu_type"), re.IGNORECASE)
    return {"host_us_per_kernel": _OLDER_HOST * eager_us} if older and eager_us else {}


def _usual_batch(row: RunRow) -> int:
    said = row.text("precision").lower()
    for pattern, sizes in _USUAL_BATCH:
        if re.search(pattern, row.text("model"), re.IGNORECASE):
            return sizes["mixed"] if "mixed" in sizes and re.search("mixed|amp|16", said) else sizes[""]
    raise AssertionError("the last pattern is found everywhere")


def precision_of_samples(row: RunRow) -> str:
    """The precision of products: "amp", "mixed" and the like are fp16, unless bf16 is named."""
    said = row.text("precision").lower()
    first = re.search(r"bf16|bfloat|fp16|float16|amp|mixed|tf32|fp32|float32|int8", said)
    if first is None:
        return "fp16"
    word = first[0]
    if word.startswith("b"):
        return "bf16"
    return {"int8": "int8", "tf32": "tf32", "fp32": "fp32", "float32": "fp32"}.get(word, "fp16")


def samples_step_s(row: RunRow) -> float:
    """Seconds of a batch: as measured, or its samples over their rate.  InputError where neither is given."""
    for column, unit in (("step_ms", 1e-3), ("latency_ms_avg", 1e-3)):
        if row.says(column) and row.number(column) > 0 and column == "step_ms":
            return row.number(column) * unit
    rate = next((row.number(name) for name in RATES if row.says(name)), 0.0)
    if rate <= 0:
        raise InputError(f"{row.id}: neither step_ms nor a rate of samples")
    if is_recommender(row):
        each = samples_at_once(row) / (PAIRS if counts_queries(row) else 1)
        return each * row.count("gpus") / rate
    batch = row.number("global_batch", 0) or row.number("batch_per_gpu", 0) * row.count("gpus")
    return (batch or _usual_batch(row) * row.count("gpus")) / rate
