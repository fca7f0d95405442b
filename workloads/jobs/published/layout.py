"""What a row says of its degrees and its pipeline's schedule."""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.presets import Preset
from workloads.jobs.published.row import RunRow
from workloads.jobs.published.sharding import shard_ranks, sharding_of
from workloads.jobs.published.words import says_yes
from workloads.models.spec import ModelSpec

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


def said_of_layout(row: RunRow, preset: Preset, model: ModelSpec) -> dict[str, Any]:
    """What the row says of degrees, schedule and experts, as the section ``parallel`` of a description.

    Errors: InputError for degrees that do not divide the GPUs.
    """
    degrees = {name: row.count(name, 1) for name in ("tp", "pp", "cp", "ep")}
    gpus, inner = row.count("gpus"), degrees["tp"] * degrees["pp"] * degrees["cp"]
    if gpus % inner:
        tp, pp, cp = (degrees[name] for name in ("tp", "pp", "cp"))
        raise InputError(f"{row.id}: {gpus} GPUs do not divide by tp {tp} x pp {pp} x cp {cp}")
    dp = gpus // inner
    said = f"{row.text('overlap_notes')} {row.text('sp')}"
    found: dict[str, Any] = {**degrees, "dp": dp}
    if degrees["pp"] > 1:
        if row.says("vpp") and row.number("vpp", 0):
            found["virtual_stages"] = row.count("vpp")
        named, chunks = _schedule(said, model.layers // degrees["pp"])
        if (named or preset.values("parallel").get("schedule")) == "dualpipe":
            # Two whole copies, whose middle is between two stages; else the V that goes by the name, too.
            sharding = preset.values("training").get("sharding", "ddp")
            sharding = sharding_of(row, sharding).get("sharding", sharding)
            both_ways = degrees["pp"] % 2 == 0 and sharding in ("ddp", "zero1")
            named, chunks = ("dualpipe", 1) if both_ways else ("dualpipe_v", 2)
        found |= {"schedule": named} if named else {}
        found |= {"virtual_stages": chunks} if chunks else {}
    style = next((style for pattern, style in _CP_STYLES if re.search(pattern, said, re.IGNORECASE)), "")
    if style and degrees["cp"] > 1:
        found["cp_style"] = style
    etp = re.search(r"\(ETP\)\s*=\s*(\d+)", said)
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
