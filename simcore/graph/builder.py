"""Writing graphs by hand: the few lines that a test or a workload generator needs.

::

    build = GraphBuilder(world_size=2, name="two stages")
    build.group("pp", dims=((2, 1),))
    head, tail = build.template("fwd"), build.template("fwd")
    gemm = head.compute("gemm", recorded_ps=1_000)
    head.send("pp", +1, 4096, waits=(gemm,))
    got = tail.recv("pp", -1, 4096)
    tail.compute("gemm", waits=(got,), recorded_ps=1_000)
    build.program([0], [(head, 0, 0)], stage=0)
    build.program([1], [(tail, 0, 0)], stage=1)
    graph = build.build()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from simcore.errors import InputError, nearest
from simcore.graph.graph import Graph, MemoryProfile, Program, Workload
from simcore.graph.groups import Dim, ProcessGroup
from simcore.graph.layout import rank_ranges as rank_ranges
from simcore.graph.layout import tiling
from simcore.graph.ops import EdgeTable, FreeTable, OpRows, Strings
from simcore.graph.template_builder import External, TemplateBuilder

Skeleton = Sequence[tuple[TemplateBuilder, int, int]]


class GraphBuilder:
    """Collects groups, templates and programs, then :meth:`build` gives the :class:`Graph`.

    Further keywords are fields of :class:`Workload` (dims, num_microbatches, precision, ...).
    """

    def __init__(self, world_size: int, *, name: str = "built", **workload: Any) -> None:
        unknown = workload.keys() - Workload.__dataclass_fields__.keys()
        if unknown:
            key = min(unknown)
            raise InputError(f"unknown workload field {key!r}{nearest(key, Workload.__dataclass_fields__)}")
        self._workload = Workload(name=name, world_size=world_size, **workload)
        self._groups: dict[str, ProcessGroup] = {}
        self._templates: list[TemplateBuilder] = []
        self._programs: list[Program] = []
        self._known: dict[tuple[object, ...], Any] = {}

    def group(
        self,
        name: str,
        dims: Sequence[Dim] = (),
        *,
        base_dims: Sequence[Dim] | None = None,
        offset: int = 0,
        explicit: Sequence[Sequence[int]] = (),
    ) -> ProcessGroup:
        """Declare a process group family: strides, or the members of each group in ``explicit``.

        Without ``base_dims`` the groups tile the world: every rank is in one.  InputError when the strides
        cannot (the world is no multiple of them).
        """
        if explicit:
            dims = dims or ((len(explicit[0]), 1),)
            made = ProcessGroup(name, tuple(dims), explicit=tuple(tuple(members) for members in explicit))
        else:
            base = tiling(name, dims, self._workload.world_size) if base_dims is None else tuple(base_dims)
            made = ProcessGroup(name, tuple(dims), base, offset)
        self._groups[name] = made
        return made

    def group_size(self, name: str) -> int:
        """Ranks in one group of the family ``name``.  InputError when it was not declared."""
        try:
            return self._groups[name].size
        except KeyError:
            raise InputError(f"unknown process group {name!r}{nearest(name, self._groups)}") from None

    def has_group(self, name: str) -> bool:
        """Whether a process group of that name was declared."""
        return name in self._groups

    def template(self, name: str) -> TemplateBuilder:
        """A new template; ``name`` says what it is ("fwd", "bwd", ...) and need not be unique."""
        made = TemplateBuilder(len(self._templates), name, self.group_size)
        made.known = self._known
        self._templates.append(made)
        return made

    def program(
        self,
        ranks: Iterable[int],
        skeleton: Skeleton,
        *,
        stage: int = 0,
        name: str = "",
        layer_offset: tuple[int, ...] = (0,),
        memory: MemoryProfile | None = None,
    ) -> None:
        """What ``ranks`` do: ``(template, microbatch, chunk)`` in issue order (microbatch -1: none)."""
        for template, _, _ in skeleton:
            if template.index >= len(self._templates) or self._templates[template.index] is not template:
                raise InputError(f"template {template.name!r} belongs to another graph")
        played = [(template.index, microbatch, chunk) for template, microbatch, chunk in skeleton]
        arrays = np.array(played, dtype=np.int32).reshape(-1, 3).T.copy()
        self._programs.append(
            Program(
                name=name or f"program{len(self._programs)}",
                ranks=rank_ranges(ranks),
                stage=stage,
                template=arrays[0],
                microbatch=arrays[1],
                chunk=arrays[2],
                layer_offset=layer_offset,
                memory=memory or MemoryProfile(),
            )
        )

    def build(self) -> Graph:
        """The graph as columns.  Structure only: :func:`simcore.graph.verify` judges its meaning."""
        rows = OpRows(
            [row for template in self._templates for row in template.rows],
            [layer for template in self._templates for layer in template.layers],
        )
        starts = [0, *accumulate(len(template.rows) for template in self._templates)]
        return Graph(
            workload=self._workload,
            groups=dict(self._groups),
            programs=tuple(self._programs),
            ops=rows.table(),
            edges=self._edge_table(starts),
            frees=self._free_table(starts),
            template_start=np.array(starts, dtype=np.int64),
            template_names=tuple(template.name for template in self._templates),
        )

    def _edge_table(self, starts: list[int]) -> EdgeTable:
        written: list[tuple[int, int, int, str, int]] = []
        for template, start in zip(self._templates, starts, strict=False):
            for edge in template.edges:
                if isinstance(edge.source, External):
                    src, stream, back = -1, edge.source.stream, edge.source.back
                else:
                    src, stream, back = start + edge.source.position, "", 0
                written.append((start + edge.dst, src, int(edge.kind), stream, back))
        written.sort()
        columns: list[tuple[Any, ...]] = list(zip(*written, strict=True)) or [()] * 5
        dst, src_rows, kind, back_of = (np.array(columns[k], dtype=np.int64) for k in (0, 1, 2, 4))
        return EdgeTable(dst, src_rows, kind, Strings.encode(columns[3]), back_of)

    def _free_table(self, starts: list[int]) -> FreeTable:
        written: list[tuple[int, int, int, int, int]] = []
        for template, start in zip(self._templates, starts, strict=False):
            for free in template.frees:
                after = -1 if free.after < 0 else start + free.after
                owner = start + free.owner if free.scope == 0 else free.owner
                written.append((template.index, after, free.num_bytes, owner, free.scope))
        written.sort()
        columns = np.array(written, dtype=np.int64).reshape(-1, 5).T
        return FreeTable(*(np.ascontiguousarray(column) for column in columns))
