"""Runs in a worker process: run a script as one rank and record one step of it."""

from __future__ import annotations

import gc
import importlib
import io
import runpy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from workloads.tracing import kernels
from workloads.tracing.drive.framework_imports import Preparation
from workloads.tracing.drive.hang import watched
from workloads.tracing.drive.named_ranks import named_ranks
from workloads.tracing.drive.script_job import OtherStepsError, ScriptJob
from workloads.tracing.fake.expert_load import parse_load
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.compiled import keep_as_compiled, without_inner
from workloads.tracing.record.holders import largest_holders, peak_by_phase
from workloads.tracing.record.recording import DTYPE, FLOPS, GROUP, Recording, ValueAsked
from workloads.tracing.record.templates import cut
from workloads.tracing.sites import call_site, where_raised

_fake_mode: Any = None
#: Marks an exception that has been told of.
_SEEN = "_simcore_seen"


class ValuePolicy:
    """Default answers unless the user gave one for the site; ``asked`` counts what was asked."""

    def __init__(self, values: Sequence[tuple[str, float]] = ()) -> None:
        self._values = dict(values)
        self.asked: Counter[ValueAsked] = Counter()
        self.used: set[str] = set()

    def __call__(self, kind: str, tensor: Any, default: Any) -> Any:
        """The answer at the current call site."""
        answer, tell = self.answer(kind, tensor, default)
        tell()
        return answer

    def answer(self, kind: str, tensor: Any, default: Any) -> tuple[Any, Callable[[], None]]:
        """The answer at the current call site, and what notes that the program makes use of it."""
        from workloads.tracing.fake import host_values

        site = call_site()
        given = next((key for key in self._values if site == key or site.endswith("/" + key)), None)
        answer = default if given is None else self._values[given]
        rule = "" if given is not None else host_values.rule_of(kind, tensor)
        asked = ValueAsked(site, kind, float(answer), given is not None, rule)

        def tell() -> None:
            if given is not None:
                self.used.add(given)
            self.asked[asked] += 1

        return answer, tell

    def note(self, kind: str, rule: str = "", site: str = "") -> None:
        """At the current call site something else than a value is taken for granted: what other ranks give
        ("peers", by ``rule``), that an "evaluation" is part of a step, that something to
        download is "missing", that a call would be "refused", or that a "failure" at ``site`` was caught.
        """
        self.asked[ValueAsked(site or call_site(), kind, 0.0, False, rule)] += 1


def prepare(tier: str, cache: str, preparation: Preparation) -> None:
    """Install the fake device and the patches in this process, of which every rank is a fork, and import
    frameworks.
    """
    global _fake_mode
    warnings.filterwarnings("ignore")
    import logging

    logging.disable(logging.WARNING)
    # torch says itself of every rank at once what is raised anyway, where shapes do not fit.
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda _: False)
    from workloads.tracing.fake import device

    device.install(tier, Path(cache))
    from workloads.tracing.drive.framework_imports import after_import
    from workloads.tracing.fake import (
        cuda,
        host_values,
        nvml,
        object_exchange,
        outside_world,
        parallel_patches,
        parameters,
        process_groups,
        saved_files,
        shared_segments,
        shown_types,
        started_processes,
        storages,
        threads,
    )
    from workloads.tracing.record import bitsandbytes, deepspeed, megatron, step_marks, torch_parallel
    from workloads.tracing.stand_ins import (
        cpp_extension,
        cuda_source,
        finder,
        flex_attention,
        hub_kernels,
        jagged_tensors,
        older_torch,
        torchaudio_library,
        torchvision_ops,
        triton,
    )

    cuda.install()
    cuda_source.install()
    older_torch.install()
    host_values.install()
    shown_types.install()
    parameters.install()
    saved_files.install()
    process_groups.install()
    object_exchange.install()
    storages.watch_resizes()
    storages.show_as_of_device()
    parallel_patches.install()
    outside_world.install()
    shared_segments.install()
    started_processes.install()
    threads.install()
    torch_parallel.install()
    step_marks.install()
    after_import(
        {
            "bitsandbytes": bitsandbytes.install,
            "deepspeed": deepspeed.install,
            "torch.utils.cpp_extension": cpp_extension.install,
            "torchdata.stateful_dataloader.stateful_dataloader": outside_world.load_stateful,
            "kernels": hub_kernels.take_over,
            "pynvml": nvml.install,
            "triton": triton.take_over,
            "torch.nn.attention.flex_attention": flex_attention.install,
            "torch.nested._internal.nested_tensor": jagged_tensors.install,
            "torchaudio._extension.utils": torchaudio_library.tolerate,
            "torchvision._meta_registrations": torchvision_ops.count_boxes,
            "torchvision.extension": torchvision_ops.declare,
            "transformers.utils.import_utils": host_values.not_compiling,
        }
    )
    if not preparation.recipe:
        finder.install()
        after_import(megatron.actions())
    else:
        importlib.import_module(preparation.recipe).install()
    _fake_mode = host_values.make_fake_mode()
    preparation.enter()


def run_rank(job: ScriptJob, rank: int, mail: Path | None = None) -> RankTrace:
    """Record step ``job.step`` of ``rank``; ``mail``: the folder of what ranks send each other.

    ScriptError when the script fails, hangs, or ends before that step is complete; a recipe's errors are as
    they are.
    """
    from workloads.tracing.drive import doubts, failures
    from workloads.tracing.fake import (
        cuda,
        gone_files,
        host_values,
        object_exchange,
        peers,
        process_groups,
        saved_files,
        shared_segments,
        threads,
        visible_devices,
    )
    from workloads.tracing.fake.group_names import FamilyNames
    from workloads.tracing.record.op_log import HOST_STREAM
    from workloads.tracing.record.recorder import Recorder
    from workloads.tracing.record.step_marks import LaterOptimizer, StepDone, StepMarks
    from workloads.tracing.stand_ins import cpp_extension

    by_recipe = job.by_recipe
    local_rank = rank % job.local_world_size
    visible_devices.enter_node(job.local_world_size)
    process_groups.enter_world(
        rank, job.world_size, job.local_world_size, local_rank % visible_devices.MAX_INDEX
    )
    policy = ValuePolicy(job.values)
    recorder = Recorder(whole_life=not by_recipe, load=parse_load(job.load))
    steps = StepMarks(recorder, job.step, by_recipe=by_recipe, closing=job.closing)
    output = _Output()
    caught: list[str] = []
    ended_by: BaseException | None = None
    if not by_recipe:
        process_groups.name_family, host_values.ask = FamilyNames(), policy
        host_values.ask_later = policy.answer
        steps.on_evaluation = partial(policy.note, "evaluation")
        steps.on_failure = recorder.labels.on_failure = partial(_failed, policy, recorder, caught)
        recorder.communication.on_refused = partial(policy.note, "refused")
        recorder.communication.on_late = partial(policy.note, "late")
        saved_files.on_missing = cpp_extension.on_unseen = cuda.on_left_out = partial(policy.note, "missing")
        if mail is not None:
            object_exchange.mailbox = object_exchange.Mailbox(mail, partial(_note_life, recorder))
            peers.mailbox, peers.on_assumed = object_exchange.mailbox, partial(policy.note, "peers")
            saved_files.shelf = object_exchange.mailbox
            shared_segments.folder = gone_files.folder = mail
    threads.modes = (_fake_mode, recorder)
    gc.disable()  # or the moment of a collection would show in storage lifetimes
    try:
        with _fake_mode, recorder, steps, watched(job.hang_s, recorder):
            try:
                with redirect_stdout(output), redirect_stderr(output):
                    _execute(job, rank)
                steps.script_ends()
            except StepDone:
                pass
            except LaterOptimizer as error:
                raise OtherStepsError.later_optimizer(error.closing) from None
            except (Exception, SystemExit) as error:
                if by_recipe:
                    raise
                ended_by = error
        recorded = any(op.stream != HOST_STREAM for op in recorder.result.ops) and (
            steps.done or (steps.step == job.step and not recorder.recording)
        )
        lines, answered = output.getvalue().splitlines(), doubts.said_before(map(asdict, policy.asked))
        if ended_by is not None and not isinstance(ended_by, SystemExit) and not recorded:
            module = recorder.labels.current_module
            raise failures.explain(ended_by, rank, module, lines, answered) from None
        if not recorded:
            raise failures.ended_early(ended_by, job, rank, steps, lines, answered, "".join(caught))
    finally:
        recorder.recording = False
        gc.enable()
    return _result(job, rank, steps, policy)


class _Output(io.StringIO):
    """What a script prints; with a descriptor (of errors) for what writes below Python, as faulthandler."""

    def fileno(self) -> int:
        """Of this process's standard error."""
        return 2


def _note_life(recorder: Any) -> None:
    """A rank that waits for a message does not hang: whether it will come is known elsewhere."""
    recorder.num_calls += 1


def _failed(policy: ValuePolicy, recorder: Any, caught: list[str], error: Exception) -> None:
    """A forward or backward pass raised ``error``, which the script may catch.  Told of once; torch stops
    recomputing by an error, too.
    """
    from torch.utils.checkpoint import _StopRecomputationError

    from workloads.tracing.drive import failures

    if isinstance(error, _StopRecomputationError) or hasattr(error, _SEEN):
        return
    with suppress(AttributeError):
        setattr(error, _SEEN, True)
    caught[:] = [failures.in_a_line(error, recorder.labels.current_module)]
    if recorder.recording:
        in_script, raised = where_raised(error.__traceback__)
        policy.note("failure", caught[0], (in_script or raised).partition(" in ")[0])


def _execute(job: ScriptJob, rank: int) -> None:
    """The script as ``__main__``, with the arguments and import path that ``python`` gives it."""
    local_rank = str(rank % job.local_world_size)
    sys.argv = [
        str(job.script),
        *(one.replace("{local_rank}", local_rank).replace("{rank}", str(rank)) for one in job.arguments),
    ]
    if sys.path[0] != job.folder:  # else the process that was forked has it already
        sys.path.insert(0, job.folder)
    if job.setup is not None:
        runpy.run_path(str(job.setup), run_name="simcore_setup")
    if job.module:
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(job.script), run_name="__main__")


def _precision(recording: Recording) -> str:
    """The dtype in which most of the step's operations are computed."""
    flops = Counter[str]()
    for op in recording.ops:
        flops[str(op.columns[DTYPE])] += int(op.columns[FLOPS])
    return max(flops, key=lambda dtype: flops[dtype], default="")


def _result(job: ScriptJob, rank: int, steps: Any, policy: ValuePolicy) -> RankTrace:
    import torch

    from workloads.tracing.fake import loader_shares, process_groups
    from workloads.tracing.stand_ins import finder

    recording, facts = steps.recorder.result, steps.facts
    held, memory = 0, facts.memory
    if not job.by_recipe:
        recording = keep_as_compiled(recording)
    shown = without_inner(recording)
    if not job.by_recipe:
        # Gradients are what lives at the start and is neither parameter nor optimizer state: with them DDP's
        # buckets, for which a memory profile has no place of their own.
        held = steps.live_bytes - recording.freed_before
        memory = replace(memory, gradients=max(0, held - memory.parameters - memory.optimizer_states))
    microbatches = len({segment.microbatch for segment in recording.segments if segment.kind == "bwd"})
    chunks = 1 + max((segment.chunk for segment in recording.segments), default=0)
    return RankTrace(
        rank=rank,
        num_microbatches=max(1, microbatches),
        program=cut(recording),
        groups=recording.groups,
        families=tuple(dict.fromkeys(process_groups.requested_groups)),
        layer_offset=facts.layer_offset or (0,) * chunks,
        memory=memory,
        versions={"torch": torch.__version__, **dict(facts.versions)},
        asked=tuple(sorted(policy.asked.items(), key=lambda item: item[0].site)),
        unused=tuple(site for site, _ in job.values if site not in policy.used),
        holders=() if job.by_recipe else largest_holders(shown, memory),
        peaks=() if job.by_recipe else tuple(peak_by_phase(shown, held).items()),
        num_parameters=facts.num_parameters,
        num_trained=facts.num_trained,
        precision=_precision(recording),
        stand_ins=tuple(sorted(finder.used)),
        counted=tuple(sorted(kernels.counted)),
        held=facts.sizes,
        cut=facts.cut,
        read=() if job.by_recipe else loader_shares.shares(for_all=rank == 0 and job.world_size > 2),
        named=() if rank or job.by_recipe else named_ranks(job.script, job.world_size, job.arguments),
        call_sites=tuple(
            next(iter(recording.sites.get(index, ())), "")
            for index, op in enumerate(recording.ops)
            if op.columns[GROUP]
        ),
    )
