"""What an edit works on: a graph, what is known of where it came from, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph import Graph, apply_kernels
from simcore.hardware import ClusterSpec
from simcore.records import dataclass
from workloads.imports.recorded import ImportedRank

#: Where a job came from: a profiler's recording, a traced or generated program, a log of stage times.
KINDS = ("recorded", "traced", "pipeline_log")


class PlannedTransfer(Protocol):
    """What an edit needs to know of a planned collective."""

    @property
    def alone_ps(self) -> int:
        """Its time with the links to itself, ps."""


class TransferPlanner(Protocol):
    """Plans collectives on one cluster; whoever runs edits provides it."""

    def plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> PlannedTransfer:
        """A collective of ``num_bytes`` (nccl-tests' size)."""

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> PlannedTransfer:
        """A send from one rank to another."""


@dataclass(frozen=True)
class EditableJob:
    """A job before or after an edit.  Edits never change one; they return another.

    ``kind`` is one of :data:`KINDS`.  ``ranks`` map recorded ops to flat ops (empty when nothing was
    recorded); ``origin`` is the importer's own value, for edits that write the graph anew from it.
    ``cluster`` is what the job runs on (None: a recording on hardware of name ``recorded_gpu``, of so many
    ranks as ``recorded_world`` says, -1: not recorded), and
    ``planner`` plans collectives on a cluster; ``home`` gives one of so many GPUs of the recorded model.
    ``kernels`` is the kernel mapping that is still to be applied
    to a traced program ("": none): edits of the program come before it, edits of kernels after it.
    ``force``: hardware that edits name may have numbers that none has.
    """

    kind: str
    graph: Graph
    ranks: tuple[ImportedRank, ...] = ()
    origin: Any = None
    cluster: ClusterSpec | None = None
    planner: Callable[[ClusterSpec], TransferPlanner] | None = None
    home: Callable[[int], ClusterSpec] | None = None
    recorded_gpu: str = ""
    recorded_world: int = -1
    kernels: str = ""
    fp32_math: str = "ieee"
    force: bool = False

    def with_ops(self, **columns: Any) -> EditableJob:
        """The job with other columns of its op table (same rows)."""
        return replace(self, graph=replace(self.graph, ops=replace(self.graph.ops, **columns)))

    def launched(self) -> EditableJob:
        """The job with its kernel mapping applied: ops are what the GPU runs."""
        if not self.kernels:
            return self
        return replace(self, graph=apply_kernels(self.graph, self.kernels), kernels="")

    def program(self, what: str) -> Graph:
        """The graph of the program as traced.  InputError when kernels were edited before."""
        if self.kind == "traced" and not self.kernels and self.graph.workload.options.get("edited_kernels"):
            raise InputError(
                f"{what} changes the program: give it before edits of kernels, host and hardware"
            )
        return self.graph


@dataclass(frozen=True)
class Edited:
    """What an edit gives: the new job, what was assumed, and how many ops of the step changed (all ranks)."""

    job: EditableJob
    assumed: tuple[str, ...]
    ops_changed: int


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
