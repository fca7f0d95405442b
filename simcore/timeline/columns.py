"""Timeline columns of one program: what classes of ranks that ran it alike share, gathered once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from simcore.collectives.plan import CollectivePlan
from simcore.engine.result import RankTimes, SimulationResult
from simcore.graph.arrow import numbers, texts
from simcore.graph.graph import FlatOps, Graph, Int32Array, Program
from simcore.graph.kinds import KIND_NAMES, is_communication, is_on_host, is_p2p, is_priced
from simcore.graph.ops import IntArray, Strings
from simcore.records import dataclass
from simcore.timeline.schema import TIMELINE

#: ``stream`` of host ops and synchronisations.
HOST = "host"


@dataclass(frozen=True)
class ProgramColumns:
    """Arrow columns that classes of a program share, and what is needed to fill in the rest.

    ``alone_ps`` and ``op_id`` are also kept as numpy for the digest.  ``peer_key[i]`` indexes
    ``peer_kinds`` (group symbol, peer delta) for a send or recv and is -1 elsewhere.
    """

    shared: dict[str, pa.Array]
    op_id: npt.NDArray[np.int32]
    alone_ps: IntArray
    peer_key: npt.NDArray[np.int64]
    peer_kinds: tuple[tuple[str, int], ...]

    @classmethod
    def gather(cls, graph: Graph, result: SimulationResult, rank_class: int) -> ProgramColumns:
        """Columns of the program of ``rank_class`` as that class ran it."""
        program = graph.programs[graph.program_of_rank[result.representatives[rank_class]]]
        flat = graph.flat_ops(program)
        ops, row = graph.ops, flat.row
        plan_of = result.plan_of[rank_class]
        kind = ops.kind[row]
        op_id = np.arange(len(flat), dtype=np.int32)
        alone = _alone_ps(result, kind, result.alone_ps[rank_class], plan_of)
        shared = {
            "stream": _text(_streams(ops.stream.take(row), kind)),
            "op_id": numbers(op_id),
            "name": _text(ops.name.take(row)),
            "kind": _text(Strings(kind.astype(np.int32), KIND_NAMES)),
            "phase": _text(ops.phase.take(row)),
            "step": _constant(0, len(flat)),
            "stage": _constant(program.stage, len(flat)),
            "microbatch": numbers(flat.microbatch.astype(np.int32)),
            "layer": numbers(_global_layer(flat, ops.layer[row], program)),
            "group": _text(ops.group.take(row)),
            "algorithm": _text(_plan_strings(result.plans, plan_of, lambda plan: plan.algorithm)),
            "protocol": _text(_plan_strings(result.plans, plan_of, lambda plan: plan.protocol)),
            "channels": numbers(_plan_ints(result.plans, plan_of).astype(np.int32)),
            "flops": numbers(ops.flops[row]),
            "bytes": numbers(
                np.where(
                    is_communication(kind),
                    ops.num_bytes[row],
                    ops.bytes_read[row] + ops.bytes_written[row],
                )
            ),
            "alone_ps": numbers(alone),
        }
        peer_key, peer_kinds = _peer_keys(graph, row, kind)
        return cls(shared, op_id, alone, peer_key, peer_kinds)

    def table(self, graph: Graph, rank: int, rank_class: int, times: RankTimes) -> pa.Table:
        """Timeline rows of one rank, in issue order."""
        num_rows = len(self.op_id)
        columns = {
            **self.shared,
            "rank_class": _constant(rank_class, num_rows),
            "rank": _constant(rank, num_rows),
            "peer": numbers(self._peers(graph, rank)),
            "ready_ps": numbers(times.ready_ps),
            "start_ps": numbers(times.start_ps),
            "end_ps": numbers(times.end_ps),
        }
        return pa.Table.from_arrays([columns[name] for name in TIMELINE.names], schema=TIMELINE)

    def _peers(self, graph: Graph, rank: int) -> npt.NDArray[np.int32]:
        """Global rank at the other end of each send and recv of ``rank``, -1 elsewhere."""
        lookup = np.full(len(self.peer_kinds) + 1, -1, dtype=np.int32)
        for key, (group_name, delta) in enumerate(self.peer_kinds):
            members = graph.groups[group_name].ranks_of(rank)
            lookup[key] = members[(members.index(rank) + delta) % len(members)]
        return lookup[self.peer_key]


def _text(column: Strings) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        numbers(column.codes.astype(np.int32, copy=False)), texts(column.values)
    )


def _streams(stream: Strings, kind: IntArray) -> Strings:
    """Where each op runs: what the host does, waiting for a stream included, is on no stream of the GPU."""
    values = stream.values if HOST in stream.values else (*stream.values, HOST)
    return Strings(np.where(is_on_host(kind), values.index(HOST), stream.codes).astype(np.int32), values)


def _constant(value: int, length: int) -> pa.Array:
    return numbers(np.full(length, value, dtype=np.int32))


def _alone_ps(
    result: SimulationResult, kind: IntArray, alone_ps: IntArray, plan_of: npt.NDArray[np.int32]
) -> IntArray:
    """Time alone of each flat op: its plan's for communication, its own for kernels, else 0."""
    plan_alone = np.array([plan.alone_ps for plan in result.plans] + [0], dtype=np.int64)
    kernel_alone = np.where(is_priced(kind), alone_ps, 0)
    return np.where(plan_of >= 0, plan_alone[plan_of], kernel_alone)


def _global_layer(flat: FlatOps, layer: IntArray, program: Program) -> npt.NDArray[np.int32]:
    """Layer index in the whole model: the chunk's first layer plus the index within the chunk."""
    offset = np.array(program.layer_offset, dtype=np.int64)[program.chunk][flat.instance]
    return np.where(layer >= 0, layer + offset, -1).astype(np.int32)


def _plan_strings(
    plans: Sequence[CollectivePlan],
    plan_of: npt.NDArray[np.int32],
    field: Callable[[CollectivePlan], str],
) -> Strings:
    # The extra last entry is what index -1 (no plan) picks.
    by_plan = Strings.encode([*(field(plan) for plan in plans), ""])
    return by_plan.take(plan_of)


def _plan_ints(plans: Sequence[CollectivePlan], plan_of: npt.NDArray[np.int32]) -> IntArray:
    return np.array([*(plan.channels for plan in plans), 0], dtype=np.int64)[plan_of]


def _peer_keys(
    graph: Graph, row: Int32Array, kind: IntArray
) -> tuple[npt.NDArray[np.int64], tuple[tuple[str, int], ...]]:
    """Distinct (group, peer delta) of the sends and recvs, and which one each flat op has."""
    key = np.full(len(row), -1, dtype=np.int64)
    p2p = np.flatnonzero(is_p2p(kind))
    pairs = np.stack(
        [graph.ops.group.codes[row[p2p]].astype(np.int64), graph.ops.peer_delta[row[p2p]]], axis=1
    )
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    key[p2p] = inverse.reshape(-1)
    names = graph.ops.group.values
    return key, tuple((names[int(code)], int(delta)) for code, delta in distinct)
