"""What predictions of peak memory missed measured ones by: the lines of ``memory_misses.csv``.

The file is written from what ``validate.py --memory CSV --json`` prints:

    python -m workloads.evidence.memory_misses PRINTED.json... > workloads/evidence/memory_misses.csv
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from simcore.memory import MemoryMisses

COLUMNS: Final = ("id", "family", "measured", "predicted")
#: Families of one kind of model: those with state-space layers.
_ONE_KIND: Final = {"nemotron": "hybrid"}
#: Rows recorded before their test had its flags: the same bytes on one and on two tensor-parallel ranks.
_STALE: Final = tuple(f"hybrid/hybrid_mr_mcore_te_tp{tp}_pp1_cp1_dgx_a100_1N8G lts_dgx_a100" for tp in (1, 2))


@cache
def memory_misses() -> MemoryMisses:
    """Measured over predicted of every row; all families together weigh the same."""
    text = (resources.files("workloads.evidence") / "memory_misses.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    of_family = Counter(row["family"] for row in rows)
    found = sorted(
        (float(row["measured"]) / float(row["predicted"]), 1 / of_family[row["family"]] / len(of_family))
        for row in rows
    )
    families = "families" if len(of_family) > 1 else "family"
    source = f"{len(rows)} measured peaks of {len(of_family)} {families} of runs"
    return MemoryMisses(tuple(ratio for ratio, _ in found), tuple(weight for _, weight in found), source)


def written(paths: list[str]) -> str:
    """The file's text, from the JSON objects in ``paths``: bytes reserved where they were measured, else what
    else was.
    """
    lines = [",".join(COLUMNS)]
    for path in paths:
        for row in json.loads(Path(path).read_text())["rows"]:
            if row["id"] in _STALE:
                continue
            family = _ONE_KIND.get(row["family"], row["family"])
            for what in ("_reserved_bytes", "_bytes"):
                measured, predicted = row[f"measured{what}"], row[f"predicted{what}"]
                if measured and predicted:
                    lines.append(f"{row['id']},{family},{measured},{predicted}")
                    break
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(written(sys.argv[1:]))
