"""What stages hold through a step: a table beside the timeline, of jobs whose storages are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from simcore.graph.arrow import numbers, texts, values_of
from simcore.timeline.schema import MEMORY, MEMORY_FILE
from simcore.timeline.stored import open_table

IntArray = npt.NDArray[np.int64]
Curve = tuple[int, IntArray, Mapping[str, IntArray]]


def write_memory(folder: Path, curves: Iterable[Curve]) -> None:
    """Write curves: stage, times in ps, and bytes of each category from each time on."""
    found = [(stage, times, name, level) for stage, times, by in curves for name, level in by.items()]
    names = list(dict.fromkeys(name for _, _, name, _ in found))
    sizes = [len(times) for _, times, _, _ in found]

    def column(values: Iterable[IntArray], kind: type[np.signedinteger[Any]]) -> pa.Array:
        return numbers(np.concatenate([*values, np.zeros(0, dtype=np.int64)]).astype(kind))

    stages = column((np.full(size, one[0]) for size, one in zip(sizes, found, strict=True)), np.int32)
    codes = column(
        (np.full(size, names.index(one[2])) for size, one in zip(sizes, found, strict=True)), np.int32
    )
    columns = [
        stages,
        column((times for _, times, _, _ in found), np.int64),
        pa.DictionaryArray.from_arrays(codes, texts(names)),
        column((level for *_, level in found), np.int64),
    ]
    table = pa.Table.from_arrays(columns, schema=MEMORY)
    pq.write_table(
        table, folder / MEMORY_FILE, compression="zstd", compression_level=1, write_page_checksum=True
    )


def read_memory(folder: Path) -> dict[int, tuple[IntArray, dict[str, IntArray]]]:
    """Times in ps and bytes by category of each stage that the table has; empty where there is no table.

    InputError where it is damaged.
    """
    if not (folder / MEMORY_FILE).is_file():
        return {}
    table = open_table(folder / MEMORY_FILE, MEMORY, "simcore.memory.schema").read()
    found: dict[int, tuple[IntArray, dict[str, IntArray]]] = {}
    if not table.num_rows:
        return found
    column = table.column("category").unify_dictionaries().combine_chunks()
    stages, times, sizes = (values_of(table.column(name)) for name in ("stage", "time_ps", "bytes"))
    codes = values_of(column.indices)
    opens = np.concatenate([[True], (np.diff(stages) != 0) | (np.diff(codes) != 0), [True]])
    bounds = np.flatnonzero(opens)
    for first, last in pairwise(bounds.tolist()):
        known, levels = found.setdefault(int(stages[first]), (times[first:last], {}))
        if len(known) == last - first:
            levels[str(column.dictionary[int(codes[first])].as_py())] = sizes[first:last]
    return found
