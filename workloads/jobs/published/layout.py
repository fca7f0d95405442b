"""What a row says of its degrees and its pipeline's schedule."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from simcore.errors import InputError
from simcore.graph.schedules import SCHEDULES, ScheduleKind
from workloads.jobs.presets import Preset
from workloads.jobs.published.row import RunRow
from workloads.jobs.published.sharding import shard_ranks, sharding_of
from workloads.jobs.published.words import says_yes
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import WHOLE_GRADIENTS

#: How context-parallel ranks exchange keys and values, by the words that name it.
_CP_STYLES: Final = (
    (r"ulysses", "ulysses"),
    (r"all-?gather.{0,20}(\bcp\b|context)|(\bcp\b|context parallel\w*).{0,20}all-?gather", "all_gather"),
    (r"ring.?attention|(\bcp\b|context parallel\w*).{0,20}\bring\b", "ring"),
)


def said_of_layout(row: RunRow, preset: Preset, model: ModelSpec) -> dict[str, Any]:
    """What the row says of degrees, schedule and experts, as the section ``parallel`` of a description.

    Errors: InputError for degrees that do not divide the GPUs.
    """
    within = row.degrees_within()
    degrees = {**within, "ep": row.count("ep", 1)}
    gpus, inner = row.count("gpus"), math.prod(within.values())
    if gpus % inner:
        product = " x ".join(f"{name} {degree}" for name, degree in within.items())
        raise InputError(f"{row.id}: {gpus} GPUs do not divide by {product}")
    dp = gpus // inner
    said = f"{row.text('overlap_notes')} {row.text('sp')}"
    found: dict[str, Any] = {**degrees, "dp": dp}
    if degrees["pp"] > 1:
        if row.says("vpp") and row.number("vpp", 0):
            found["virtual_stages"] = row.count("vpp")
        usual = preset.values("parallel").get("schedule", "1f1b")
        named = _schedule(said, model.layers // degrees["pp"])
        kind = named or SCHEDULES[usual]
        if kind.otherwise:
            # Two whole copies, whose middle is between two stages; else the V that goes by the name, too.
            sharding = preset.values("training").get("sharding", "ddp")
            sharding = sharding_of(row, sharding).get("sharding", sharding)
            both_ways = degrees["pp"] % 2 == 0 and sharding in WHOLE_GRADIENTS
            named = kind if both_ways else SCHEDULES[kind.otherwise]
        if named:
            found["schedule"] = named.name
            found |= {"virtual_stages": named.num_chunks} if named.num_chunks else {}
    style = next((style for pattern, style in _CP_STYLES if re.search(pattern, said, re.IGNORECASE)), "")
    if style and degrees["cp"] > 1:
        found["cp_style"] = style
    etp = re.search(r"\bETP\)?\s*=?\s*(\d+)", said, re.IGNORECASE)
    if etp:
        found["etp"] = int(etp[1])
    elif re.search(r"\(ETP\)\s*==\s*TP", said):
        found["etp"] = 0
    if re.search(r"embedding and loss counted as layers", said):
        found |= {"embedding_as_layer": True, "head_as_layer": True}
    if degrees["ep"] == 1 and model.moe and re.search(r"deepep", said, re.IGNORECASE):
        found["ep"] = _dispatching_ranks(model.moe.num_experts, dp * degrees["cp"])
    if row.says("sp"):
        found["sequence_parallel"] = says_yes(row.text("sp")) and degrees["tp"] > 1
    shards = shard_ranks(row, dp)
    return found | ({"dp_shard": shards} if shards else {})


def plausible_chunks(row: RunRow) -> list[int]:
    """Chunks that a stage may have had where the row leaves them open; one where it names a schedule.

    "1F1B" is plain unless it is called interleaved; "1F1B overlap" speaks of exchanges.
    """
    said = row.text("overlap_notes")
    plain = re.search(r"(?<!interleaved )\b1f1b\b(?! overlap)", said, re.IGNORECASE)
    return [1] if plain or _schedule(said, 2) else [1, 2, 4, 8]


def _schedule(said: str, layers: int) -> ScheduleKind | None:
    """The schedule of a stage of ``layers`` that the row names: of several the one with the most chunks.

    Its name may hold another's ("DualPipeV").
    """
    for kind in sorted(SCHEDULES.values(), key=lambda kind: -kind.num_chunks):
        if kind.known_as and re.search(kind.known_as, said, re.IGNORECASE) and layers >= kind.num_chunks:
            return kind
    return None


def _dispatching_ranks(experts: int, ranks: int) -> int:
    """DeepEP dispatches between ranks: where a table leaves ep out, the most of 64 that divides both.

    NVIDIA-NeMo/Automodel examples/benchmark/configs: ep_size is the number of GPUs, or 64.
    """
    return next(size for size in range(min(64, experts), 0, -1) if experts % size == 0 == ranks % size)
