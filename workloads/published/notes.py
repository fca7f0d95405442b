"""What was taken for granted where a row's words were not understood."""

from __future__ import annotations

import re
from typing import Final

from workloads.presets import recognise
from workloads.published.model import knows
from workloads.published.row import RunRow
from workloads.published.words import precision_of, recompute_of

#: Boards whose profile is that of a board with another limit of power or other memory.
_STAND_INS: Final = {
    r"\b(pcie|nvl)\b": "predicted as the SXM board of the same name",
    r"gh200": "predicted as H200",
}


def notes_of(row: RunRow) -> list[str]:
    """Remarks for the reader of a prediction; none where everything was understood."""
    found = []
    if not knows(row.text("model")):
        found.append(f"model {row.text('model')!r} is not known by name: its dimensions decide its blocks")
    preset = recognise(row.columns)
    if preset in ("megatron-core", "megatron-lm-2023") and not _names_megatron(row):
        found.append(f"software not recognised: predicted as {preset}")
    for column, understood in (("precision", precision_of(row)), ("recompute", recompute_of(row, 2))):
        if row.says(column) and not understood:
            found.append(f"{column} {row.text(column)!r}: as the preset {preset} has it")
    found += [
        f"{row.text('gpu_type')}: {remark}"
        for pattern, remark in _STAND_INS.items()
        if re.search(pattern, row.text("gpu_type"), re.IGNORECASE)
    ]
    return found


def _names_megatron(row: RunRow) -> bool:
    names = ("family", "source_repo_or_paper", "zero_fsdp", "overlap_notes", "notes", "model")
    return bool(
        re.search(r"megatron|mcore|\bTE\b|megascale", " ".join(row.text(name) for name in names), re.I)
    )
