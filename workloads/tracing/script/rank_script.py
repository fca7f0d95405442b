"""Runs in a worker process: run a script as one rank after another and record one step of each."""

from __future__ import annotations

import gc
import io
import runpy
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simcore.graph.graph import MemoryProfile
from workloads.tracing.expert_load import parse_load
from workloads.tracing.rank_run import RankTrace
from workloads.tracing.recording import DTYPE, FLOPS, Recording
from workloads.tracing.script.framework_imports import Import, import_all
from workloads.tracing.script.holders import Holder, largest_holders, peak_by_phase
from workloads.tracing.script.job import ScriptJob
from workloads.tracing.script.value_policy import ValueAsked, ValuePolicy
from workloads.tracing.templates import cut

_WATCH_S = 2.0
_fake_mode: Any = None


@dataclass(frozen=True)
class ScriptTrace:
    """One step of one rank.  ``asked``: values that the run did not have, with how often; ``unused``: answers
    that no site asked for; ``holders``: what is held when memory is highest, largest first;
    ``peaks``: highest bytes while each phase runs; ``num_parameters``: elements of this rank's parameters.
    """

    trace: RankTrace
    asked: tuple[tuple[ValueAsked, int], ...]
    unused: tuple[str, ...]
    holders: tuple[Holder, ...]
    peaks: tuple[tuple[str, int], ...]
    num_parameters: int
    precision: str


def prepare(tier: str, cache: str, imports: tuple[Import, ...] = ()) -> None:
    """Install the fake device and the patches in this process, of which every rank is a fork, and import
    frameworks.
    """
    global _fake_mode
    warnings.filterwarnings("ignore")
    import logging

    logging.disable(logging.WARNING)
    from workloads.tracing import fake_device

    fake_device.install(tier, Path(cache))
    from workloads.tracing import fake_cuda, fake_dist, fake_values, storages, triton_stand_in
    from workloads.tracing.script import (
        deepspeed_shims,
        outside_world,
        parallel_patches,
        pipelines,
        step_marks,
    )
    from workloads.tracing.script.after_import import after_import

    fake_cuda.install()
    fake_values.install()
    fake_dist.install()
    storages.watch_resizes()
    parallel_patches.install()
    outside_world.install()
    pipelines.install()
    step_marks.install()
    after_import({"deepspeed": deepspeed_shims.install, "triton": triton_stand_in.take_over})
    _fake_mode = fake_values.make_fake_mode()
    with _fake_mode:  # modules keep tensors that they make when they are imported
        import_all(imports)


def run_script(job: ScriptJob, rank: int, mail: Path | None = None) -> ScriptTrace:
    """Record step ``job.step`` of ``rank``; ``mail``: the folder of what ranks send each other.

    ScriptError when the script fails, hangs, or ends before that step is complete.
    """
    from workloads.tracing import fake_dist, fake_values, object_exchange, visible_devices
    from workloads.tracing.recorder import Recorder
    from workloads.tracing.script import failures
    from workloads.tracing.script.group_families import FamilyNames
    from workloads.tracing.script.step_marks import StepDone, StepMarks

    local_rank = rank % job.local_world_size
    visible_devices.enter_node(job.local_world_size)
    fake_dist.name_family = FamilyNames()
    fake_dist.enter_world(
        rank, job.world_size, job.local_world_size, local_rank % visible_devices.MAX_INDEX, init=False
    )
    policy = ValuePolicy(job.values)
    recorder = Recorder(_symbol_of, whole_life=True, load=parse_load(job.load))
    if mail is not None:
        object_exchange.mailbox = object_exchange.Mailbox(mail, _symbol_of, partial(_note_life, recorder))
    start = _StepStart()
    output = io.StringIO()
    ended_by: BaseException | None = None
    fake_values.ask = policy
    gc.disable()  # or the moment of a collection would show in storage lifetimes
    try:
        with _fake_mode, recorder, StepMarks(recorder, job.step, start) as steps, _watched(job, recorder):
            try:
                with redirect_stdout(output), redirect_stderr(output):
                    _execute(job)
            except StepDone:
                pass
            except (Exception, SystemExit) as error:
                ended_by = error
        recorded = steps.step == job.step and bool(recorder.result.ops) and not recorder.recording
        if ended_by is not None and not isinstance(ended_by, SystemExit):
            module = recorder.labels.current_module
            raise failures.explain(ended_by, rank, module, output.getvalue().splitlines()) from None
        if not recorded:
            raise failures.ended_early(ended_by, job, rank, steps, output.getvalue().splitlines())
    finally:
        recorder.recording = False
        gc.enable()
    return _result(job, rank, recorder, policy, start)


def _symbol_of(group: Any) -> str:
    from workloads.tracing import fake_dist

    return fake_dist.symbols.get(group.group_name, "world")


def _note_life(recorder: Any) -> None:
    """A rank that waits for a message does not hang: whether it will come is known elsewhere."""
    recorder.num_calls += 1


class _StepStart:
    """Called when the recorded step begins: what lives through it."""

    def __init__(self) -> None:
        self.memory = MemoryProfile()
        self.live_bytes = 0
        self.num_parameters = 0

    def __call__(self, steps: Any) -> None:
        from workloads.tracing.script.static_memory import measure

        gc.collect()
        self.memory, self.num_parameters = measure(
            list(steps.roots.values()), list(steps.optimizers.values())
        )
        self.live_bytes = steps.recorder.live_bytes


def _execute(job: ScriptJob) -> None:
    """The script as ``__main__``, with the arguments and import path that ``python script.py`` gives it."""
    sys.argv = [str(job.script), *job.arguments]
    sys.path.insert(0, str(job.script.resolve().parent))
    if job.setup is not None:
        runpy.run_path(str(job.setup), run_name="simcore_setup")
    runpy.run_path(str(job.script), run_name="__main__")


@contextmanager
def _watched(job: ScriptJob, recorder: Any) -> Iterator[None]:
    """ScriptHangError inside the script when no operation is dispatched for ``job.hang_s``."""
    from workloads.tracing.script.failures import ScriptHangError

    seen, quiet = -1, 0.0

    def look(*_: object) -> None:
        nonlocal seen, quiet
        quiet = quiet + _WATCH_S if recorder.num_calls == seen else 0.0
        seen = recorder.num_calls
        if quiet >= job.hang_s:
            quiet = 0.0
            raise ScriptHangError(f"no tensor operation for {job.hang_s:g} s")

    outer = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _WATCH_S, _WATCH_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)


def _precision(recording: Recording) -> str:
    """The dtype in which most of the step's operations are computed."""
    flops = Counter[str]()
    for op in recording.ops:
        flops[str(op.columns[DTYPE])] += int(op.columns[FLOPS])
    return max(flops, key=lambda dtype: flops[dtype], default="")


def _result(job: ScriptJob, rank: int, recorder: Any, policy: ValuePolicy, start: _StepStart) -> ScriptTrace:
    import torch

    from workloads.tracing import fake_dist

    recording = recorder.result
    program = cut(recording)
    held = start.live_bytes - recording.freed_before
    # Gradients are what lives at the start and is neither parameter nor optimizer state: with them DDP's
    # buckets, for which a memory profile has no place of their own.
    kept = start.memory.parameters + start.memory.optimizer_states
    memory = replace(start.memory, gradients=max(0, held - kept))
    microbatches = len({segment.microbatch for segment in recording.segments if segment.kind == "bwd"})
    trace = RankTrace(
        rank=rank,
        stage=0,
        num_microbatches=max(1, microbatches),
        program=program,
        groups=recording.groups,
        families=tuple(dict.fromkeys(fake_dist.requested_groups)),
        layer_offset=(0,) * (1 + max((segment.chunk for segment in recording.segments), default=0)),
        memory=memory,
        versions={"torch": torch.__version__},
    )
    return ScriptTrace(
        trace,
        tuple(sorted(policy.asked.items(), key=lambda item: item[0].site)),
        tuple(site for site, _ in job.values if site not in policy.used),
        largest_holders(recording, memory),
        tuple(peak_by_phase(recording, held).items()),
        start.num_parameters,
        _precision(recording),
    )
