"""What an edit works on: a graph, what is known of where it came from, and where it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.graph import Graph, OpKind
from simcore.hardware import ClusterSpec
from workloads.imports.recorded import ImportedRank

#: Where a job came from: a profiler's recording, a traced or generated program, a log of stage times.
KINDS = ("recorded", "traced", "pipeline_log")

COMMUNICATION = (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV)


@dataclass(frozen=True)
class EditableJob:
    """A job before or after an edit.  Edits never change one; they return another.

    ``kind`` is one of :data:`KINDS`.  ``ranks`` map recorded ops to flat ops (empty when nothing was
    recorded); ``origin`` is the importer's own value, for edits that write the graph anew from it.
    ``cluster`` is what the job runs on, None for a recording on unknown hardware; ``settings`` are hardware
    settings (``--set`` keys) that edits brought; ``planned_on`` is the cluster on which collectives without a
    recorded time are planned, "" for ``cluster``.
    """

    kind: str
    graph: Graph
    ranks: tuple[ImportedRank, ...] = ()
    origin: Any = None
    cluster: ClusterSpec | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    planned_on: str = ""

    def with_ops(self, **columns: Any) -> EditableJob:
        """The job with other columns of its op table (same rows)."""
        return replace(self, graph=replace(self.graph, ops=replace(self.graph.ops, **columns)))


@dataclass(frozen=True)
class Edited:
    """What an edit gives: the new job, what was assumed, and how many ops of the step changed (all ranks)."""

    job: EditableJob
    assumed: tuple[str, ...]
    ops_changed: int


def is_communication(graph: Graph) -> npt.NDArray[np.bool_]:
    """By op row: collective, send or recv."""
    return np.isin(graph.ops.kind, COMMUNICATION)


def plays(graph: Graph) -> npt.NDArray[np.int64]:
    """By op row: how often it is executed in a step, over all ranks."""
    per_template = np.zeros(graph.num_templates, dtype=np.int64)
    for program in graph.programs:
        played = np.bincount(program.template, minlength=graph.num_templates)
        per_template += program.num_ranks * played
    return np.repeat(per_template, np.diff(graph.template_start))


def count_changed(graph: Graph, rows: npt.NDArray[np.bool_] | Sequence[int]) -> int:
    """Executions of ``rows`` (mask or numbers) in a step, over all ranks."""
    return int(plays(graph)[np.asarray(rows)].sum())
