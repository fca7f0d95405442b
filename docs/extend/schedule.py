"""A schedule in one file: eager 1F1B (Zhuang et al., arXiv 2211.05322), which warms up twice as far as 1F1B.

Forwards run ahead, so that messages between stages are under way while something is computed; a stage holds
more microbatches for that.  In the package the file would lie in simcore/graph/schedules/kinds/.
"""

from simcore.errors import InputError
from simcore.graph.schedules import Action, Schedule, grid
from simcore.graph.schedules.kind import ScheduleKind, register
from simcore.hardware import load_cluster
from simcore.run import run
from workloads.jobs import complete


def eager_one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """2 (p - s) - 1 forwards on stage s of p, then a backward and a forward in turn."""
    if num_microbatches < 2 * num_stages:
        raise InputError(f"eager_1f1b: {num_microbatches} microbatches; nearest: {2 * num_stages}")
    forward = [Action("F", microbatch) for microbatch in range(num_microbatches)]
    backward = [action._replace(kind="B") for action in forward]
    schedule = []
    for stage in range(num_stages):
        ahead = 2 * (num_stages - stage) - 1
        turns = [one for pair in zip(backward, forward[ahead:], strict=False) for one in pair]
        schedule.append([*forward[:ahead], *turns, *backward[num_microbatches - ahead :]])
    return schedule


register(
    ScheduleKind(
        "eager_1f1b",
        lambda stages, microbatches, *_: eager_one_f_one_b(stages, microbatches),
        num_chunks=1,
        known_as=r"eager[ -]?1f1b",
    )
)


if __name__ == "__main__":
    steps, peaks = {}, {}
    for name in ("1f1b", "eager_1f1b"):
        said = {
            "model": {"layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000},
            "parallel": {"pp": 4, "schedule": name},
            "training": {"seq": 4096, "global_batch": 8, "overlap_p2p": True},
        }
        job = complete(said, name, num_gpus=4, generation="hopper")
        graph = job.graph()
        slow = {"cluster.placement": "round_robin", "cluster.nic_bytes_per_s": "5GB/s"}  # a node for each
        steps[name] = run(graph, load_cluster("h100-32", {**job.gpu, **slow})).step_s
        peaks[name] = max(program.memory.peak for program in graph.programs)
        print(f"{name}: {steps[name] * 1e3:.1f} ms, {peaks[name] / 2**30:.1f} GiB")
    print(grid(eager_one_f_one_b(4, 8)))
    assert steps["eager_1f1b"] < steps["1f1b"] and peaks["eager_1f1b"] > peaks["1f1b"]
