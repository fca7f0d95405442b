"""What a reader is told of a row: what was taken for granted, and whether it contradicts its neighbours."""

from __future__ import annotations

import math
import re
from functools import cache

from simcore.errors import InputError
from simcore.hardware import load_cluster, named_board
from simcore.tables import TEXT, Each, Rows, load
from workloads.jobs.presets import assumption, recognise
from workloads.jobs.published.cluster import cluster_of
from workloads.jobs.published.model import assumed_sizes, knows, told_columns
from workloads.jobs.published.row import RunRow
from workloads.jobs.published.words import precision_of, recompute_of


def notes_of(row: RunRow) -> list[str]:
    """Remarks for the reader of a prediction; none where everything was understood.

    Errors: InputError for a row that cannot be described.
    """
    if row.counts_samples:
        return _of_cluster(row)
    found = []
    if not knows(row.text("model")):
        found.append(f"model {row.text('model')!r} is not known by name: its dimensions decide its blocks")
    found += assumed_sizes(row)
    columns = told_columns(row)
    preset, assumed = recognise(columns), assumption(columns)
    if assumed:
        found.append(f"software: {assumed}; predicted as {preset}")
    for column, understood in (("precision", precision_of(row)), ("recompute", recompute_of(row, 2))):
        if row.says(column) and not understood:
            found.append(f"{column} {row.text(column)!r}: as the preset {preset} has it")
    return found + _of_cluster(row) + _of_degrees(row)


def _of_cluster(row: RunRow) -> list[str]:
    kind = row.text("gpu_type")
    board = named_board(kind)
    found = [f"{kind}: {board.stands_in}"] if board and board.stands_in else []
    _, warning = load_cluster(cluster_of(row)[0]).gpu.load_remarks(row.count("gpus"))
    return [*found, warning] if warning else found


def _of_degrees(row: RunRow) -> list[str]:
    """A dp that is not what the GPUs leave."""
    try:
        said = row.count("dp", 0) if row.says("dp") else 0
    except InputError:
        return [f"dp {row.text('dp')!r} is no number: what tp, pp and cp leave of the GPUs"]
    left = row.count("gpus") // math.prod(row.degrees_within().values())
    if said and said != left:
        return [f"dp {said}: {left} is what tp, pp and cp leave of the GPUs"]
    return []


def oddity(row: RunRow) -> str:
    """Why a row stands apart; "" for most.  The rules are data: ``odd.toml``."""
    for rule in _odd_rules():
        patterns = {key: pattern for key, pattern in rule.items() if key != "reason"}
        if all(re.search(pattern, _value(row, key), re.IGNORECASE) for key, pattern in patterns.items()):
            return rule["reason"]
    return ""


def _value(row: RunRow, key: str) -> str:
    if key == "head_size":
        hidden, heads = row.number("hidden", 0), row.number("heads", 0)
        return "misaligned" if heads and hidden % (8 * heads) else "aligned"
    return " ".join(row.text(name) for name in key.split("+"))


@cache
def _odd_rules() -> tuple[dict[str, str], ...]:
    schema = {"odd": Rows(Each(TEXT, must={"reason": TEXT}))}
    rules: tuple[dict[str, str], ...] = load(schema, "workloads.jobs.published", "odd.toml")["odd"]
    return rules
