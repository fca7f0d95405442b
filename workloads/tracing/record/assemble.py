"""Traces of the representative ranks become one graph: equal templates of all programs are stored once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from simcore.graph import EdgeTable, FreeTable, Graph, OpRows, ProcessGroup, Program, Strings, Workload
from simcore.graph.builder import rank_ranges
from simcore.graph.graph import MemoryProfile
from simcore.records import dataclass
from workloads.tracing.fake.given_batches import LoaderShare
from workloads.tracing.record.cut_shards import CutTensors
from workloads.tracing.record.holders import Holder
from workloads.tracing.record.recording import COLUMNS, ValueAsked
from workloads.tracing.record.templates import CUT_COLUMNS, CutProgram, CutTemplate


@dataclass(frozen=True)
class RankTrace:
    """One step of one rank, cut into templates.

    ``groups``: members of the groups it used, by symbol; ``families``: (symbol, members) of the groups that
    it asked for, on rank 0 every group of the world; ``memory`` holds the static bytes only; ``asked``:
    values that the run did not have, with how often; ``unused``: answers that no site asked for; ``holders``:
    what is held when memory is highest, largest first; ``peaks``: highest bytes while each phase runs;
    ``num_parameters``: elements of this rank's parameters, ``num_trained`` of those that it trains;
    ``stand_ins``: extensions that it imported and that are not installed; ``counted``: kernels whose own code
    says what they cost; ``call_sites``: lines of code that communicated, in order; ``held``: bytes of each
    storage that lasts, by category; ``named``: ranks that the script's code names; ``cut``: tensors whose
    shards are cut across them; ``read``: what its loaders gave it (None: of one it is not known what they
    give others).
    """

    rank: int
    num_microbatches: int
    program: CutProgram
    groups: dict[str, tuple[int, ...]]
    families: tuple[tuple[str, tuple[int, ...]], ...]
    layer_offset: tuple[int, ...]
    memory: MemoryProfile
    versions: dict[str, str]
    asked: tuple[tuple[ValueAsked, int], ...]
    unused: tuple[str, ...]
    holders: tuple[Holder, ...]
    peaks: tuple[tuple[str, int], ...]
    num_parameters: int
    num_trained: int
    precision: str
    stand_ins: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    call_sites: tuple[str, ...] = ()
    held: Mapping[str, Sequence[int]] = field(default_factory=dict)
    named: tuple[int, ...] = ()
    cut: tuple[CutTensors, ...] = ()
    read: tuple[LoaderShare, ...] | None = ()

    def fingerprint(self) -> str:
        """What the rank did and holds, independent of who it is."""
        return f"{self.program.digest()} {self.memory} {self.layer_offset}"


@dataclass(frozen=True)
class RankClass:
    """Ranks of one pipeline stage that recorded the same; ``representative`` is the lowest."""

    stage: int
    ranks: tuple[int, ...]

    @property
    def representative(self) -> int:
        """The lowest rank of the class."""
        return self.ranks[0]


def assemble(
    workload: Workload,
    classes: Sequence[RankClass],
    traces: Sequence[RankTrace],
    programs: Sequence[CutProgram],
    groups: Mapping[str, ProcessGroup],
) -> Graph:
    """The graph of ``workload`` from one trace and one program of full length per class (in equal order)."""
    templates: dict[str, CutTemplate] = {}
    for program in programs:
        for entry in program.skeleton:
            templates.setdefault(entry.template, program.templates[entry.template])
    index = {digest: number for number, digest in enumerate(templates)}
    ops, starts = OpRows(), [0]
    for template in templates.values():
        for row in template.rows:
            ops.append(**dict(zip((*COLUMNS, *CUT_COLUMNS), row, strict=True)))
        starts.append(len(ops))
    return Graph(
        workload=workload,
        groups=dict(groups),
        programs=tuple(
            _program(one, trace, program, index, which)
            for one, trace, program, which in zip(classes, traces, programs, _numbers(classes), strict=True)
        ),
        ops=ops.table(),
        edges=_edge_table(list(templates.values()), starts),
        frees=_free_table(list(templates.values()), starts),
        template_start=np.array(starts, dtype=np.int64),
        template_names=tuple(template.name for template in templates.values()),
    )


def _numbers(classes: Sequence[RankClass]) -> list[int]:
    """Number of each class within its stage."""
    seen: dict[int, int] = {}
    numbers = []
    for one in classes:
        numbers.append(seen.get(one.stage, 0))
        seen[one.stage] = numbers[-1] + 1
    return numbers


def _program(
    one: RankClass, trace: RankTrace, program: CutProgram, index: Mapping[str, int], which: int
) -> Program:
    activations = program.peak_memory()
    skeleton = program.skeleton
    return Program(
        name=f"stage{one.stage}.{which}",
        ranks=rank_ranges(one.ranks),
        stage=one.stage,
        template=np.array([index[entry.template] for entry in skeleton], dtype=np.int32),
        microbatch=np.array([entry.microbatch for entry in skeleton], dtype=np.int32),
        chunk=np.array([entry.chunk for entry in skeleton], dtype=np.int32),
        layer_offset=trace.layer_offset,
        memory=dataclasses.replace(
            trace.memory, activations_peak=activations, peak=trace.memory.static + activations
        ),
    )


def _edge_table(templates: Sequence[CutTemplate], starts: Sequence[int]) -> EdgeTable:
    written = sorted(
        (start + dst, start + src if src >= 0 else -1, kind, stream, back)
        for template, start in zip(templates, starts, strict=False)
        for dst, src, kind, stream, back in template.edges
    )
    numbers = np.array([(d, s, k, b) for d, s, k, _, b in written], dtype=np.int64).reshape(-1, 4)
    dst, src, kind, back = (np.ascontiguousarray(column) for column in numbers.T)
    return EdgeTable(dst, src, kind, Strings.encode([row[3] for row in written]), back)


def _free_table(templates: Sequence[CutTemplate], starts: Sequence[int]) -> FreeTable:
    written = []
    for number, (template, start) in enumerate(zip(templates, starts, strict=False)):
        for after, num_bytes, owner, scope in template.frees:
            inside = start + owner if scope == 0 else owner
            written.append((number, start + after if after >= 0 else -1, num_bytes, inside, scope))
    numbers = np.array(sorted(written), dtype=np.int64).reshape(-1, 5)
    return FreeTable(*(np.ascontiguousarray(column) for column in numbers.T))
