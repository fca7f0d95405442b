"""Plans of tables as TorchRec has them: what printing its ``ShardingPlan`` shows, or the same as JSON.

Text: rows of cells between bars, the first a table's name, then its sharding type, compute kernel and ranks
(torchrec/distributed/types.py, ``EmbeddingModuleShardingPlan.__str__``); JSON: by module and table
``{"sharding_type", "compute_kernel", "ranks"}``, or by table alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.outside import json_document, read_text

#: Ways of placing by TorchRec's names; columns that stay on one node are columns to whoever exchanges them.
_WAYS: Final = {
    "data_parallel": "data_parallel", "table_wise": "table_wise", "column_wise": "column_wise",
    "table_column_wise": "column_wise", "row_wise": "row_wise", "table_row_wise": "table_row_wise",
    "grid_shard": "grid_shard",
}  # fmt: skip
_RANKS: Final = re.compile(r"\[\s*(\d{1,7}(?:\s*,\s*\d{1,7})*)\s*\]")

Placement = tuple[str, str, tuple[int, ...]]


def read_plan(path: Path) -> tuple[Placement, ...]:
    """Tables with how they are placed and on which ranks.

    InputError for a file that is no plan, for a way of placing that is none, and for rows outside HBM.
    """
    text = read_text(path, "plan of tables")
    where = str(path)
    rows = _of_json(json_document(text, where), where) if text.lstrip().startswith("{") else _of_text(text)
    found = [_placement(*row, where=where) for row in rows]
    if not found:
        raise InputError(
            f"{where}: no plan of tables; nearest: print(plan) of TorchRec's planner, or JSON"
            ' {"table": {"sharding_type": "row_wise", "ranks": [0, 1]}}'
        )
    return tuple(found)


def _of_json(content: Any, where: str) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    if not isinstance(content, Mapping):
        raise InputError(f"{where}: a plan is an object by table, or by module and table")
    for name, value in content.items():
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: {name}: expected sharding_type, compute_kernel and ranks")
        if "sharding_type" not in value:
            yield from _of_json(value, where)
            continue
        ranks = value.get("ranks")
        if not isinstance(ranks, list) or not all(isinstance(one, int) for one in ranks):
            raise InputError(f"{where}: {name}: ranks must be a list of whole numbers")
        yield name, str(value["sharding_type"]), str(value.get("compute_kernel", "")), tuple(ranks)


def _of_text(text: str) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        ranks = _RANKS.fullmatch(cells[3]) if len(cells) == 4 else None
        if ranks is not None and cells[1] in _WAYS:
            yield cells[0], cells[1], cells[2], tuple(int(one) for one in ranks[1].split(","))


def _placement(name: str, how: str, kernel: str, ranks: tuple[int, ...], *, where: str) -> Placement:
    if how not in _WAYS:
        raise InputError(f"{where}: {name}: no way of placing is called {how!r}{nearest(how, _WAYS)}")
    if "uvm" in kernel:
        raise InputError(
            f"{where}: {name} has {kernel}, but where rows lie belongs to the model; nearest: memory: uvm of"
            " its block of tables, and fused here"
        )
    return name, _WAYS[how], ranks
