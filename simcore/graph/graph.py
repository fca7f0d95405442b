"""The execution graph: templates + skeleton, one program per distinct rank.

A *template* is a straight run of ops in host issue order (one microbatch's forward on one model
chunk, its backward, a pipeline exchange, the optimizer).  A *program* is what one class of ranks
does in a step: the order in which templates are played (its skeleton), with the microbatch and
model chunk of each instance.  96 microbatches cost 96 skeleton entries, not 96 copies.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.errors import GraphError
from simcore.graph.groups import ProcessGroup
from simcore.graph.ops import EdgeTable, FreeTable, IntArray, OpTable
from simcore.records import dataclass

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class MemoryProfile:
    """Bytes that a rank holds on its GPU, from traced storage lifetimes (no allocator rounding).

    ``parameters``, ``gradients``, ``optimizer_states`` live through the step; ``activations_peak`` is
    the most that lives beside them; ``peak`` is the highest sum at any one time.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer_states: int = 0
    activations_peak: int = 0
    peak: int = 0

    @property
    def static(self) -> int:
        """Bytes that live through the whole step."""
        return self.parameters + self.gradients + self.optimizer_states


@dataclass(frozen=True)
class Program:
    """What one class of ranks does in one step.

    ``ranks`` is a tuple of ``(start, stop, step)`` ranges.  ``template``, ``microbatch`` (-1: none) and
    ``chunk`` (virtual pipeline stage) have one entry per template instance, in host issue order.
    ``layer_offset[c]`` is the global index of chunk ``c``'s first layer.
    """

    name: str
    ranks: tuple[tuple[int, int, int], ...]
    stage: int
    template: Int32Array
    microbatch: Int32Array
    chunk: Int32Array
    layer_offset: tuple[int, ...] = (0,)
    memory: MemoryProfile = field(default_factory=MemoryProfile)

    def rank_list(self) -> list[int]:
        """All ranks of the class, ascending."""
        return sorted(r for start, stop, step in self.ranks for r in range(start, stop, step))

    @property
    def num_ranks(self) -> int:
        """How many ranks run this program."""
        return sum(len(range(start, stop, step)) for start, stop, step in self.ranks)


@dataclass(frozen=True)
class Workload:
    """What the graph is a graph of.  ``dims`` are axis sizes (tp, pp, dp, ...); their product is the world.

    ``tokens_per_step`` counts tokens over all data-parallel replicas; ``versions`` the frameworks that
    ran; ``command`` how the graph was made; ``model`` the model's own description.
    """

    name: str
    world_size: int
    dims: dict[str, int] = field(default_factory=dict)
    num_microbatches: int = 1
    micro_batch_size: int = 1
    seq_len: int = 0
    tokens_per_step: int = 0
    precision: str = ""
    framework: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Everything that the engine reads about a workload.

    ``ops``, ``edges``, ``frees`` hold all templates one after the other; template ``t`` owns op rows
    ``template_start[t] : template_start[t + 1]``.  ``template_names[t]`` says what it is ("fwd", "bwd", ...).
    """

    workload: Workload
    groups: dict[str, ProcessGroup]
    programs: tuple[Program, ...]
    ops: OpTable
    edges: EdgeTable
    frees: FreeTable
    template_start: IntArray
    template_names: tuple[str, ...]

    @property
    def num_templates(self) -> int:
        """Distinct templates."""
        return len(self.template_start) - 1

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.workload.world_size

    @cached_property
    def program_of_rank(self) -> npt.NDArray[np.int32]:
        """Index into ``programs`` for each rank.  GraphError unless every rank has exactly one."""
        owner = np.full(self.world_size, -1, dtype=np.int32)
        for index, program in enumerate(self.programs):
            for start, stop, step in program.ranks:
                span = slice(start, stop, step)
                if start < 0 or stop > self.world_size:
                    raise GraphError(
                        f"program {program.name!r}: ranks {start}:{stop} outside the world "
                        f"of {self.world_size}"
                    )
                if (owner[span] >= 0).any():
                    raise GraphError(
                        f"program {program.name!r}: a rank in {start}:{stop}:{step} already has a program"
                    )
                owner[span] = index
        if (owner < 0).any():
            missing = np.flatnonzero(owner < 0)
            raise GraphError(f"{len(missing)} rank(s) have no program, the first is rank {missing[0]}")
        return owner

    def template_rows(self, template: int) -> range:
        """Op rows of one template."""
        return range(int(self.template_start[template]), int(self.template_start[template + 1]))

    def flat_ops(self, program: Program) -> FlatOps:
        """The program's ops in issue order, instances played out.  O(ops of one rank)."""
        starts = self.template_start[program.template]
        lengths = self.template_start[program.template + 1] - starts
        first = np.concatenate([[0], np.cumsum(lengths)])
        total = int(first[-1])
        instance = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        row = np.arange(total, dtype=np.int32) - (first[:-1] - starts).astype(np.int32)[instance]
        return FlatOps(row, instance, first.astype(np.int64), program)


@dataclass(frozen=True)
class FlatOps:
    """One rank's step, op by op: ``row[i]`` is the op-table row of the i-th op issued.

    ``instance[i]`` indexes the program's skeleton; ``first[k]`` is the flat index of instance ``k``'s
    first op.  ``op_id`` in a timeline is this flat index.
    """

    row: Int32Array
    instance: Int32Array
    first: IntArray
    program: Program

    def __len__(self) -> int:
        return len(self.row)

    @property
    def microbatch(self) -> Int32Array:
        """Microbatch of each op, -1 where none."""
        return self.program.microbatch[self.instance]
