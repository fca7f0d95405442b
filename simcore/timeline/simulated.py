"""The tables of a run as its simulation has them: made when they are asked for, as they are in the files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from simcore.engine.result import SimulationResult, alike
from simcore.graph.arrow import numbers, texts
from simcore.graph.graph import Graph
from simcore.timeline.columns import GraphColumns, ProgramColumns
from simcore.timeline.schema import COUNTERS, RANK_CLASSES, TIMELINE_FILE

#: Columns of programs with so many ops in all are kept, some 10 MiB, or those of one.
_KEPT_OPS: Final = 1 << 17
_COUNTER_ROWS: Final = 256 * 1024  # by row group, which is encoded as a whole


class SimulatedTables:
    """Tables of a simulation (:class:`simcore.timeline.reader.Tables`), rows of a class of ranks a group.

    Ranks that were simulated one by one and did the same at the same times share rows, as those do of which
    one was simulated.
    """

    def __init__(self, folder: Path, graph: Graph, result: SimulationResult) -> None:
        self.path = folder / TIMELINE_FILE
        self._graph, self._result = graph, result.told_once(graph)
        self._ranks: list[int] = self._result.representatives.tolist()
        self._ops = GraphColumns(graph, self._result)
        self._gathered: dict[tuple[int, int, int], ProgramColumns] = {}

    @cached_property
    def num_rows(self) -> int:
        """Rows of the ranks that stand for classes."""
        lengths = np.diff(self._graph.template_start)
        programs, counts = np.unique(self._programs, return_counts=True)
        rows = [int(lengths[self._graph.programs[program].template].sum()) for program in programs.tolist()]
        return sum(many * count for many, count in zip(rows, counts.tolist(), strict=True))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Lowest and highest rank of each group of rows."""
        return [(rank, rank) for rank in self._ranks]

    @cached_property
    def classes(self) -> pa.Table:
        """Which rank stands for which."""
        class_of = self._result.class_of
        columns = (np.arange(len(class_of)), class_of, self._result.representatives[class_of])
        arrays = [numbers(column.astype(np.int32)) for column in columns]
        return pa.Table.from_arrays(arrays, schema=RANK_CLASSES)

    def read(self, group: int, columns: list[str]) -> pa.Table:
        """Columns of a group of rows."""
        return self._of_program(group).table(self._ranks[group], group, columns)

    def shared(self, group: int) -> tuple[int, int, int]:
        """Of classes that ran a program alike: the program, its times alone and its plans."""
        result = self._result
        return self._programs[group], alike(result.alone_ps, group), alike(result.plan_of, group)

    def counters(self) -> Iterator[pa.Table]:
        """Use of the links that carried something, some of its rows at a time."""
        # Most of a large cluster's half a million links are those of ranks that others stand for: not named.
        counters, resources = self._result.counters, self._result.resources
        used = np.zeros(len(resources), dtype=np.bool_)
        used[counters.resource] = True
        names = texts([resources[link] for link in np.flatnonzero(used).tolist()])
        code_of = (np.cumsum(used) - 1).astype(np.int32)
        for first in range(0, max(len(counters.time_ps), 1), _COUNTER_ROWS):
            part = slice(first, first + _COUNTER_ROWS)
            codes = numbers(code_of[counters.resource[part]])
            columns = [
                numbers(counters.time_ps[part]),
                pa.DictionaryArray.from_arrays(codes, names),
                numbers(counters.value[part]),
            ]
            yield pa.Table.from_arrays(columns, schema=COUNTERS)

    @cached_property
    def _programs(self) -> list[int]:
        """The program of each class."""
        return [int(self._graph.program_of_rank[rank]) for rank in self._ranks]

    def _of_program(self, rank_class: int) -> ProgramColumns:
        """What classes that ran its program alike share; of programs, what was asked for last is kept."""
        key = self.shared(rank_class)
        found = self._gathered.pop(key, None)
        if found is None:
            found = ProgramColumns(self._ops, rank_class)
        self._gathered[key] = found
        while len(self._gathered) > 1 and sum(map(len, self._gathered.values())) > _KEPT_OPS:
            del self._gathered[next(iter(self._gathered))]
        return found
