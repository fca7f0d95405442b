"""How many model chunks the stages of a pipeline log have, where no configuration beside it says so."""

from __future__ import annotations

import math
from typing import Any


def counted_chunks(entries: dict[int, Any], num_stages: int, length: int) -> tuple[int, str]:
    """Chunks of the model by what stages do first, and how that is told.

    Before its first backward stage s of p runs at most p - s forwards in 1F1B, with v chunks
    2 (p - s - 1) + (v - 1) p + 1 (Megatron-LM, pipeline_parallel/schedules.py); all of them where the batch
    has no more, or in GPipe.  ``entries`` are one iteration's of each logged stage, ``length`` its forwards.
    """
    first = {stage: _forwards_first(entry) for stage, entry in entries.items()}
    lists = [entry.get("fwd_chunk") for entry in entries.values() if isinstance(entry, dict)]
    named = [chunk for one in lists if isinstance(one, list) for chunk in one if type(chunk) is int]
    if named:
        chunks = min(max(0, *named), length) + 1
        return chunks, f"{chunks} chunks a stage are those that forwards name: there is no config.json"
    if all(count == length for count in first.values()) and length > num_stages:
        return 1, (
            "all forwards come first, which is read as GPipe: interleaving as many microbatches as stages"
            " looks alike, and needs config.json"
        )
    for chunks in range(2, length // num_stages + 1):
        if length % chunks or length // chunks % num_stages:
            continue
        warm = {stage: 2 * (num_stages - stage - 1) + (chunks - 1) * num_stages + 1 for stage in first}
        if all(count == min(length, warm[stage]) for stage, count in first.items()):
            return chunks, (
                f"{chunks} model chunks a stage and {length // chunks} microbatches, interleaved, are told by"
                " the forwards before each stage's first backward: there is no config.json"
            )
    return 1, "one model chunk a stage, and microbatches as counted: there is no config.json"


def _forwards_first(entry: Any) -> int:
    """Forwards that began before a stage's first backward did."""
    if not isinstance(entry, dict):
        return 0
    forwards, backwards = entry.get("fwd_start"), entry.get("bwd_start")
    if not isinstance(forwards, list) or not isinstance(backwards, list):
        return 0
    begin = min((time for time in backwards if isinstance(time, int | float)), default=math.inf)
    return sum(1 for time in forwards if isinstance(time, int | float) and time < begin)
