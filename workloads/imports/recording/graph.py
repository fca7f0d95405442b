"""From analysed recordings to one execution graph: a program per recorded rank, written as columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.graph import Graph, OpKind, OpTable, ProcessGroup, Workload
from simcore.graph.ops import OP_COLUMNS, EdgeKind, IntArray, Strings
from simcore.records import dataclass
from workloads.imports.collective_names import graph_collective
from workloads.imports.op_columns import Names, rank_templates
from workloads.imports.recording.collectives import CoupledCollective, RankCoupling
from workloads.imports.recording.host import HostBlocks, HostThreads
from workloads.imports.recording.host_notes import PHASES, layers
from workloads.imports.recording.launches import HostOrder, LaunchTimes
from workloads.imports.recording.rank_ops import RankOps
from workloads.imports.recording.waits import OpWaits

_ALONE = "alone"  # the group of collectives whose other ranks were not recorded
ENDS_LATE = "ends later than its peers"  # pauses behind coupled collectives
HOST_THREAD = "host thread"  # streams that stand for host threads beside the main one
_PACE = 512  # launches after which the host is known to have had room in the launch queue

_Joined = tuple[str, CoupledCollective, int, int]  # group symbol, collective, the rank's op, how late it ends


@dataclass(frozen=True)
class RecordedRank:
    """Everything about one rank that goes into the graph."""

    ops: RankOps
    waits: OpWaits
    times: LaunchTimes
    blocks: HostBlocks
    order: HostOrder
    threads: HostThreads


@dataclass
class _RankColumns:
    """Rows of one rank, counted from its first; ``op_row[i]`` is the row of GPU op ``i``."""

    ints: dict[str, IntArray]
    strings: dict[str, npt.NDArray[np.int32]]
    op_row: IntArray
    edge_src: IntArray
    edge_dst: IntArray


def build_graph(
    ranks: list[RecordedRank], numbers: list[int], coupling: RankCoupling, lead_ps: list[int], name: str
) -> tuple[Graph, list[IntArray]]:
    """The graph of a trace set, and for each rank the flat op of each of its GPU ops.

    ``numbers`` are the recorded ranks; rank ``i`` of the graph is ``numbers[i]``.  ``lead_ps[i]`` is how much
    later than the first its host begins.
    """
    groups, joined = _families(ranks, coupling)
    names = {column: Names() for column, (kind, _) in OP_COLUMNS.items() if kind == "str"}
    for known in names.values():
        known.code("")
    parts, starts = [], [0]
    for index, rank in enumerate(ranks):
        parts.append(_rank_columns(rank, joined[index], lead_ps[index], names))
        starts.append(starts[-1] + len(parts[-1].ints["kind"]))
    table: dict[str, Strings | IntArray] = {}
    for column, (kind, _) in OP_COLUMNS.items():
        if kind == "str":
            codes = np.concatenate([part.strings[column] for part in parts])
            table[column] = Strings(codes, names[column].values())
        else:
            table[column] = np.concatenate([part.ints[column] for part in parts])
    sources = np.concatenate([part.edge_src + at for part, at in zip(parts, starts, strict=False)])
    targets = np.concatenate([part.edge_dst + at for part, at in zip(parts, starts, strict=False)])
    workload = Workload(name, len(ranks), framework="recorded", options={"recorded_ranks": numbers})
    graph = rank_templates(
        workload, groups, table, np.stack([targets, sources, sources * 0 + int(EdgeKind.WAIT)]), starts,
        [f"rank {number}" for number in numbers], [f"recorded rank {number}" for number in numbers],
    )  # fmt: skip
    return graph, [part.op_row for part in parts]


def ends_late(ops: OpTable, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Which of ``rows`` are coupled collectives with a pause behind them (the row that follows)."""
    is_last = rows + 1 == len(ops)
    behind = ops.name.equals(ENDS_LATE)[np.where(is_last, rows, rows + 1)]
    found: npt.NDArray[np.bool_] = behind & ~is_last & (ops.kind[rows] == OpKind.COLLECTIVE)
    return found


def _families(
    ranks: list[RecordedRank], coupling: RankCoupling
) -> tuple[dict[str, ProcessGroup], list[list[_Joined]]]:
    """The groups, and for each rank the coupled collectives that it takes part in.

    Members issue the calls of a group in one order; so calls on different streams are different groups.
    """
    groups = {_ALONE: ProcessGroup(_ALONE, ((1, 1),), ((len(ranks), 1),))}
    symbols: dict[tuple[object, ...], str] = {}
    joined: list[list[_Joined]] = [[] for _ in ranks]
    for coupled in coupling.collectives:
        lanes = tuple((m.index, int(ranks[m.index].ops.lane[m.op])) for m in coupled.members)
        symbol = symbols.get((coupled.group, lanes))
        if symbol is None:
            symbol = f"{coupled.group} #{len(symbols)}"
            symbols[coupled.group, lanes] = symbol
            members = tuple(m.index for m in coupled.members)
            groups[symbol] = ProcessGroup(symbol, ((len(members), 1),), explicit=(members,))
        for member, late_ps in zip(coupled.members, coupled.late_ps, strict=True):
            joined[member.index].append((symbol, coupled, member.op, late_ps))
    return groups, joined


def _rank_columns(
    rank: RecordedRank, joined: list[_Joined], lead_ps: int, names: dict[str, Names]
) -> _RankColumns:
    ops, order = rank.ops, rank.order
    is_op, is_main = order.op >= 0, order.thread == 0
    pause = order.pause_ps.copy()
    pause[np.unique(order.thread, return_index=True)[1]] += lead_ps
    gap = np.zeros(len(pause), dtype=np.int64)
    gap[is_op] = rank.times.gap_ps[order.op[is_op]]
    late_of_op = np.zeros(len(ops), dtype=np.int64)
    late_of_op[[op for _, _, op, _ in joined]] = [late_ps for _, _, _, late_ps in joined]
    late = np.zeros(len(pause), dtype=np.int64)
    late[is_op] = late_of_op[order.op[is_op]]
    on_gpu = np.cumsum(np.where(is_op, 1 + (gap > 0) + (late > 0), ~is_main) + (~is_main & (pause > 0)))
    pace = np.zeros(len(pause), dtype=np.bool_)
    pace[1:] = on_gpu[1:] // _PACE != on_gpu[:-1] // _PACE
    # Rows of an entry: the host's time, a note that the queue has room, the device's gap, the op itself, and
    # by how much it ends later than those that it met.
    layers = np.stack([pause > 0, pace, gap > 0, np.ones(len(pause), dtype=np.bool_), late > 0], axis=1)
    row = (np.cumsum(layers.reshape(-1)) - 1).reshape(layers.shape)
    size = int(layers.sum())
    ints = {
        column: np.full(size, default, dtype=np.int64)
        for column, (kind, default) in OP_COLUMNS.items()
        if kind == "int"
    }
    strings = {
        column: np.full(size, names[column].code(str(default)), dtype=np.int32)
        for column, (kind, default) in OP_COLUMNS.items()
        if kind == "str"
    }

    host, paces, gaps, last, lates = (row[:, k][layers[:, k]] for k in range(5))
    for rows, kind, stream, what in (
        (host, OpKind.HOST, "host", "host"),
        (paces, OpKind.SYNC, "host", "launch queue has room"),
    ):
        ints["kind"][rows] = int(kind)
        strings["stream"][rows] = names["stream"].code(stream)
        strings["name"][rows] = names["name"].code(what)
    ints["recorded_ps"][host] = pause[pause > 0]
    _further_threads(host, order.thread[pause > 0], ints, strings, names)
    lane_codes = np.array([names["stream"].code(lane) for lane in ops.lane_names], dtype=np.int32)
    for rows, there, lasting, what in (
        (gaps, gap > 0, gap, "gap before the next op"),
        (lates, late > 0, late, ENDS_LATE),
    ):
        strings["stream"][rows] = lane_codes[ops.lane[order.op[there]]]
        ints["kind"][rows] = int(OpKind.EVENT_WAIT)
        ints["recorded_ps"][rows] = lasting[there]
        strings["name"][rows] = names["name"].code(what)

    launched = last[is_op]
    op_row = np.full(len(ops), -1, dtype=np.int64)
    op_row[order.op[is_op]] = launched
    first_row = op_row.copy()  # where waits end: before the gap
    with_gap = order.op[gap > 0]
    first_row[with_gap] = op_row[with_gap] - 1
    end_row = op_row + (late_of_op > 0)
    _write_ops(rank, joined, op_row, ints, strings, names)
    strings["stream"][op_row] = lane_codes[ops.lane]

    blocks = last[~is_op]
    blocking = order.thread[~is_op]
    chosen = [rank.blocks.blocks[number] for number in order.block[~is_op].tolist()]
    ints["kind"][blocks] = int(OpKind.SYNC)
    ints["blocking"][blocks] = blocking == 0
    strings["stream"][blocks] = names["stream"].code("host")  # waits by edges alone
    _further_threads(blocks, blocking, ints, strings, names)
    strings["name"][blocks] = [names["name"].code(block.name) for block in chosen]
    sources = [end_row[list(block.waits_for)] for block in chosen]
    targets = [np.full(len(block.waits_for), at) for block, at in zip(chosen, blocks.tolist(), strict=True)]
    held, held_by = _launches_of_threads(order, np.where(pause > 0, row[:, 0], -1), row[:, 3])
    src = np.concatenate([end_row[rank.waits.source], *sources, held_by])
    dst = np.concatenate([first_row[rank.waits.target], *targets, first_row[held]]).astype(np.int64)
    # A wait on what the one host launches only later cannot be kept; it is a tie of a few us.
    kept = src < dst
    return _RankColumns(ints, strings, op_row, src[kept], dst[kept])


def _further_threads(
    rows: IntArray,
    thread: IntArray,
    ints: dict[str, IntArray],
    strings: dict[str, npt.NDArray[np.int32]],
    names: dict[str, Names],
) -> None:
    """``rows`` of threads other than the main one, as pauses on a stream that stands for the thread."""
    for number in np.unique(thread[thread > 0]).tolist():
        mine = rows[thread == number]
        ints["kind"][mine] = int(OpKind.EVENT_WAIT)
        strings["stream"][mine] = names["stream"].code(f"{HOST_THREAD} {number + 1}")
    waiting = rows[thread > 0]
    ints["recorded_ps"][waiting] = np.maximum(0, ints["recorded_ps"][waiting])


def _launches_of_threads(order: HostOrder, paused: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """Ops that a further thread launches, and the row of its stream that each is launched after."""
    ops: list[IntArray] = [np.zeros(0, dtype=np.int64)]
    rows: list[IntArray] = [np.zeros(0, dtype=np.int64)]
    for number in np.unique(order.thread[order.thread > 0]).tolist():
        mine = np.flatnonzero(order.thread == number)
        latest = np.maximum.accumulate(np.where(order.op[mine] >= 0, paused[mine], last[mine]))
        launched = (order.op[mine] >= 0) & (latest >= 0)
        ops.append(order.op[mine][launched])
        rows.append(latest[launched])
    return np.concatenate(ops), np.concatenate(rows)


def _write_ops(
    rank: RecordedRank,
    joined: list[_Joined],
    op_row: IntArray,
    ints: dict[str, IntArray],
    strings: dict[str, npt.NDArray[np.int32]],
    names: dict[str, Names],
) -> None:
    """Kernels, copies and collectives of one rank."""
    ops, trace = rank.ops, rank.ops.trace
    gpu, row = trace.gpu, rank.ops.row
    name_codes = np.array([names["name"].code(name) for name in trace.names], dtype=np.int32)
    strings["name"][op_row] = name_codes[gpu.name[row]]
    ints["recorded_ps"][op_row] = ops.end_ps - ops.start_ps
    kinds = np.array([OpKind.COMPUTE, OpKind.MEMCPY, OpKind.COMPUTE], dtype=np.int64)
    ints["kind"][op_row] = kinds[gpu.kind[row]]
    classes = np.array([names["op_class"].code(c) for c in ("other", "copy", "fill")], dtype=np.int32)
    strings["op_class"][op_row] = classes[gpu.kind[row]]
    phases = np.array([names["phase"].code(phase) for phase in PHASES], dtype=np.int32)
    strings["phase"][op_row] = phases[trace.notes.phases.of(ops.launched_ps())]
    threads = np.where(ops.call >= 0, trace.calls.thread[ops.call] if len(trace.calls) else -1, -1)
    module, paths = trace.notes.modules.of(ops.launched_ps(), threads)
    strings["module"][op_row] = np.array([names["module"].code(p) for p in paths], dtype=np.int32)[module]
    ints["layer"][op_row] = layers(paths)[module]
    is_memory = gpu.kind[row] > 0
    ints["bytes_written"][op_row[is_memory]] = gpu.num_bytes[row[is_memory]]
    is_copy = gpu.kind[row] == 1
    ints["bytes_read"][op_row[is_copy]] = gpu.num_bytes[row[is_copy]]

    comm = np.flatnonzero(ops.is_comm)
    at = op_row[comm]
    ints["kind"][at] = int(OpKind.COLLECTIVE)
    strings["op_class"][at] = names["op_class"].code("")
    strings["group"][at] = names["group"].code(_ALONE)
    for op in comm.tolist():
        strings["collective"][op_row[op]] = names["collective"].code(graph_collective(ops.collective(op)))
    for symbol, coupled, op, _ in joined:
        at_row = op_row[op]
        strings["group"][at_row] = names["group"].code(symbol)
        strings["collective"][at_row] = names["collective"].code(graph_collective(coupled.collective))
        ints["num_bytes"][at_row] = coupled.num_bytes
        ints["recorded_ps"][at_row] = coupled.transfer_ps
