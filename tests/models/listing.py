"""One rank's step as a list of ops, from a graph or from a file; and what differs between two of them."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from simcore.graph import Graph, OpKind
from simcore.graph.ops import EdgeKind

#: Bytes up to which collectives (flags, norms, counts, a rotary table) and kernels are not compared.
SMALL_COLLECTIVE_BYTES, SMALL_KERNEL_BYTES = 512, 16
#: Bytes by which the traffic of equal kernels may differ: seeds of attention, a mean loss.
SLACK_BYTES = 64


@dataclass(frozen=True)
class Line:
    """A compute kernel or a collective; ``waits``: collectives on other streams that it waits for."""

    name: str
    module: str
    phase: str
    stream: str
    flops: int
    bytes_read: int
    bytes_written: int
    collective: str
    ranks: int
    num_bytes: int
    waits: str

    @property
    def is_compared(self) -> bool:
        """Whether a description has it: no scalars, no flags."""
        if self.collective:
            return self.num_bytes > SMALL_COLLECTIVE_BYTES
        return self.bytes_read + self.bytes_written > SMALL_KERNEL_BYTES

    @property
    def place(self) -> int | tuple[str, int, int] | None:
        """What is compared in order: a product or attention by its flops, a collective by what it sends."""
        if self.collective:
            return self.collective, self.ranks, self.num_bytes
        return self.flops or None


@dataclass(frozen=True)
class Listing:
    """A step: ``actions`` in the order in which they run, each a name and its ops.

    ``command`` and ``versions`` (of torch and what else was recorded) say where a traced one comes from.
    """

    command: str
    versions: str
    actions: tuple[tuple[str, tuple[Line, ...]], ...]

    def passes(self, name: str) -> list[list[Line]]:
        """The compared ops of every forward ("fwd") or backward ("bwd") pass, in order.

        What comes behind a backward pass up to the last reduction of gradients belongs to it.
        """
        found: dict[str, list[list[Line]]] = {"fwd": [], "bwd": []}
        for kind, lines in self.actions:
            compared = [line for line in lines if line.is_compared]
            if kind in found:
                found[kind].append(compared)
            elif found["bwd"]:
                ends = [k + 1 for k, line in enumerate(compared) if line.phase == "grad_sync"]
                found["bwd"][-1].extend(compared[: max(ends, default=0)])
        return found[name]


def of_graph(graph: Graph, command: str = "") -> Listing:
    """What the first rank of a graph does."""
    program = graph.programs[int(graph.program_of_rank[0])]
    bodies = {int(t): _lines(graph, int(t)) for t in set(program.template)}
    versions = " ".join(f"{name} {version}" for name, version in sorted(graph.workload.versions.items()))
    actions = tuple((graph.template_names[t], bodies[int(t)]) for t in program.template)
    return Listing(command, versions, actions)


def _lines(graph: Graph, template: int) -> tuple[Line, ...]:
    ops, edges = graph.ops, graph.edges
    start, stop = int(graph.template_start[template]), int(graph.template_start[template + 1])
    waits: dict[int, list[str]] = defaultdict(list)
    inside = (edges.dst >= start) & (edges.dst < stop) & (edges.src >= 0) & (edges.kind == EdgeKind.WAIT)
    for k in np.flatnonzero(inside):
        source = int(edges.src[k])
        if ops.kind[source] == OpKind.COLLECTIVE:
            waits[int(edges.dst[k])].append(ops.collective[source])
    sizes = {name: group.size for name, group in graph.groups.items()}
    return tuple(
        Line(
            ops.name[row], ops.module[row], ops.phase[row], ops.stream[row], int(ops.flops[row]),
            int(ops.bytes_read[row]), int(ops.bytes_written[row]), ops.collective[row],
            sizes.get(ops.group[row], 0), int(ops.num_bytes[row]), " ".join(sorted(waits[row])),
        )
        for row in range(start, stop) if ops.kind[row] in (OpKind.COMPUTE, OpKind.COLLECTIVE)
    )  # fmt: skip


def write(listing: Listing, path: Path) -> None:
    """A line for an op; an action that was there before is a line with its number."""
    seen: dict[tuple[str, tuple[Line, ...]], int] = {}
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["#", listing.command, listing.versions])
        rows.writerow([field.name for field in fields(Line)])
        for action in listing.actions:
            again = action in seen
            rows.writerow([">", action[0], seen.setdefault(action, len(seen))])
            if not again:
                rows.writerows(astuple(line) for line in action[1])


def read(path: Path) -> Listing:
    """What :func:`write` wrote."""
    actions: list[tuple[str, list[Line]]] = []
    numbers: list[tuple[str, int]] = []
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        _, command, versions = next(rows)
        kinds = [field.type for field in fields(Line)]
        next(rows)
        for row in rows:
            if row[0] == ">":
                numbers.append((row[1], int(row[2])))
                if numbers[-1][1] == len(actions):
                    actions.append((row[1], []))
            else:
                values = [int(text) if kind == "int" else text for text, kind in zip(row, kinds, strict=True)]
                actions[-1][1].append(Line(*values))  # type: ignore[arg-type]
    done = [(name, tuple(lines)) for name, lines in actions]
    return Listing(command, versions, tuple(done[number] for _, number in numbers))


def in_order(lines: Iterable[Line]) -> list[int | tuple[str, int, int]]:
    """Products, attention and collectives.  Of a product's two gradients, which have equal flops, either may
    come first.
    """
    return [line.place for line in lines if line.place is not None]


def unmatched(traced: Sequence[Line], made: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Compute kernels of either for which the other has none with the same flops, reads and writes.

    Nor on another stream than the other's, nor one that is no recomputation where the other is one.
    """
    left = [line for line in made if not line.collective]
    exact = Counter(_traffic(line) for line in left)
    missing = []
    for line in traced:
        if line.collective:
            continue
        if exact[_traffic(line)] > 0:
            exact[_traffic(line)] -= 1
        else:
            missing.append(line)
    spare = []
    for line in left:
        if exact[_traffic(line)] > 0:
            exact[_traffic(line)] -= 1
            spare.append(line)
    for line in list(missing):
        near = next((other for other in spare if _is_near(line, other)), None)
        if near is not None:
            missing.remove(line)
            spare.remove(near)
    return missing, spare


def _kind(line: Line) -> tuple[int, bool, bool]:
    return line.flops, line.stream == "compute", line.phase == "recompute"


def _traffic(line: Line) -> tuple[tuple[int, bool, bool], int, int]:
    return _kind(line), line.bytes_read, line.bytes_written


def _is_near(one: Line, other: Line) -> bool:
    pairs = ((one.bytes_read, other.bytes_read), (one.bytes_written, other.bytes_written))
    return _kind(one) == _kind(other) and all(abs(a - b) <= SLACK_BYTES for a, b in pairs)
