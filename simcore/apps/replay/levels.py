"""Levels of a replay: how much of a recording is predicted again.

``recorded``: every duration is the recorded one.  ``communication``: collectives whose sizes and groups are
recorded run on a simulated network, and share the GPUs with kernels.  ``shapes``: kernels whose framework op
and input shapes are recorded are priced anew too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.apps.replay.alone import SharedGpu
from simcore.apps.replay.play import Replay, play, replay_of
from simcore.apps.replay.shapes import price_shapes
from simcore.apps.replay.standins import StagedJob, stage
from simcore.cost import CostModel, Demands
from simcore.engine.variants import Variants
from simcore.errors import InputError, nearest
from simcore.graph import Graph, OpKind, OpTable
from simcore.graph.ops import IntArray
from simcore.hardware import ClusterSpec, known_clusters, load_cluster, named_board
from simcore.hardware.specs import GpuSpec
from simcore.interference import LearnedInterference
from simcore.run import Setup, run
from workloads.imports import ImportedJob

LEVELS = ("recorded", "communication", "shapes")

_MANY_SMS = 1 << 20
#: Waits for ranks that were not recorded are named from this share of the steps on.
LEFT_OUT = 0.05


def play_level(
    job: ImportedJob,
    level: str = "recorded",
    cluster: str | None = None,
    learned: LearnedInterference | None = None,
    *,
    force: bool = False,
) -> Replay:
    """Replay ``job`` at a level, on ``cluster`` (default: the profile of the recorded GPU).

    ``learned`` says how communication slows kernels, instead of what they share.  With ``force`` the cluster
    may have numbers that no hardware has.

    Errors: InputError for an unknown level or cluster, or a GPU that has no profile; DeadlockError when the
    imported graph hangs.
    """
    if level not in LEVELS:
        raise InputError(f"unknown level {level!r}{nearest(level, LEVELS)}")
    if level == "recorded":
        if cluster is not None:
            raise InputError(
                "--cluster needs --level communication or shapes: durations are the recorded ones"
            )
        return play(job)
    staged = stage(job)
    spec = recorded_cluster(job, cluster, staged.graph.world_size, force=force)
    row_of = _rows(job, staged)
    shapes = price_shapes(job, row_of, spec.gpu, _recorded_gpu(job, spec)) if level == "shapes" else None
    predicted = (shapes.rows, shapes.demands) if shapes is not None else None
    simulated = [staged.graph.ops.recorded_ps[row] < 0 for row in row_of]
    shared = SharedGpu(job, row_of, simulated, spec.gpu, predicted)
    cost = EditedKernels(shared, job, row_of, staged.graph)
    # The host's times and copies are recorded ones; a stand-in waits in all its groups at once.
    gpu = replace(
        spec.gpu, launch_overhead_s=0.0, launch_latency_s=0.0, copy_engines=len(job.ranks[0].recorded)
    )
    is_absent = np.ones(staged.graph.world_size, dtype=np.int64)
    is_absent[list(staged.rank_of)] = 0
    played_on = replace(spec, gpu=gpu)
    variants = Variants((gpu, replace(gpu, num_sms=_MANY_SMS)), (cost, cost), is_absent)
    result = run(
        staged.graph, played_on, Setup(fold=False, learned=learned), cost=cost, variants=variants
    ).result
    total = sum(int((r.recorded.end_ps - r.recorded.start_ps).sum()) for r in job.ranks)
    notes = _notes(staged, spec)
    if learned is not None:
        covered = learned.covers(gpu.num_sms)
        notes += (
            f"communication slows kernels as learned from {learned.num_rows} recorded ones"
            if covered
            else f"nothing was learned of GPUs with {gpu.num_sms} SMs: kernels share SMs and HBM instead",
        )
    origins = {"recorded": 1.0}
    if shapes is not None:
        notes += shapes.notes
        origins = {"fitted": shapes.predicted_ps / total, "recorded": 1 - shapes.predicted_ps / total}
    replay = replay_of(
        job, staged.graph, played_on, "fluid", result, staged.rank_of, notes=notes, origins=origins
    )
    return replace(replay, notes=notes + _left_out(replay, staged))


class EditedKernels:
    """Prices kernels as ``recorded`` does, and those that edits made longer or shorter in proportion."""

    def __init__(self, recorded: CostModel, job: ImportedJob, row_of: list[IntArray], graph: Graph) -> None:
        self._recorded = recorded
        self._before = graph.ops.recorded_ps.copy()
        for rank, row in zip(job.ranks, row_of, strict=True):
            computes = graph.ops.kind[row] == OpKind.COMPUTE
            length = rank.recorded.end_ps - rank.recorded.start_ps
            self._before[row[computes]] = length[computes]
        self._factor = np.where(self._before > 0, graph.ops.recorded_ps / np.maximum(1, self._before), 1.0)

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """Demand of every op, edits included."""
        if (self._factor == 1.0).all():
            return self._recorded.demands(ops, used)
        return self._recorded.demands(replace(ops, recorded_ps=self._before), used).scaled(self._factor)


def _left_out(replay: Replay, staged: StagedJob) -> tuple[str, ...]:
    """That waits for ranks which were not recorded make much of the recorded steps."""
    steps = replay.steps() if staged.absent else []
    span = sum(step.recorded.span for step in steps)
    waits = sum(step.recorded.exposed_communication - step.replayed.exposed_communication for step in steps)
    if not span or waits <= LEFT_OUT * span:
        return ()
    return (
        f"{waits / span:.0%} of the recorded steps were waits in communication that are left out, as ranks"
        " that were not recorded are assumed to come in time: recordings of all ranks show them",
    )


def _rows(job: ImportedJob, staged: StagedJob) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Op-table row of each recorded op, by rank of the import."""
    graph = staged.graph
    programs = [graph.programs[graph.program_of_rank[number]] for number in staged.rank_of]
    return [
        graph.flat_ops(program).row[rank.flat].astype(np.int64)
        for program, rank in zip(programs, job.ranks, strict=True)
    ]


def recorded_cluster(
    job: ImportedJob, name: str | None, world_size: int, *, force: bool = False
) -> ClusterSpec:
    """The named cluster, or one of the recorded GPUs that is large enough.

    Errors: InputError for an unknown or too small cluster, or a GPU that has no profile.
    """
    if name is not None:
        spec = load_cluster(name, force=force)
        if spec.num_gpus < world_size:
            raise InputError(
                f"the recorded job has {world_size} ranks, cluster {spec.name!r} {spec.num_gpus} GPUs"
            )
        return spec
    gpu = next((rank.gpu for rank in job.ranks if rank.gpu), "")
    board = named_board(gpu)
    if board is None or not board.cluster:
        what = f"there is no profile of the recorded GPU {gpu!r}" if gpu else "the trace names no GPU"
        raise InputError(
            f"{what}: name a --cluster (families: {known_clusters()}; h100-64 is 64 GPUs; or a TOML file)"
        )
    whole = load_cluster(board.cluster)
    each = whole.gpus_per_domain if world_size > whole.gpus_per_domain else whole.gpus_per_node
    return load_cluster(f"{board.cluster}-{-(-world_size // each) * each}", {})


def _recorded_gpu(job: ImportedJob, played_on: ClusterSpec) -> GpuSpec | None:
    """The GPU that recorded ``job``, ``played_on`` where no trace names one; None without a profile."""
    if not any(rank.gpu for rank in job.ranks):
        return played_on.gpu
    try:
        return recorded_cluster(job, None, 1).gpu
    except InputError:
        return None


def _notes(staged: StagedJob, cluster: ClusterSpec) -> tuple[str, ...]:
    total = staged.simulated_ps + staged.kept_ps
    notes = [f"collectives on {cluster.name}, as NCCL {cluster.nccl_version} runs them"]
    if not total:
        return ("no communication is recorded",)
    if staged.kept_ps:
        notes.append(
            f"{staged.kept_ps / total:.0%} of the communication time lasts as recorded: size or group unknown"
        )
    if staged.absent:
        notes.append(f"{len(staged.absent)} ranks were not recorded: assumed to arrive with those that were")
    notes.append("kernels beside communication start from the time of the same kernels alone, where recorded")
    return tuple(notes)
