"""An axis of parallelism in one file: workers that train apart and average their parameters (local SGD).

Each worker is a whole job of the other axes with samples of its own; after so many steps, here after each,
all take the mean of their parameters (arXiv 1805.09767; DiLoCo, arXiv 2311.08105).  In the package the file
would lie in workloads/parallel/axes/.
"""

from simcore.errors import InputError
from simcore.graph import verify
from simcore.hardware import load_cluster
from simcore.run import run
from workloads.jobs import complete
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, collective
from workloads.parallel.axis import Axis, register
from workloads.parallel.emit import OpWriter
from workloads.parallel.finish import local_numel
from workloads.parallel.job import Job
from workloads.parallel.spec import WHOLE_GRADIENTS, ParallelSpec, TrainingSpec


def _check(_: ModelSpec, parallel: ParallelSpec, training: TrainingSpec) -> None:
    if parallel.degree("workers") > 1 and training.sharding not in WHOLE_GRADIENTS:
        raise InputError(f"parallel.workers: training.sharding={training.sharding} has no whole parameters")


def _average(writer: OpWriter, job: Job, stage: int) -> None:
    """A mean of what the stage's ranks have updated, over the process group along the axis."""
    parameters = Tensor((local_numel(job, stage),), job.shard.dtype)
    mean = collective("all_reduce", parameters, "workers", module="average", reduce_op="avg")
    writer.kernels([mean], phase="optimizer")


register(Axis("workers", _check, splits_batch=True, end_of_step=_average))


if __name__ == "__main__":
    steps = {}
    for workers in (1, 2):
        said = {
            "model": {"layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000},
            "parallel": {"tp": 4, "pp": 2, "workers": workers},
            "training": {"seq": 4096, "global_batch": 8 * workers},
        }
        job = complete(said, "workers", num_gpus=8 * workers, generation="hopper")
        graph = job.graph()
        verify(graph)
        assert graph.world_size == 8 * workers and ("workers" in graph.groups) == (workers > 1)
        steps[workers] = run(graph, load_cluster("h100-16", job.gpu)).step_s
        print(f"{workers} workers: {steps[workers] * 1e3:.1f} ms, dims {graph.workload.dims}")
    assert steps[1] < steps[2] < 1.5 * steps[1]
