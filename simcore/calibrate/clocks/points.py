"""A published run simulated with kernels of different classes at different clocks, and what work it did."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from simcore.calibrate.runs import case_key, simulated_microbatches
from simcore.calibrate.runs_score import Progress, case_weight
from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.cost.classify import classify
from simcore.cost.kernel import FORMULAS, Context, Kernel, Work
from simcore.engine import simulate
from simcore.engine.result import SimulationResult
from simcore.errors import SimcoreError
from simcore.graph import Graph
from simcore.graph.ops import OpKind
from simcore.hardware import GpuSpec, Topology, load_cluster, load_gpu
from workloads.parallel.generate import generate
from workloads.published import Case, board_physics

PRODUCTS: Final = ("gemm", "bgemm", "conv")
ATTENTION: Final = ("attention_fwd", "attention_bwd")

#: Clocks of (products, attention, other kernels) that are simulated, relative to the rated one.
BASE: Final = 0.85
POINTS: Final[dict[str, tuple[float, float, float]]] = {
    "base": (BASE, BASE, BASE), "slow products": (0.72, BASE, BASE), "fast products": (1.0, BASE, BASE),
    "fast attention": (BASE, 1.0, BASE), "fast others": (BASE, BASE, 1.0),
}  # fmt: skip

#: The board whose measured rates a die's other boards would have without their own power limits.
REFERENCES: Final = {"h100": "h100-sxm", "a100": "a100-80"}


@dataclass(frozen=True)
class Done:
    """Work of a step at ``BASE``, mean over ranks: flop, bytes as in ``Demands``, seconds of kernels."""

    products: float
    fp8_products: float
    hbm_bytes: float
    products_s: float
    attention_s: float
    others_s: float


@dataclass(frozen=True)
class Measured:
    """Seconds per step at each of ``POINTS``, and the work of a step."""

    seconds: dict[str, float]
    done: Done


class ClassClocks(RooflineCost):
    """Kernels priced at the clock of their class: (products, attention, others)."""

    def __init__(self, gpu: GpuSpec, fp32_math: str, clocks: tuple[float, float, float]) -> None:
        super().__init__(gpu, fp32_math)
        self._of_class: tuple[Context, ...] = tuple(
            replace(self._context, gpu=_at_clock(gpu, clock)) for clock in clocks
        )

    def work(self, kernel: Kernel) -> Work:
        """As the formula of the kernel's class has it at that class's clock."""
        name = kernel.op_class or classify(kernel.name)
        index = 0 if name in PRODUCTS else 1 if name in ATTENTION else 2
        return FORMULAS[name](kernel, self._of_class[index])


def _at_clock(gpu: GpuSpec, clock: float) -> GpuSpec:
    peaks = {mode: peak * clock for mode, peak in gpu.peak_flops.items()}
    return replace(gpu, boost_clock_hz=gpu.boost_clock_hz * clock, peak_flops=peaks)


def measure(case: Case, *, like_reference: bool) -> Measured:
    """Simulate ``case`` at all points, with the rate of fp8 and the slowest GPU as in use.

    ``like_reference``: with the share of peak that large products reach on the die's reference board.
    """
    few, more, count = simulated_microbatches(case)
    last = _measure(case, more, like_reference)
    if count <= more:
        return last
    first, steps = _measure(case, few, like_reference), (count - more) / (more - few)

    def line(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
        return {key: b[key] + steps * (b[key] - a[key]) for key in b}

    return Measured(line(first.seconds, last.seconds), Done(**line(asdict(first.done), asdict(last.done))))


def _measure(case: Case, microbatches: int, like_reference: bool) -> Measured:
    batch = microbatches * case.training.micro_batch * case.parallel.dp
    training = case.training.model_copy(update={"global_batch": batch})
    graph = generate(case.model, case.parallel, training, case.software)
    physics = replace(board_physics()[case.board], clock=1.0)
    topology = Topology(load_cluster(case.cluster, case.overrides))
    planner, gpu = NcclPlanner(topology), topology.cluster.gpu
    peaks = {mode: peak * (physics.fp8 if mode == "fp8" else 1) for mode, peak in gpu.peak_flops.items()}
    gpu = replace(gpu, peak_flops=peaks)
    if like_reference:
        gpu = replace(gpu, gemm_efficiency=load_gpu(REFERENCES[case.board]).gemm_efficiency)
    slowest = physics.slowest_clock(case.parallel.world_size)
    fp32_math = "tf32" if training.precision == "tf32" else "ieee"
    seconds = {}
    for name, (products, attention, others) in POINTS.items():
        clocks = (products * slowest, attention * slowest, others * slowest)
        cost = ClassClocks(gpu, fp32_math, clocks)
        result = simulate(graph, topology, cost, planner)
        seconds[name] = result.step_ps / 1e12
        if name == "base":
            done = _done(graph, cost, result)
    return Measured(seconds, done)


def _done(graph: Graph, cost: RooflineCost, result: SimulationResult) -> Done:
    ops, demands = graph.ops, cost.demands(graph.ops)
    alone_s = demands.alone_ps(cost.gpu.hbm_bytes_per_s) / 1e12
    compute = ops.kind == int(OpKind.COMPUTE)
    classes = np.array(ops.op_class.values)[ops.op_class.codes]
    products = compute & np.isin(classes, PRODUCTS)
    attention = compute & np.isin(classes, ATTENTION)
    fp8 = np.array([name.startswith("float8") for name in ops.dtype.values])[ops.dtype.codes]
    columns = (
        ops.flops * (products & ~fp8), ops.flops * (products & fp8), demands.hbm_bytes * compute,
        alone_s * products, alone_s * attention, alone_s * (compute & ~products & ~attention),
    )  # fmt: skip
    sums = np.zeros(len(columns))
    for number, rank in enumerate(result.representatives):
        program = graph.programs[int(graph.program_of_rank[rank])]
        times = np.bincount(graph.flat_ops(program).row, minlength=len(ops))
        sums += np.sum(result.class_of == number) * np.array([float(times @ column) for column in columns])
    return Done(*(sums / len(result.class_of)).tolist())


Key = tuple[str, bool]


def measure_all(cases: Mapping[str, Case], cache: Path) -> dict[Key, Measured]:
    """Every case by its key, with its own board's rate of products and the reference's; none if refused.

    ``cache``: file of JSON lines that results are kept in; delete it when models have changed.
    """
    found: dict[Key, Measured] = {}
    for line in cache.read_text(encoding="utf-8").splitlines() if cache.exists() else ():
        entry = json.loads(line)
        found[entry["key"], entry["like_reference"]] = Measured(entry["seconds"], Done(**entry["done"]))
    order = sorted(cases.items(), key=lambda item: -case_weight(item[1]))
    jobs = [(key, case, like) for key, case in order for like in _wanted(case) if (key, like) not in found]
    progress = Progress("clocks")
    with multiprocessing.get_context("fork").Pool(2) as pool, cache.open("a", encoding="utf-8") as file:
        for number, (key, like, result) in enumerate(pool.imap_unordered(_job, jobs), start=1):
            progress(number, len(jobs))
            if result is None:
                continue
            found[key, like] = result
            entry = {
                "key": key,
                "like_reference": like,
                "seconds": result.seconds,
                "done": asdict(result.done),
            }
            file.write(json.dumps(entry) + "\n")
            file.flush()
    return found


def _wanted(case: Case) -> Sequence[bool]:
    own = load_cluster(case.cluster, case.overrides).gpu.gemm_efficiency
    same = own == load_gpu(REFERENCES[case.board]).gemm_efficiency
    return (False,) if same else (False, True)


def _job(job: tuple[str, Case, bool]) -> tuple[str, bool, Measured | None]:
    key, case, like = job
    try:
        return key, like, measure(case, like_reference=like)
    except SimcoreError:
        return key, like, None


def key_of(case: Case) -> str:
    """Key of a case in :func:`measure_all`."""
    return case_key(case)
