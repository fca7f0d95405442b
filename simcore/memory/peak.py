"""Peak memory of each program: what lives all step, plus activations played out over the skeleton.

Note [Allocator]: PyTorch's caching allocator hands out blocks of whole 512 bytes (kMinBlockSize in
c10/cuda/CUDACachingAllocator.cpp).  Storage that comes and goes within one template is rounded up to that;
storage that outlives its template (saved activations, megabytes each) is counted as it is, so that both
ends of its life agree whatever template releases it.  Segments (2 MiB and up) and their fragmentation are
not modelled: the peak is of *allocated*, not of *reserved* memory.  Communication buffers and the CUDA
context are part of the GPU's ``reserved_bytes``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.graph.graph import Graph, Program
from simcore.graph.ops import IntArray
from simcore.memory.caching.settings import whole_blocks
from simcore.records import dataclass


@dataclass(frozen=True)
class ProgramMemory:
    """Bytes on each GPU of one program's ranks at the moment of its peak.

    ``parameters``, ``gradients`` and ``optimizer_states`` live through the step; ``activations`` is the most
    that lives beside them, reached in template instance ``peak_instance`` (-1: nothing is allocated);
    ``in_flight`` is what of it was there when that instance began, saved by forwards whose backward is still
    to come (0 where only the peak is known).
    """

    program: str
    stage: int
    ranks: tuple[int, ...]
    parameters: int
    gradients: int
    optimizer_states: int
    activations: int
    in_flight: int
    peak_instance: int
    peak_template: str
    peak_microbatch: int

    @property
    def static(self) -> int:
        """Bytes that live through the whole step."""
        return self.parameters + self.gradients + self.optimizer_states

    @property
    def total(self) -> int:
        """Peak bytes."""
        return self.static + self.activations


@dataclass(frozen=True)
class _TemplateUse:
    """What one instance of each template adds to live bytes: at most ``highest``, ``net`` at its end."""

    highest: IntArray
    net: IntArray


def peak_memory(graph: Graph) -> tuple[ProgramMemory, ...]:
    """Peak memory of every program, in the order of ``graph.programs``.

    Activations follow the order in which templates are played, so passes that fuse kernels and changed
    skeletons show.  A graph without allocations keeps the recorded ``activations_peak``.
    """
    recorded_only = not graph.ops.alloc_bytes.any()
    use = _template_use(graph)
    return tuple(_program_memory(graph, program, use, recorded_only) for program in graph.programs)


def activations_of(graph: Graph, program: Program) -> tuple[IntArray, IntArray]:
    """Bytes that come and go before each template instance of a program, and the most while it runs."""
    use = _template_use(graph)
    net = use.net[program.template]
    before = np.cumsum(net) - net
    return before, before + use.highest[program.template]


def _program_memory(graph: Graph, program: Program, use: _TemplateUse, recorded_only: bool) -> ProgramMemory:
    activations, in_flight, instance = program.memory.activations_peak, 0, -1
    if not recorded_only and len(program.template):
        net = use.net[program.template]
        before = np.cumsum(net) - net
        highest = before + use.highest[program.template]
        instance = int(np.argmax(highest))
        activations = max(0, int(highest[instance]))
        in_flight = min(activations, max(0, int(before[instance])))
    template, microbatch = "", -1
    if instance >= 0:
        template = graph.template_names[int(program.template[instance])]
        microbatch = int(program.microbatch[instance])
    return ProgramMemory(
        program=program.name,
        stage=program.stage,
        ranks=tuple(program.rank_list()),
        parameters=program.memory.parameters,
        gradients=program.memory.gradients,
        optimizer_states=program.memory.optimizer_states,
        activations=activations,
        in_flight=in_flight,
        peak_instance=instance,
        peak_template=template,
        peak_microbatch=microbatch,
    )


def _template_use(graph: Graph) -> _TemplateUse:
    """Each template alone: storage appears before its op runs, releases take effect after theirs."""
    num_ops, frees = len(graph.ops), graph.frees
    home = (frees.owner >= 0) & (frees.owner_scope == 0)
    released = np.where(home, whole_blocks(frees.num_bytes), frees.num_bytes)
    born = _rounded_allocations(graph, home, released)
    died = np.zeros(num_ops, dtype=np.int64)
    at_start = np.zeros(graph.num_templates, dtype=np.int64)
    inside = frees.after >= 0
    np.add.at(died, frees.after[inside], released[inside])
    np.add.at(at_start, frees.template[~inside], released[~inside])
    # live[i]: bytes while op i runs, counted from the start of all templates laid end to end.
    after = np.concatenate([[0], np.cumsum(born - died)]).astype(np.int64)
    live = after[:-1] + born
    starts = graph.template_start
    highest = np.zeros(graph.num_templates, dtype=np.int64)
    for template in range(graph.num_templates):
        first, last = int(starts[template]), int(starts[template + 1])
        if last > first:
            highest[template] = max(0, int(live[first:last].max() - after[first] - at_start[template]))
    return _TemplateUse(highest, after[starts[1:]] - after[starts[:-1]] - at_start)


def _rounded_allocations(graph: Graph, home: npt.NDArray[np.bool_], released: IntArray) -> IntArray:
    """Bytes that each op allocates; what rounding added to the releases ``home`` is added here too."""
    frees = graph.frees
    born = graph.ops.alloc_bytes.copy()
    np.add.at(born, frees.owner[home], released[home] - frees.num_bytes[home])
    return born
