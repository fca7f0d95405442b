"""What was measured of a run: by its log, or by recordings of its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from simcore.errors import InputError
from simcore.outside import there
from simcore.records import dataclass
from simcore.timeline import RunInfo
from simcore.units import GIB, PS_PER_S, format_time
from workloads.imports.logs.training import SLOW, LoggedStep, TrainingLog, is_training_log, read_training_log

_CALLED = {
    "megatron": "Megatron-LM", "torchtitan": "torchtitan", "deepspeed": "DeepSpeed", "nemo": "NeMo",
    "trainer": "Hugging Face's Trainer",
}  # fmt: skip
#: By how much a framework's count of flops may be off ours: it counts other small products.
_ALIKE = 0.1


@dataclass(frozen=True)
class MeasuredStep:
    """A step's median of a log, or the mean of a recording's steps; ``lines`` say what it rests on.

    ``lost_s``: what steps that are slow for reasons of their own add to the mean; ``doubts``: where what was
    measured and the job that was described do not agree.
    """

    step_s: float
    lines: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    lost_s: float = 0.0
    memory_bytes: int = 0
    log: TrainingLog | None = None


def logs_of(paths: Sequence[Path]) -> TrainingLog | None:
    """The log, if that is what is given; None for recordings.  InputError for several, or for both."""
    for path in paths:
        if not there(path) and not there(path, folder=True):
            raise InputError(f"{path}: no such file")
    logs = [path for path in paths if path.is_file() and is_training_log(path)]
    if not logs:
        return None
    if len(paths) > 1:
        raise InputError("one log at a time, or recordings of one run: what is given is more")
    return read_training_log(logs[0])


def launch_of_log(log: TrainingLog | None) -> tuple[str, str]:
    """The framework and the file that tells its launch.  InputError where none does: the job must be said."""
    from workloads.jobs.launch import tells_launch

    if log is None or not tells_launch(log.framework, Path(log.path)):
        raise InputError(
            f"which job ran? {'The log' if log else 'A recording'} does not say: --job WORKLOAD (as"
            " run_sim.py takes it), --from-megatron or --from-torchtitan"
        )
    return log.framework, log.path


def measured_by_log(log: TrainingLog, info: RunInfo) -> MeasuredStep:
    """A log's step, where need be from its throughput and the job's tokens.

    InputError where the log's steps are of another batch than the job's, or do not say how long they take.
    """
    job = info.workload
    batch = log.typical("batch")
    replicas = job.dims.get("dp", 1) * job.num_microbatches * job.micro_batch_size
    if batch is not None and replicas and batch != replicas:
        raise InputError(
            f"{log.path}: its steps have a global batch of {batch:,.0f}, the job one of {replicas:,}:"
            f" --set training.global_batch={batch:.0f}"
        )
    times = [step_s for step in log.steady if (step_s := _step_s(step, info)) is not None]
    if not times:
        raise InputError(f"{log.path}: no line says how long a step takes, or how many tokens a second")
    times.sort()
    middle = times[len(times) // 2] if len(times) % 2 else sum(times[len(times) // 2 - 1 :][:2]) / 2
    slow = [one for one in times if one >= SLOW * middle]
    lost = sum(one - middle for one in slow) / len(times)
    lines = [
        f"{log.path}: {_CALLED[log.framework]}, {len(log.steps)} steps, of which {len(times)} count",
        f"step {format_time(middle * PS_PER_S)} (median; from {format_time(times[0] * PS_PER_S)} to"
        f" {format_time(times[-1] * PS_PER_S)})",
    ]
    memory = log.memory.get("reserved") or log.memory.get("allocated", 0)
    return MeasuredStep(middle, tuple(lines), tuple(_doubts(log, info, middle)), lost, memory, log)


def _step_s(step: LoggedStep, info: RunInfo) -> float | None:
    """Seconds of a step: as it is said, else from what it says of throughput."""
    job = info.workload
    if step.step_s is not None or not job.tokens_per_step:
        return step.step_s
    if step.samples_per_s is not None and job.seq_len:
        return job.tokens_per_step / job.seq_len / step.samples_per_s
    if step.tokens_per_s is not None:
        return job.tokens_per_step / step.tokens_per_s / job.world_size
    return None


def _doubts(log: TrainingLog, info: RunInfo, step_s: float) -> Iterator[str]:
    """Whether the log's flops are those of the job."""
    tflops = log.typical("tflops")
    if tflops is None or not info.flops.model:
        return
    counted = tflops * 1e12 * step_s * info.workload.world_size
    ours = (info.flops.model_causal, info.flops.model, info.flops.executed)
    if not min(ours) * (1 - _ALIKE) < counted < max(ours) * (1 + _ALIKE):
        yield (
            f"the log counts {counted:.3g} flops a step ({tflops:,.0f} TFLOP/s per GPU), the job that was"
            f" described {info.flops.model:.3g}: is it the same model, batch and number of GPUs?"
        )


def memory_line(measured: MeasuredStep, info: RunInfo) -> str:
    """Measured memory beside what was predicted; "" where the log does not say."""
    if not measured.memory_bytes or not info.memory:
        return ""
    fullest = max(info.memory, key=lambda stage: stage.peak)
    kind = "reserved" if measured.log is not None and "reserved" in measured.log.memory else "allocated"
    return (
        f"memory: {measured.memory_bytes / GIB:.1f} GiB {kind} at most, predicted"
        f" {fullest.peak / GIB:.1f} of {fullest.capacity / GIB:.1f} GiB (fullest stage)"
    )
