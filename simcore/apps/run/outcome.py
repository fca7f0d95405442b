"""What came of a question, short enough to keep thousands of: its step, or why there is none."""

from __future__ import annotations

import errno
import tempfile
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, model_validator

from simcore.apps.progress import StageTimer
from simcore.apps.run.scenario import Scenario
from simcore.apps.run.simulation import FinishedRun, run_scenario
from simcore.apps.store import Store
from simcore.errors import InfeasibleError, InputError, SimcoreError
from simcore.report import json_object
from simcore.timeline.schema import TIMELINE_FILE

#: The file of a folder in which outcomes are kept.
OUTCOMES: Final = "simulations.jsonl"
#: Of the machine: the next case would fare no better.
_NO_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
PARTS: Final = ("exposed_compute", "overlapped", "exposed_communication", "idle")


class Outcome(BaseModel):
    """``status`` and ``reason``: "done"; "refused" as wrong; "out_of_memory" of its GPUs; "failed" otherwise.

    Numbers are those of ``run_sim.py --json``, seconds, bytes and tokens per second, and the share of the
    step that is ``bubble``; a plan knows only the step of most simulations.  None where there are none.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    status: Literal["done", "refused", "out_of_memory", "failed"]
    reason: str = ""
    step_time_s: NonNegativeFloat | None = None
    band_low_s: NonNegativeFloat | None = None
    band_high_s: NonNegativeFloat | None = None
    tokens_per_s: NonNegativeFloat | None = None
    mfu: NonNegativeFloat | None = None
    model_tflops_per_gpu: NonNegativeFloat | None = None
    exposed_compute_s: NonNegativeFloat | None = None
    overlapped_s: NonNegativeFloat | None = None
    exposed_communication_s: NonNegativeFloat | None = None
    idle_s: NonNegativeFloat | None = None
    bubble: NonNegativeFloat | None = None
    peak_memory_bytes: NonNegativeInt | None = None
    gpus: NonNegativeInt | None = None
    warnings: list[str] = []

    @model_validator(mode="after")
    def _has_what_its_status_says(self) -> Outcome:
        if (self.status == "done") != (self.step_time_s is not None) or (self.status != "done") != bool(
            self.reason
        ):
            raise ValueError(self.status)
        return self

    @property
    def is_whole(self) -> bool:
        """Whether all is known of it, not just the step."""
        return self.status != "done" or self.bubble is not None

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """What outcomes of unlike jobs are compared by; 0 where there is none."""
        return (self.tokens_per_s or 0.0) / self.gpus if self.gpus else 0.0


def outcomes(path: Path, also: Iterable[Path] = ()) -> Store:
    """The outcomes that the file ``path`` keeps, and what ``also`` are known from other files."""
    return Store(path, "outcome", Outcome.model_validate, also)


def outcome_of(scenario: Scenario, scratch: Path | None = None) -> Outcome:
    """Simulate ``scenario`` as ``run_sim.py`` does, in a folder of ``scratch`` that is removed again.

    Whatever goes wrong is the outcome.  Errors: InputError where no disk takes what it writes.
    """
    try:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            return _told(
                run_scenario(scenario, Path(folder) / "run", StageTimer(shown=False), perfetto=False)
            )
    except Exception as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in _NO_DISK:
            raise InputError(str(error)) from error
        return not_done(error)


def not_done(error: Exception) -> Outcome:
    """Why there is no step: a refusal is an answer, what this machine or a bug of ours has done is none."""
    told = str(error).partition("\n")[0]
    if isinstance(error, SimcoreError) and error.exit_code != 1:
        return Outcome(
            status="out_of_memory" if isinstance(error, InfeasibleError) else "refused",
            reason=told or "refused without a word",
        )
    if isinstance(error, MemoryError):
        return failed("needs more memory than this machine has")
    at = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in at)
    return failed(f"{type(error).__name__}: {told}{where}")


def failed(reason: str) -> Outcome:
    """An outcome that is none."""
    return Outcome(status="failed", reason=reason)


def _told(done: FinishedRun) -> Outcome:
    shown: Mapping[str, Any] = json_object(done.info, done.analysis, done.run_dir / TIMELINE_FILE, 0.0)
    band = shown["band"] or {}
    same = (
        "step_time_s",
        "tokens_per_s",
        "mfu",
        "model_tflops_per_gpu",
        "peak_memory_bytes",
        "gpus",
        "warnings",
    )
    return Outcome(
        status="done",
        band_low_s=band.get("low_s"),
        band_high_s=band.get("high_s"),
        bubble=done.analysis.bubble_fraction,
        **{name: shown[name] for name in same},
        **{f"{part}_s": shown["breakdown_s"][part] for part in PARTS},
    )
