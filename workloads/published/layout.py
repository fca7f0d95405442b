"""A row's degrees, how its layers are dealt, and its pipeline's schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import ParallelSpec
from workloads.parallel.stages import even_as_possible
from workloads.presets import Preset
from workloads.published.row import RunRow
from workloads.published.sharding import shard_ranks, sharding_of
from workloads.published.words import says_yes

#: Schedules by the words that name them, and the chunks a stage has in them (0: as the row says).
_SCHEDULES: Final = (
    (r"dual-?pipe.?v\b", "dualpipe_v", 2),
    (r"dual-?pipe", "dualpipe", 1),
    (r"\bzb-?v\b", "zb_v", 2),
    (r"zero[ -]?bubble|\bzb-?h1\b", "zero_bubble", 0),
    (r"\bgpipe\b", "gpipe", 0),
)

#: How context-parallel ranks exchange keys and values, by the words that name it.
_CP_STYLES: Final = (
    (r"ulysses", "ulysses"),
    (r"all-?gather.{0,20}(\bcp\b|context)|(\bcp\b|context parallel\w*).{0,20}all-?gather", "all_gather"),
    (r"ring.?attention|(\bcp\b|context parallel\w*).{0,20}\bring\b", "ring"),
)


def parallel_of(row: RunRow, preset: Preset, model: ModelSpec, assumed: Mapping[str, Any]) -> ParallelSpec:
    """The row's layout; ``assumed``: what a case takes for inputs that are unpublished.

    Errors: InputError for degrees that do not divide the GPUs, or layers the stages.
    """
    tp, pp, cp, ep = (row.count(name, 1) for name in ("tp", "pp", "cp", "ep"))
    gpus = row.count("gpus")
    if gpus % (tp * pp * cp):
        raise InputError(f"{row.id}: {gpus} GPUs do not divide by tp {tp} x pp {pp} x cp {cp}")
    virtual = int(assumed.get("virtual_stages") or (row.number("vpp", 0) if row.says("vpp") else 0) or 1)
    said = f"{row.text('overlap_notes')} {row.text('sp')}"
    settings = preset.values("parallel")
    if pp == 1:
        virtual = 1
        settings.pop("schedule", None)
    else:
        named, chunks = _schedule(said, model.layers // pp)
        settings |= {"schedule": named} if named else {}
        virtual = chunks or virtual
        if settings.get("schedule") == "dualpipe":
            # Two whole copies, whose middle is between two stages; else the V that goes by the name, too.
            sharding = preset.values("training").get("sharding", "ddp")
            sharding = sharding_of(row, sharding).get("sharding", sharding)
            both_ways = pp % 2 == 0 and sharding in ("ddp", "zero1")
            virtual = 1 if both_ways else 2
            settings["schedule"] = "dualpipe" if both_ways else "dualpipe_v"
    etp = re.search(r"\(ETP\)\s*=\s*(\d+)", said)
    dp = gpus // (tp * pp * cp)
    sequence = assumed.get("sequence_parallel", _sequence_parallel(row, preset))
    style = next((style for pattern, style in _CP_STYLES if re.search(pattern, said, re.IGNORECASE)), "")
    extra: dict[str, Any] = {"cp_style": style} if style and cp > 1 else {}
    if etp:
        extra["etp"] = int(etp[1])
    elif re.search(r"\(ETP\)\s*==\s*TP", said) or ep == 1:
        extra["etp"] = 0
    stages = pp * virtual
    # 126 layers on 16 stages of 8 chunks, 70 on 12: chosen so that both ends count as layers.
    chosen = settings.pop("embedding_as_layer", False) or model.layers % stages
    as_layers = bool(chosen) and (model.layers + 2) % stages == 0
    if re.search(r"embedding and loss counted as layers", said):
        as_layers = True
    if ep == 1 and model.moe and re.search(r"deepep", said, re.IGNORECASE):
        ep = _dispatching_ranks(model.moe.num_experts, dp * cp)
    parallel = ParallelSpec(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep,
        dp_shard=shard_ranks(row, dp), sequence_parallel=bool(sequence) and tp > 1, virtual_stages=virtual,
        **{**settings, "embedding_as_layer": as_layers, "head_as_layer": as_layers, **extra},
    )  # fmt: skip
    if not as_layers and model.layers % stages:
        parallel = parallel.model_copy(
            update={"stage_layers": even_as_possible(model.layers, stages, model.mtp_layers)}
        )
    return parallel


def plausible_chunks(row: RunRow) -> list[int]:
    """Chunks that a stage may have had where the row leaves them open; one where it names a schedule.

    "1F1B" is plain unless it is called interleaved; "1F1B overlap" speaks of exchanges.
    """
    said = row.text("overlap_notes")
    plain = re.search(r"(?<!interleaved )\b1f1b\b(?! overlap)", said, re.IGNORECASE)
    return [1] if plain or _schedule(said, 2)[0] else [1, 2, 4, 8]


def _schedule(said: str, layers: int) -> tuple[str, int]:
    """Schedule and chunks of a stage of ``layers`` that the row names; ("", 0) where it names none."""
    for pattern, name, chunks in _SCHEDULES:
        if re.search(pattern, said, re.IGNORECASE) and layers >= chunks:
            return name, chunks
    return "", 0


def _dispatching_ranks(experts: int, ranks: int) -> int:
    """DeepEP dispatches between ranks: where a table leaves ep out, the most of 64 that divides both.

    NVIDIA-NeMo/Automodel examples/benchmark/configs: ep_size is the number of GPUs, or 64.
    """
    return next(size for size in range(min(64, experts), 0, -1) if experts % size == 0 == ranks % size)


def _sequence_parallel(row: RunRow, preset: Preset) -> bool:
    if row.says("sp"):
        return says_yes(row.text("sp"))
    return bool(preset.values("unpublished").get("sequence_parallel", [False])[0])
