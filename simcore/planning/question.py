"""What is asked of the planner; its candidates: completed, with their memory, or refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError
from simcore.hardware import ClusterSpec, placed_on
from simcore.memory import OutsideHolders
from simcore.planning.ground import PLACEMENT, Ground, Settings
from simcore.planning.space import FINE_KEYS
from simcore.planning.words import fine_form, short_form
from simcore.records import dataclass
from simcore.run import Setup, outside_on
from workloads.evidence.memory_misses import memory_misses
from workloads.jobs import Description, complete
from workloads.jobs.advice import peak_bytes
from workloads.jobs.complete import said_keys
from workloads.jobs.presets import load_preset
from workloads.parallel.communicators import outside_holders
from workloads.parallel.job import Job

#: Half of what the middle 80% of measured over predicted peaks of memory span (docs/memory.md).
MEMORY_BAND: Final = memory_misses().half_width
#: What of a refusal names the numbers of one candidate alone.
_PARTICULAR: Final = re.compile(r"; nearest.*|; choose.*", re.DOTALL)


@dataclass(frozen=True)
class Candidate:
    """A strategy: ``settings`` over the job as said, its completion, and what it needs.

    ``peak_bytes``: of the fullest stage, and of what its GPUs exchange through.  ``reason``: why it cannot
    be, "" where it can.
    """

    settings: Mapping[str, str]
    job: Description | None = field(default=None, repr=False, compare=False)
    peak_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Question:
    """A job as said (``content``, ``where``, ``folder``, ``overrides`` as for :func:`complete`) and its GPUs.

    ``cluster`` has the settings of GPUs that the job's software decides; ``setup``: how it is simulated;
    ``spare``: share of a GPU's memory that is to stay free.
    """

    content: Mapping[str, Any]
    where: str
    folder: Path | None
    overrides: Mapping[str, str]
    cluster: ClusterSpec
    setup: Setup = field(default_factory=Setup)
    spare: float = 0.0
    _known: dict[Hashable, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def completed(self, settings: Mapping[str, str]) -> Description:
        """The job with ``settings``, as ``run_sim.py`` completes it.  InputError where it cannot be."""
        of_job = {key: text for key, text in settings.items() if key != PLACEMENT}
        return complete(
            self.content, self.where, overrides={**self.overrides, **of_job}, folder=self.folder,
            num_gpus=self.cluster.num_placed, generation=self.cluster.gpu.generation,
            domain_gpus=self.hardware(settings).ranks_per_domain,
        )  # fmt: skip

    def hardware(self, settings: Settings) -> ClusterSpec:
        """The cluster, with ranks placed as ``settings`` say.  InputError where they cannot be."""
        text = settings.get(PLACEMENT)
        return self.cluster if text is None else placed_on(self.cluster, text)

    def named(self, settings: Settings) -> str:
        """A strategy in the field's short form, with what it has of its own along fine axes."""
        text = settings.get(PLACEMENT)
        how = "" if text is None else f" {'listed' if ':' in text else text}"
        job = self.completed(settings)
        usual = {key: value for key, value in settings.items() if key not in FINE_KEYS}
        return short_form(job) + fine_form(job, self.completed(usual)) + how

    @cached_property
    def ground(self) -> Ground:
        """What all candidates share.  InputError where even the job's model cannot be."""
        base = self.completed({})
        name = base.software.name
        return Ground(base, load_preset(name), self.cluster)

    @property
    def said(self) -> set[str]:
        """Keys of the job (``section.key``) that were said."""
        return said_keys(self.content, self.overrides)

    @cached_property
    def available_bytes(self) -> int:
        """What a GPU has for a job: its allocator, and buffers of its communicators."""
        lazy = self.ground.base.software.lazy_loading
        taken = outside_on(self.cluster, {}, OutsideHolders((), lazy_loading=lazy))
        return int(taken.available_bytes(self.cluster.gpu) * (1 - self.spare))

    def is_tight(self, peak_bytes: int) -> bool:
        """Whether a peak fits by less than predictions of memory miss."""
        return peak_bytes * (1 + MEMORY_BAND) > self.available_bytes

    def examined(self, settings: Mapping[str, str]) -> Candidate:
        """The candidate of ``settings``: complete and fitting, or with the reason why not."""
        try:
            job = self.completed(settings)
            self.hardware(settings)
            peak = peak_bytes(job, at_most=int(self.available_bytes / (1 - MEMORY_BAND)))
        except InputError as error:
            return Candidate(settings, reason=_PARTICULAR.sub("", self._plain(error)))
        if peak <= self.available_bytes:
            peak += self._buffers(job)
        if peak > self.available_bytes:
            near = peak * (1 - MEMORY_BAND) <= self.available_bytes
            return Candidate(settings, job, peak, _NEARLY if near else _TOO_LARGE)
        return Candidate(settings, job, peak)

    def _buffers(self, job: Description) -> int:
        """Of communicators and libraries that exchange."""
        whole = Job.of(job)
        p, t, moe = whole.parallel, whole.training, whole.software.moe_dispatcher
        key = p, t.micro_batch, t.sharding, t.precision, t.tp_overlap, moe
        if key not in self._known:
            taken = outside_on(self.cluster, self.setup.nccl, outside_holders(whole))
            self._known[key] = sum(size for _, size in taken.buffers)
        return self._known[key]

    def refusal(self, settings: Mapping[str, str]) -> str:
        """Why the candidate of ``settings`` cannot be, with the nearest values that can; "" where it can."""
        try:
            peak_bytes(self.completed(settings))
            self.hardware(settings)
        except InputError as error:
            return self._plain(error)
        return ""

    def _plain(self, error: InputError) -> str:
        return str(error).removeprefix(f"{self.where}: ")


_TOO_LARGE: Final = "out of memory"
_NEARLY: Final = f"out of memory by less than the {MEMORY_BAND:.0%} that predictions of it miss"
