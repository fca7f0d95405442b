"""A graph as the passes look at it: per op its bare name, its tensors, sources, readers and releases."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from simcore.graph.graph import Graph
from simcore.graph.ops import EdgeKind
from simcore.records import dataclass

Shape = tuple[int, ...]

#: Ops whose first half of arguments are destinations.
_COPIES = frozenset({"copy_", "_foreach_copy_"})


@dataclass(frozen=True)
class Operand:
    """A tensor argument: its shape and bytes."""

    shape: Shape
    num_bytes: int

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def bare_name(name: str) -> str:
    """``aten::add_.Tensor`` -> ``add_``."""
    return name.rsplit("::", 1)[-1].split(".", 1)[0]


def element_bytes(dtype: str) -> int:
    """Bytes of one element, from the digits in the dtype's name; 1 for bool, 4 when there are none."""
    digits = re.search(r"[0-9]{1,4}", dtype)
    if digits is None:
        return 1 if dtype == "bool" else 4
    return max(1, int(digits.group()) // 8)


@lru_cache(maxsize=1 << 13)
def tensors(shapes: str, dtype: str, total_bytes: int) -> tuple[Operand, ...]:
    """The tensors of a shapes column, each with its bytes.

    A row stores one dtype, but arguments may differ (a mask is bool, statistics are fp32): when the main
    dtype does not explain ``total_bytes``, the fewest other element sizes that do are taken, else the
    total is spread in proportion.
    """
    parsed: list[Shape] = [tuple(shape) for shape in json.loads(shapes)] if shapes else []
    sizes = [math.prod(shape) for shape in parsed]
    width = element_bytes(dtype)
    if sum(sizes) * width == total_bytes:
        return tuple(Operand(shape, size * width) for shape, size in zip(parsed, sizes, strict=True))
    if len(parsed) <= 6:
        for changed in range(1, len(parsed) + 1):
            for which in itertools.combinations(range(len(parsed)), changed):
                for widths in itertools.product((1, 2, 4, 8), repeat=changed):
                    trial = [width] * len(parsed)
                    for index, other in zip(which, widths, strict=True):
                        trial[index] = other
                    if sum(s * w for s, w in zip(sizes, trial, strict=True)) == total_bytes:
                        return tuple(Operand(p, s * w) for p, s, w in zip(parsed, sizes, trial, strict=True))
    share = total_bytes / max(1, sum(sizes))
    return tuple(Operand(shape, round(size * share)) for shape, size in zip(parsed, sizes, strict=True))


@dataclass(frozen=True)
class Release:
    """A row of the free table: ``index`` there, released after op ``after``, ``num_bytes``."""

    index: int
    after: int
    num_bytes: int


class GraphView:
    """Row-wise access to a graph, plain Python values, everything indexed once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = [bare_name(name) for name in graph.ops.name.values]
        self.name_codes = graph.ops.name.codes
        self.alloc_bytes = graph.ops.alloc_bytes.tolist()
        self._in_shapes, self._out_shapes = graph.ops.in_shapes, graph.ops.out_shapes

    def name(self, row: int) -> str:
        """Bare name of an op."""
        return self.names[int(self.name_codes[row])]

    def inputs(self, row: int) -> tuple[Operand, ...]:
        """Tensors that an op reads, in argument order; destinations that it only overwrites left out."""
        ops = self.graph.ops
        total = int(ops.bytes_read[row])
        if total == 0 and ops.bytes_written[row] > 0:
            return ()
        shapes = ops.in_shapes[row]
        if self.name(row) in _COPIES:
            arguments = json.loads(shapes)
            shapes = json.dumps(arguments[len(arguments) // 2 :])
        read = tensors(shapes, ops.dtype[row], total)
        return read[:-1] if len(read) > 1 and ops.name[row].endswith(".out") else read

    def outputs(self, row: int) -> tuple[Operand, ...]:
        """Tensors that an op writes."""
        ops = self.graph.ops
        return tensors(ops.out_shapes[row], ops.dtype[row], int(ops.bytes_written[row]))

    @cached_property
    def _data(self) -> tuple[list[int], list[int]]:
        edges = self.graph.edges
        inside = (edges.kind == EdgeKind.DATA) & (edges.src >= 0)
        return edges.src[inside].tolist(), edges.dst[inside].tolist()

    @cached_property
    def sources(self) -> dict[int, list[int]]:
        """Ops of the same template whose data an op depends on (values read, or overwritten)."""
        found: dict[int, list[int]] = defaultdict(list)
        for src, dst in zip(*self._data, strict=True):
            found[dst].append(src)
        return dict(found)

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Ops of the same template that depend on an op's data."""
        found: dict[int, list[int]] = defaultdict(list)
        for src, dst in zip(*self._data, strict=True):
            found[src].append(dst)
        return dict(found)

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Ops that a WAIT edge ends at."""
        edges = self.graph.edges
        return frozenset(edges.dst[edges.kind == EdgeKind.WAIT].tolist())

    @cached_property
    def stream_runs(self) -> list[list[int]]:
        """Op rows of each template and stream, in issue order."""
        graph = self.graph
        template = np.repeat(np.arange(graph.num_templates), np.diff(graph.template_start))
        stream = graph.ops.stream.codes.astype(np.int64)
        key = template * max(1, len(graph.ops.stream.values)) + stream
        order = np.argsort(key, kind="stable")
        cuts = np.flatnonzero(np.diff(key[order])) + 1
        return [rows.tolist() for rows in np.split(order, cuts)]

    @cached_property
    def has_successor(self) -> list[bool]:
        """Whether an op is followed by another on its stream within its template."""
        found = [True] * len(self.graph.ops)
        for rows in self.stream_runs:
            if rows:
                found[rows[-1]] = False
        return found

    @cached_property
    def releases(self) -> dict[int, list[Release]]:
        """By allocating op: releases of its storage in the same template."""
        frees = self.graph.frees
        found: dict[int, list[Release]] = defaultdict(list)
        for index in np.flatnonzero((frees.owner_scope == 0) & (frees.owner >= 0)).tolist():
            owner = int(frees.owner[index])
            found[owner].append(Release(index, int(frees.after[index]), int(frees.num_bytes[index])))
        return dict(found)

    def connected(self, members: Sequence[int]) -> bool:
        """Whether every member but the first depends on an earlier member."""
        inside = set(members)
        return all(inside.intersection(self.sources.get(row, ())) for row in members[1:])
