"""Workloads without start times, played: durations that a file tells hold, others are priced on a cluster.

Chakra files of generators and of other simulators say what depends on what, not when it ran: there is no
recorded step beside which to show a replay.  They are simulated as a described job is, equal ranks once.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simcore.analysis import StepAnalysis, analyse
from simcore.apps.progress import StageTimer
from simcore.apps.run.loading import check_world
from simcore.apps.run.question import RunQuestion, digest, run_folder
from simcore.cost import ORIGINS, CostModel, Demands, RooflineCost
from simcore.engine import Answered
from simcore.graph import Graph, OpTable, graph_hash
from simcore.graph.kinds import is_priced
from simcore.hardware import DEFAULT_CLUSTER, ClusterSpec, GpuSpec, hardware_hash, load_cluster
from simcore.run import Setup, run
from simcore.timeline import RunFacts, RunInfo, write_tables
from simcore.timeline.facts import origin_shares
from simcore.units import PS_PER_S
from workloads.imports import ImportedJob

_MATH = "bf16"


@dataclasses.dataclass(frozen=True)
class Played:
    """A simulated workload: what ``run.json`` says of it, its analysis, and who answered for which ops."""

    info: RunInfo
    analysis: StepAnalysis
    answered: Answered
    wall_s: float


class NodeRoofline:
    """Prices as ``named`` does; kernels that say flops and bytes but no shapes by the GPU's two peaks.

    Names are those of whoever wrote the file and types are not told: nodes with flops are taken for products
    in bf16, which is what generators write them for.
    """

    def __init__(self, named: CostModel, gpu: GpuSpec) -> None:
        self._named = named
        self._gpu = gpu

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        """Demand of every op."""
        demands = self._named.demands(ops, used)
        rows = is_priced(ops.kind) & (ops.recorded_ps < 0) & (ops.flops > 0)
        rows &= ops.in_shapes.equals("") & ops.op_class.equals("")
        if used is not None:
            rows &= used
        seconds = ops.flops[rows] / self._gpu.peak(_MATH)
        demands.sm_ps[rows] = np.rint(seconds * PS_PER_S).astype(np.int64)
        demands.hbm_bytes[rows] = np.rint(
            (ops.bytes_read[rows] + ops.bytes_written[rows]) / self._gpu.hbm_efficiency
        ).astype(np.int64)
        demands.fixed_ps[rows] = 0
        demands.blocks[rows] = 0
        demands.origin[rows] = ORIGINS.index("roofline")
        return demands


def play_untimed(
    job: ImportedJob,
    cluster: str | None,
    out: Path | None,
    stages: StageTimer,
    asked: str = "",
    *,
    force: bool = False,
) -> Played:
    """Simulate ``job`` on ``cluster`` (default: enough GPUs of the default family), into ``out`` if given.

    Errors: InputError for an unknown or too small cluster; DeadlockError when the graph hangs.
    """
    began = time.perf_counter()
    graph = job.graph
    said: list[str] = []
    spec = _cluster(cluster, graph)
    if cluster is None:
        said.append(f"played on {spec.name}: name another --cluster")
    gpu = spec.gpu.under_load(graph.world_size)
    cost = NodeRoofline(RooflineCost(gpu), gpu)
    with stages.stage("simulating"):
        result = run(graph, spec, Setup(), cost=cost).result
    demands = cost.demands(graph.ops)
    origins = origin_shares(graph, demands.alone_ps(gpu.hbm_bytes_per_s), demands.origin, ORIGINS)
    if origins.get("roofline"):
        said.append(
            "kernels without shapes: flops in bf16, or bytes, at the GPU's peaks, whichever takes longer"
        )
    hashes = {"graph": graph_hash(graph), "cluster": hardware_hash(spec)}
    question = RunQuestion(asked, digest(hashes))
    facts = RunFacts(
        cluster=dataclasses.asdict(spec), network="fluid", graph_hash=hashes["graph"], asked=asked,
        profile_hash=hashes["cluster"], question=question.key, memory=(),
        origins={k: v for k, v in origins.items() if v},
        assumptions=("a workload without start times: ops are those of its files", *said),
        warnings=tuple(job.report.doubts()),
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as place,
        run_folder(out or Path(place) / "run", question, force=force) as folder,
    ):
        timeline = write_tables(folder, graph, result, facts)
        analysis = analyse(timeline)
    return Played(timeline.info, analysis, result.answered, time.perf_counter() - began)


def _cluster(name: str | None, graph: Graph) -> ClusterSpec:
    if name is None:
        family, _, _ = DEFAULT_CLUSTER.rpartition("-")
        per_node = load_cluster(DEFAULT_CLUSTER, {}).gpus_per_node
        name = f"{family}-{-(-graph.world_size // per_node) * per_node}"
    spec = load_cluster(name, {})
    check_world(graph, spec)
    return spec
