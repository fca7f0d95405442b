"""Columns of tables that count samples, by the names that tables of runs have."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

#: Columns of such tables, and what other tables call them.
_NAMES: Final = {
    "gpu": "gpu_type",
    "num_gpus": "gpus",
    "source": "source_repo_or_paper",
    "source_path": "source_location",
}
#: Of these columns one says that a table counts samples.
RATES: Final = ("throughput_img_s", "throughput_samples_s")


#: Columns without which no row can be read, of runs and of samples.
_OF_RUNS: Final = ("model", "seq", "gpus", "gpu_type", "global_batch")
_OF_SAMPLES: Final = ("model", "gpu", "num_gpus")


def counts_samples(columns: Collection[str]) -> bool:
    """Whether a table of these columns counts samples."""
    return any(name in columns for name in RATES)


def needed_columns(columns: Collection[str]) -> Collection[str]:
    """Columns without which no row of such a table can be read."""
    return _OF_SAMPLES if counts_samples(columns) else _OF_RUNS


def as_run(columns: Mapping[str, str]) -> dict[str, str]:
    """A row's columns by the names that tables of runs have; of samples with a family to summarise by."""
    if not counts_samples(columns):
        return dict(columns)
    found = {_NAMES.get(name, name): text for name, text in columns.items()}
    kind, phase = _kind(columns), columns.get("phase", "").strip() or "train"
    found["family"] = f"{kind} {phase.partition('-')[0]}"
    found["seq"] = "1"
    if not found.get("gpus", "").strip():
        found["gpus"] = "1"
    return found


def _kind(columns: Mapping[str, str]) -> str:
    source = columns.get("source", "").rpartition("/")[2] or "unnamed"
    source = re.sub(r"_v\d[\d.]*$", "", source)
    family = columns.get("family", "").strip() or re.sub(
        r"-(small|large|extra-large)$", "", columns.get("model", "")
    )
    return f"{source} {family}".strip()
