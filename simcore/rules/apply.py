"""Rules applied, one after the other: what each said is done, and what comes of it verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.errors import GraphError, InputError, SimcoreError
from simcore.graph import Graph, OpKind, verify
from simcore.graph.passes.reissue import reissued
from simcore.graph.passes.rewrite import Replacement, rewrite
from simcore.graph.passes.traffic import border
from simcore.graph.passes.variants import Value
from simcore.graph.passes.view import GraphView
from simcore.records import dataclass
from simcore.registry import mistake_in
from simcore.rules.declared import Rule
from simcore.rules.view import Matched, RuleGraph

if TYPE_CHECKING:
    from simcore.hardware import GpuSpec

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Ruled:
    """A graph after rules, what each of them matched, and what the verifier warns of since."""

    graph: Graph
    matched: tuple[tuple[Rule, tuple[Matched, ...]], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """As a run's assumptions say it."""
        lines = [f"rule, {rule.says}: {one}" for rule, found in self.matched for one in found]
        return (*lines, "rules change what is issued and how long it takes, not memory") if lines else ()


def apply_rules(
    graph: Graph, rules: Sequence[Rule], gpu: GpuSpec | None = None, *, fp32_math: str = "ieee"
) -> Ruled:
    """``graph`` after ``rules``, each of which sees what the one before it has left.

    ``gpu``: what kernels are priced on where a rule asks for it, under the load of the job.
    Errors: InputError, naming rule, file and line, for a mistake in one, for one that matches or says
    nothing; GraphError for a graph that cannot run, after which rule.
    """
    known = set(verify(graph)) if rules else set()
    matched, warnings = [], []
    for rule in rules:
        view = RuleGraph(graph, gpu, fp32_math=fp32_math)
        try:
            rule.function(view)
        except Exception as error:
            raise InputError(f"rule {rule.says!r}: {mistake_in(rule.file, error)}") from error
        if not view.changes and not view.waits:
            raise InputError(f"rule {rule.says!r} ({rule.file}) says nothing of the ops that it looks at")
        try:
            graph = _changed(view)
            found = verify(graph)
        except SimcoreError as error:
            kind = GraphError if isinstance(error, GraphError) else InputError
            raise kind(f"rule {rule.says!r}: after it: {error}") from error
        warnings += [f"rule {rule.says!r}: {line}" for line in found if line not in known]
        known.update(found)
        matched.append((rule, tuple(view.matched)))
    if matched:
        options = {**graph.workload.options, "rules": [rule.says for rule, _ in matched]}
        graph = replace(graph, workload=replace(graph.workload, options=options))
    return Ruled(graph, tuple(matched), tuple(warnings))


def _changed(view: RuleGraph) -> Graph:
    graph, marked = reissued(view.graph, view.changes, view.waits)
    for number, columns in view.fused.items():
        before = len(graph.ops)
        graph, kept = _fused(graph, marked[number], columns)
        if len(graph.ops) == before:
            raise InputError(f"fuse: no two of them follow each other: {view.matched[number].chosen}")
        marked = {other: mask[kept] for other, mask in marked.items()}
    return graph


def _fused(graph: Graph, rows: BoolArray, columns: Mapping[str, Value]) -> tuple[Graph, BoolArray]:
    """Runs of ``rows`` on a stream as a kernel each; and which rows are left."""
    view, ops = GraphView(graph), graph.ops
    replacements, kept = [], np.ones(len(ops), dtype=np.bool_)
    for run in _runs(view, rows & (ops.kind == OpKind.COMPUTE)):
        work = [(int(ops.flops[row]), int(ops.bytes_read[row] + ops.bytes_written[row])) for row in run]
        heaviest = run[work.index(max(work))]
        values: dict[str, str | int] = {
            "op_class": ops.op_class[heaviest],
            "dtype": ops.dtype[heaviest],
            "flops": sum(int(ops.flops[row]) for row in run),
            "recorded_ps": -1,
            **border(view, run).columns(),
            **{name: value for name, value in columns.items() if not callable(value)},
        }
        inside = set(run)
        dropped = frozenset(
            release.index for row in run for release in view.releases.get(row, ()) if release.after in inside
        )
        replacements.append(Replacement(tuple(run), run[-1], values, dropped))
        kept[list(run[:-1])] = False
    return rewrite(graph, replacements), kept


def _runs(view: GraphView, rows: BoolArray) -> list[list[int]]:
    """Maximal runs of ``rows`` that follow each other on a stream; nobody waits into their middle."""
    runs: list[list[int]] = []
    for stream in view.stream_runs:
        run: list[int] = []
        for row in stream:
            if not rows[row] or (run and row in view.waiting):
                runs.append(run)
                run = []
            if rows[row]:
                run.append(row)
        runs.append(run)
    return [run for run in runs if len(run) > 1]
