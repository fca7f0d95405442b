"""Recorded kernels as demands on a GPU: how long each lasts alone, and what it then shares with others.

A recorded duration contains what the kernel shared its GPU with.  A kernel that nothing overlapped is its own
time alone; one that only communication overlapped takes the median of the same kernels (name, grid, and
shapes where recorded) that nothing overlapped, if those are alike; any other keeps its recorded duration,
whatever runs beside it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from simcore.apps.replay.categories import CATEGORIES, categories
from simcore.apps.replay.tiles import unrecorded_launch
from simcore.cost.demand import Demands, RecordedCost
from simcore.engine.sequence import Demand
from simcore.graph.ops import IntArray, OpTable
from simcore.hardware.sm import ThreadBlock, load_sm
from simcore.hardware.specs import GpuSpec
from simcore.records import dataclass
from simcore.tables import names
from simcore.units import PS_PER_S, ps_from_s
from workloads.imports import ImportedJob
from workloads.imports.recorded import BoolArray, RecordedOps

#: Kernels limited by their thread blocks' arithmetic; the others stream HBM.
_COMPUTE_BOUND = ("gemm/conv", "attention")

_ALIKE = 1.5  # longest over shortest of kernels that do the same work, tenths of outliers left out

_LOAD_BYTES = 16  # of a thread's widest load or store
#: Resident threads of an SM (CUDA programming guide, compute capability 7.0 to 9.0), a load and a store each.
_WAVE_BYTES_PER_SM = 2048 * 2 * _LOAD_BYTES

#: A recorded kernel is limited by HBM when it moves at least this share of what streaming kernels reach.
_NEAR = 0.9
#: A product whose main loop HBM limits reads more than this many times what it writes.
_READS = 4


@dataclass(frozen=True)
class Streaming:
    """What keeps a GPU's HBM busy (docs/contention.md).

    ``saturating``: share of the SMs that streaming kernels need for it; recorded ones lose nothing, or little
    more than the rest, where 24 of an A100's 108 SMs are gone.  ``prefetching``: products whose main loop HBM
    limits have several stages of loads under way in each block, more than latency times bandwidth, so that
    SMs need only ports wide enough: HBM's share of what L2 delivers to all of them.
    ``small_grids``: a kernel of fewer blocks than there are SMs is no streaming one.  ``fills``: nor is one
    of as many blocks an SM on all SMs, all resident at once: it was launched to fill the GPU, and what finds
    no place is a second wave.  ``staged``: nor one that passes its data through shared memory (transposes,
    blockwise casts), unless its blocks' tiles, in and out, are as much as HBM brings meanwhile.
    ``waits``: few warps of what fills the GPU do not keep their SM's share of HBM busy.
    """

    saturating: float = 0.85
    prefetching: bool = True
    small_grids: bool = True
    fills: bool = True
    staged: bool = True
    waits: bool = True


STREAMING = Streaming()


def duration_alone(ops: RecordedOps, simulated: BoolArray) -> tuple[IntArray, BoolArray]:
    """(time alone, whether it is known) of each op, ps; where it is not, the recorded duration.

    ``simulated`` marks the communication that a network decides about: what other communication did to a
    kernel is in its duration, and stays.
    """
    length = ops.end_ps - ops.start_ps
    kernel = ops.is_kernel & ~ops.is_comm
    free = kernel & ~overlapped(ops, np.ones(len(ops), dtype=np.bool_))
    by_comm = kernel & ~free & ~overlapped(ops, ~simulated)
    shapes = np.full(len(ops), -1, dtype=np.int64)
    if ops.shapes is not None:
        called = ops.shapes.of_op >= 0
        shapes[called] = ops.shapes.in_shapes.codes[ops.shapes.of_op[called]]
    same = np.unique(np.stack([ops.name.codes, ops.blocks, shapes]), axis=1, return_inverse=True)[1].reshape(
        -1
    )
    samples: dict[int, list[int]] = defaultdict(list)
    for op in np.flatnonzero(free).tolist():
        samples[int(same[op])].append(int(length[op]))
    typical = {number: int(np.median(found)) for number, found in samples.items() if _alike(found)}
    alone, known = length.copy(), free.copy()
    for op in np.flatnonzero(by_comm).tolist():
        usual = typical.get(int(same[op]))
        if usual is not None:
            alone[op] = min(int(length[op]), usual)
            known[op] = True
    return alone, known


def _alike(lengths: list[int]) -> bool:
    """Whether kernels did the same work: one name and grid may stand for several shapes."""
    short, long = np.quantile(lengths, [0.1, 0.9])
    return bool(long <= _ALIKE * short)


def overlapped(ops: RecordedOps, by: BoolArray) -> BoolArray:
    """Whether an op ran beside one of ``by`` on another stream.  Ops are sorted by start."""
    found = np.zeros(len(ops), dtype=np.bool_)
    begins = ops.start_ps[by]
    reach = np.maximum.accumulate(ops.end_ps[by]) if by.any() else begins
    numbers = np.flatnonzero(by)
    place = np.searchsorted(begins, ops.end_ps)  # those that began before an op ended
    for op in range(len(ops)):
        at = int(place[op]) - 1
        while at >= 0 and reach[at] > ops.start_ps[op]:
            if numbers[at] != op and ops.end_ps[numbers[at]] > ops.start_ps[op]:
                found[op] = True
                break
            at -= 1
    return found


def start_cost_ps(ops: RecordedOps, alone: BoolArray, gpu: GpuSpec) -> int:
    """What starting and ending any kernel costs, ps: the shortest hundredth of those that ran alone.

    No more than a launch on an idle stream takes, for recordings of few kernels.
    """
    length = (ops.end_ps - ops.start_ps)[alone & ops.is_kernel]
    return shortest_ps(length[length > 0], gpu)


def shortest_ps(alone_ps: IntArray, gpu: GpuSpec) -> int:
    """:func:`start_cost_ps` from the times alone of kernels."""
    if not len(alone_ps):
        return 0
    return min(int(np.quantile(alone_ps, 0.01)), ps_from_s(gpu.launch_latency_s))


def demand_alone(
    alone_ps: int, start_ps: int, kind: str, blocks: int, blocks_per_sm: int, gpu: GpuSpec,
    block: ThreadBlock | None = None, moved: tuple[int, int] = (0, 0),
    streaming: Streaming = STREAMING,
) -> Demand:  # fmt: skip
    """Demand of a recorded kernel that lasts ``alone_ps`` with the GPU to itself.

    A compute-bound kernel (GEMM, convolution, attention; ``kind`` is its category) takes SM time in waves of
    its recorded thread blocks, any other spread evenly, since its many small blocks keep as much memory
    traffic in flight as there are SMs to run them (Little's law).  What HBM limits needs fewer SMs: all
    elementwise kernels whose traffic is not known, and kernels of known traffic, ``moved`` (bytes read and
    written), near the rate that streaming reaches; see :class:`Streaming`.
    One without a recorded grid that is too short to move more than the GPU's threads hold at a time leaves
    SMs free, and loses nothing with some; so does one of fewer recorded blocks than SMs, as long as these fit
    on what is left.  ``start_ps`` of the time is shared with nothing; ``block`` is
    what each takes of its SM.
    """
    fixed = min(start_ps, alone_ps)
    rest = alone_ps - fixed
    # Rounded down, so that the memory time never exceeds the rest and time alone stays exact.
    streamed = int(rest * gpu.hbm_efficiency * (gpu.hbm_bytes_per_s / PS_PER_S))
    limited = sum(moved) >= _NEAR * streamed if sum(moved) else kind == "elementwise/copy"
    if kind in _COMPUTE_BOUND:
        known = blocks > 0 and blocks_per_sm > 0
        if limited and moved[0] > _READS * moved[1]:
            # As many blocks as before, each done sooner if memory did not keep it.
            ports = min(1.0, gpu.hbm_bytes_per_s * gpu.hbm_efficiency / gpu.l2_bytes_per_s)
            needed = int(rest * ports) if streaming.prefetching else rest
            return needed, 0, 1, _at_peak(rest, gpu), fixed, True, 0, 0.0
        lost = _lost(gpu, block, is_product=not known and kind == "gemm/conv")
        return rest, blocks if known else 0, blocks_per_sm if known else 1, 0, fixed, True, lost, 0.0
    each, over = divmod(blocks, gpu.num_sms)
    if streaming.fills and 0 < each <= blocks_per_sm and not over:
        return rest, blocks, each, streamed, fixed, True, 1, _waiting(gpu, block) if streaming.waits else 0.0
    if streaming.small_grids and 0 < blocks < gpu.num_sms and blocks_per_sm > 0:
        # So few blocks do not keep HBM busy: at most their SMs' share of it.
        # They wait for loads, one after the other, and do not slow each other on an SM.
        return rest, blocks, blocks_per_sm, streamed * blocks // gpu.num_sms, fixed, True, 0, 0.0
    one_wave = blocks <= 0 and streamed <= gpu.num_sms * _WAVE_BYTES_PER_SM
    if streaming.staged and not sum(moved) and block is not None and block.shared_bytes > 0:
        passed = 2 * blocks * block.shared_bytes
        # More than L2 holds and HBM brings: tiles are not full, and what they move is not known.
        limited = limited and _NEAR * streamed <= passed <= gpu.l2_bytes + _at_peak(rest, gpu)
    if limited and not one_wave:
        return int(rest * streaming.saturating), 0, 1, _at_peak(rest, gpu), fixed, True, 0, 0.0
    return rest, 1 if one_wave else 0, 1, streamed, fixed, True, 0, 0.0


def _lost(gpu: GpuSpec, block: ThreadBlock | None, *, is_product: bool) -> int:
    """SMs lost for each that communication holds, by what a block takes; 0 where that is not known."""
    if gpu.table("sm") not in names("hardware_profiles", "sm"):
        return 0
    sm = load_sm(gpu.table("sm"))
    if block is None and is_product:
        block = sm.large_tile()
    return sm.lost(block) if block is not None else 0


def _waiting(gpu: GpuSpec, block: ThreadBlock | None) -> float:
    """For how many blocks' shares of an SM's HBM a block waits for its loads, one a thread; 0: not known.

    Little's law: HBM keeps an SM busy with as many bytes as it brings while a load is under way.
    """
    if block is None or gpu.table("sm") not in names("hardware_profiles", "sm"):
        return 0.0
    load_s = load_sm(gpu.table("sm")).load_cycles / gpu.boost_clock_hz
    under_way = load_s * gpu.hbm_bytes_per_s * gpu.hbm_efficiency / gpu.num_sms
    return under_way / (block.threads * _LOAD_BYTES)


def _at_peak(rest_ps: int, gpu: GpuSpec) -> int:
    """Bytes that keep HBM busy for so long, as the engine counts them: at peak bandwidth."""
    return round(rest_ps * (gpu.hbm_bytes_per_s / PS_PER_S))


class SharedGpu:
    """Prices recorded kernels so that communication beside them matters; implements ``CostModel``.

    Demands are those of :func:`demand_alone`.  ``predicted`` (rows, demands) replaces what is recorded.
    """

    def __init__(
        self,
        job: ImportedJob,
        row_of: list[IntArray],
        simulated: list[BoolArray],
        gpu: GpuSpec,
        predicted: tuple[IntArray, Demands] | None = None,
    ) -> None:
        self._job = job
        self._row_of = row_of
        self._simulated = simulated
        self._gpu = gpu
        self._predicted = predicted

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """As :class:`RecordedCost`, with demands of kernels whose time alone is known."""
        demands = RecordedCost().demands(ops, used)
        for rank, row, simulated in zip(self._job.ranks, self._row_of, self._simulated, strict=True):
            recorded = rank.recorded
            alone, known = duration_alone(recorded, simulated)
            start = start_cost_ps(recorded, known, self._gpu)
            kinds = categories(recorded)
            for op in np.flatnonzero(known).tolist():
                kind, moved = CATEGORIES[int(kinds[op])], recorded.moved(op)
                launch = (
                    int(recorded.blocks[op]), int(recorded.blocks_per_sm[op]),
                    recorded.launches.of(op) if recorded.launches is not None else None,
                )  # fmt: skip
                if not launch[0]:
                    launch = unrecorded_launch(recorded.name[op], kind, int(alone[op]), moved[1], self._gpu)
                found = demand_alone(int(alone[op]), start, kind, *launch[:2], self._gpu, launch[2], moved)
                at = row[op]
                demands.sm_ps[at], demands.blocks[at], demands.blocks_per_sm[at] = found[:3]
                demands.hbm_bytes[at], demands.fixed_ps[at] = found[3:5]
                demands.lost[at], demands.waiting[at] = found[6:]
        if self._predicted is not None:
            rows, priced = self._predicted
            for name in (
                "sm_ps", "blocks", "blocks_per_sm", "hbm_bytes", "fixed_ps", "origin", "lost", "waiting",
            ):  # fmt: skip
                getattr(demands, name)[rows] = getattr(priced, name)
        return demands
