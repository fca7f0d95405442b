"""From the ideal step to the actual one: what each cause adds, to the picosecond.

Note [Waterfall]
    Every moment of every GPU is counted once, so the parts add up to the step times the number of GPUs.
    A moment in which kernels run is theirs: of the time alone that kernels of the model take, first what its
    flops take at the datasheet's peak, then what the clock under load and the slowest GPU's clock add to
    that, then what kernels lose beyond: those that products bound (by their flops and bytes on this GPU) and
    those that memory bounds; recomputation and the optimizer are whole.  What sharing adds is contention.
    A moment in which communication alone moves data is exposed, by the axis of its group; its contention goes
    to communication's.  In the rest, a rank waits for a message (the bubble, as does one whose work is done
    before the step ends, where there are stages), for other members of a collective, or for the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcore.analysis.intervals import IntArray, Intervals
from simcore.analysis.totals import ToldApart
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS, P2P_KINDS
from simcore.records import dataclass
from simcore.timeline.info import RunInfo
from simcore.timeline.reader import RankRows
from simcore.units import PS_PER_S

BoolArray = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

#: Parts in their order, with what they are.
PARTS: Final = {
    "ideal": "model flops at the datasheet's peak",
    "clock": "clock under load",
    "slowest": "slowest GPU's clock",
    "products": "products below peak",
    "memory_bound": "kernels that memory bounds",
    "recompute": "recomputation",
    "optimizer": "optimizer and gradient kernels",
    "kernel_contention": "sharing slows kernels",
    "tensor": "exposed: tensor parallelism",
    "context": "exposed: context parallelism",
    "expert": "exposed: expert parallelism",
    "pipeline": "exposed: pipeline messages",
    "data": "exposed: data parallelism",
    "other": "exposed: other communication",
    "communication_contention": "sharing slows communication",
    "peers": "waits for others in collectives",
    "bubble": "pipeline bubble",
    "host": "host and launches",
}
_OF_KERNELS: Final = ("name", "phase", "kind")
_OF_COMMUNICATION: Final = ("name", "group", "algorithm", "protocol", "phase", "kind")
_MODEL_PHASES: Final = ("fwd", "bwd")
_AXES: Final = (
    ("tensor", ("tp",)), ("context", ("cp",)), ("data", ("dp", "expert_dp", "edp")),
    ("expert", ("ep", "etp")), ("pipeline", ("pp",)),
)  # fmt: skip


@dataclass(frozen=True)
class Waterfall:
    """Picoseconds of all GPUs together by part (:data:`PARTS`): their sum is ``step_ps`` x ``num_ranks``."""

    gpu_ps: Mapping[str, int]
    step_ps: int
    num_ranks: int

    def seconds(self) -> dict[str, float]:
        """Mean of all ranks, s, in order; parts that are 0 are left out."""
        return {name: ps / self.num_ranks / PS_PER_S for name, ps in self.gpu_ps.items() if ps}


@dataclass(frozen=True)
class TimedOps:
    """Some of a rank's ops: at which rows, how long they take alone, and when they are ready, start and end,
    ps.
    """

    at: Places
    alone: IntArray
    ready: IntArray
    start: IntArray
    end: IntArray

    @property
    def contention(self) -> int:
        """By how much they last longer than alone, all together."""
        return int((self.end - self.start - self.alone).sum())


@dataclass(frozen=True)
class RankWork:
    """What analyses ask of a rank's rows: kernels, what communicates, and which of these are messages and
    collectives; when kernels and communication are under way.
    """

    rows: RankRows
    compute: TimedOps
    communication: TimedOps
    p2p: Places  # of what communicates
    collectives: Places
    computing: Intervals
    communicating: Intervals

    @classmethod
    def of(cls, rows: RankRows) -> RankWork:
        """From rows with kinds and times."""

        def find() -> tuple[list[Places], list[IntArray], Places, Places]:
            at = [np.flatnonzero(rows.are("kind", kinds)) for kinds in (COMPUTE_KINDS, COMMUNICATION_KINDS)]
            is_p2p = rows.are("kind", P2P_KINDS)[at[1]]
            alone = [rows.ints("alone_ps")[places] for places in at]
            return at, alone, np.flatnonzero(is_p2p), np.flatnonzero(~is_p2p)

        at, alone, p2p, collectives = rows.found("ops", find)
        columns = [rows.ints(name) for name in ("ready_ps", "start_ps", "end_ps")]
        compute, communication = (
            TimedOps(places, times, *(column[places] for column in columns))
            for places, times in zip(at, alone, strict=True)
        )
        return cls(
            rows, compute, communication, p2p, collectives, Intervals.union(compute.start, compute.end),
            Intervals.union(communication.start, communication.end),
        )  # fmt: skip

    def told_apart(self) -> tuple[tuple[ToldApart, ToldApart], tuple[IntArray, IntArray]]:
        """Kernels, and what communicates, by what they are; and how long they take, ps."""

        def find() -> tuple[ToldApart, ToldApart]:
            return (
                ToldApart.of(self.rows, _OF_KERNELS, self.compute.at),
                ToldApart.of(self.rows, _OF_COMMUNICATION, self.communication.at),
            )

        times = self.compute.end - self.compute.start, self.communication.end - self.communication.start
        return self.rows.found("told apart", find), times


def waterfall_of(parts: Mapping[str, int], info: RunInfo) -> Waterfall:
    """Where a run's step goes, from the :func:`parts_of` all its ranks; see Note [Waterfall]."""
    found = defaultdict(int, parts)
    _split_products(found, info)
    return Waterfall({name: found.get(name, 0) for name in PARTS}, info.step_ps, info.workload.world_size)


def axis_of(group: str, phase: str, kind: str) -> str:
    """Which part a communication belongs to, by its group's name: "tp" is tensor parallelism."""
    first = group.partition("_")[0]
    for name, groups in _AXES:
        if group in groups or first in groups:
            return name
    if kind in P2P_KINDS:
        return "pipeline"
    return "data" if phase == "grad_sync" else "other"


def parts_of(seen: RankWork, info: RunInfo) -> dict[str, int]:
    """Parts of one rank's step, ps; "products" holds all of the model's products yet."""
    step_ps = info.step_ps
    rows, compute, communication = seen.rows, seen.compute, seen.communication
    found: dict[str, int] = defaultdict(int)

    own, contended = _claimed(compute, None)
    for name, chosen in rows.found("kernels by part", lambda: _kernels(rows, compute.at, info)):
        found[name] = int(own[chosen].sum())
    found["kernel_contention"] = int(contended.sum())

    own, contended = _claimed(communication, seen.computing)
    found["communication_contention"] = int(contended.sum())
    for name, chosen in rows.found("communication by part", lambda: _by_axis(rows, communication.at)):
        found[name] = int(own[chosen].sum())

    idle = seen.computing.joined(seen.communicating).rest_of(step_ps)
    stages = info.workload.dims.get("pp", 1) > 1
    last = max(int(one.end.max(initial=0)) for one in (compute, communication))
    behind = Intervals(np.array([last]), np.array([step_ps])) if last < step_ps else Intervals.none()
    messages, peers = (
        Intervals.union(communication.ready[of], communication.start[of])
        for of in (seen.p2p, seen.collectives)
    )
    awaited = messages.joined(behind) if stages else messages
    peers = peers if stages else peers.joined(behind)
    bubble = awaited.overlap(idle)
    found["bubble"] = bubble
    found["peers"] = peers.joined(awaited).overlap(idle) - bubble
    found["host"] = idle.total - bubble - found["peers"]
    return found


def _split_products(found: dict[str, int], info: RunInfo) -> None:
    """Takes from the model's products what its flops need at the peak, and what clocks add to that."""
    peak = info.peak_flops_per_s
    if not peak or not info.flops.model_causal:
        return
    ideal = info.flops.model_causal / peak * PS_PER_S
    mean, slowest = clocks(info)
    parts = {"ideal": ideal, "clock": ideal * (1 / mean - 1), "slowest": ideal * (1 / slowest - 1 / mean)}
    for name, ps in parts.items():
        found[name] = round(ps)
        found["products"] -= found[name]


def clocks(info: RunInfo) -> tuple[float, float]:
    """Clock under load of the mean and the slowest GPU, relative to the rated one."""
    gpu: Mapping[str, Any] = info.cluster.get("gpu", {})
    held = gpu.get("sustained")
    if not held or gpu.get("conditions") == "cool":
        return 1.0, 1.0
    from simcore.hardware.sustained import Sustained

    keeps = Sustained(clock=held["clock"], fp8=held["fp8"], spread=held["spread"])
    return keeps.clock, keeps.slowest_clock(info.workload.world_size)


def _claimed(ops: TimedOps, taken: Intervals | None) -> tuple[IntArray, IntArray]:
    """Of the ``ops``, in their order: time that is theirs alone, and what sharing adds, ps.

    A moment of several goes to the one that began first; one that is ``taken`` already to none.  Both add up
    to the time that they cover.
    """
    theirs = claimed(ops.start, ops.end, taken)
    length = ops.end - ops.start
    share = np.divide(length - ops.alone, length, out=np.zeros(len(length)), where=length > 0)
    contended = np.rint(theirs * share).astype(np.int64)
    return theirs - contended, contended


def claimed(start: IntArray, end: IntArray, taken: Intervals | None = None) -> IntArray:
    """Of ops, in their order: time that is counted as theirs, ps.

    A moment of several goes to the one that began first; one that is ``taken`` already to none.
    """
    order = None if (start[1:] >= start[:-1]).all() else np.argsort(start, kind="stable")
    first, last = (start, end) if order is None else (start[order], end[order])
    begin = first
    if (first[1:] < last[:-1]).any():
        begin = first.copy()
        begin[1:] = np.minimum(np.maximum(first[1:], np.maximum.accumulate(last[:-1])), last[1:])
    found = last - begin
    if taken is not None:
        found -= taken.covered_until(last) - taken.covered_until(begin)
    if order is None:
        return found
    theirs = np.empty_like(found)
    theirs[order] = found
    return theirs


def _kernels(rows: RankRows, compute: Places, info: RunInfo) -> list[tuple[str, Places]]:
    """Parts of kernels of the model and others, with places among the ``compute`` rows."""
    model, again = rows.are("phase", _MODEL_PHASES)[compute], rows.are("phase", ("recompute",))[compute]
    products = model & _by_products(rows, compute, info)
    masks = (products, model & ~products, again, ~model & ~again)
    names = ("products", "memory_bound", "recompute", "optimizer")
    return [(name, np.flatnonzero(mask)) for name, mask in zip(names, masks, strict=True)]


def _by_axis(rows: RankRows, communication: Places) -> list[tuple[str, Places]]:
    """Parts that the ``communication`` rows belong to, with places among them."""
    axes, axis = communication_by_axis(rows, communication)
    return [(name, np.flatnonzero(axis == number)) for number, name in enumerate(axes)]


def _by_products(rows: RankRows, compute: Places, info: RunInfo) -> BoolArray:
    """Kernels whose flops take longer at the peak than their bytes at the memory's bandwidth."""
    gpu: Mapping[str, Any] = info.cluster.get("gpu", {})
    flops, num_bytes = rows.ints("flops")[compute], rows.ints("bytes")[compute]
    bandwidth = float(gpu.get("hbm_bytes_per_s") or 0.0)
    if not info.peak_flops_per_s or not bandwidth:
        return flops > 0
    bound: BoolArray = flops / info.peak_flops_per_s > num_bytes / bandwidth
    return bound


def communication_by_axis(rows: RankRows, communication: Places) -> tuple[list[str], IntArray]:
    """Parts that the ``communication`` rows belong to, and which one each belongs to."""
    apart = ToldApart.of(rows, ("group", "phase", "kind"), communication)
    axes = [axis_of(*key) for key in apart.keys]
    names = list(dict.fromkeys(axes))
    return names, np.array([names.index(axis) for axis in axes], dtype=np.int64)[apart.number]
