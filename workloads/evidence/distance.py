"""How unlike two jobs are, as far as errors of predictions go, and in words.

Note [Distance between jobs]
    The root of a sum of squares: one term for each word in which two jobs differ (:data:`_WORDS`), and one
    for each number, its weight times the base-2 logarithm of the ratio (:data:`_NUMBERS`).  Weights say what
    is judged to matter for *errors*: the framework, the die, experts, context parallelism.  They are
    judgement, not fitted: ``docs/bands.md`` says how little depends on them.  Where one of the two is
    unknown, the term is that of jobs that have nothing to do with each other: half a mismatch for a word, a
    factor of 4 for a number; a number that neither has (parameters of lists of blocks) is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcore.elementary import log, log_of
from simcore.records import dataclass
from workloads.evidence.features import JobFeatures
from workloads.evidence.runs import MeasuredRun

FloatArray = npt.NDArray[np.float64]

_LOG_2: Final = log(2.0)

#: Frameworks that grew out of another, by the stem of their presets' names.
_KIN: Final = {
    "megatron": "Megatron", "nemo": "Megatron", "megascale": "Megatron", "mosaic": "PyTorch FSDP",
    "fms": "PyTorch FSDP", "torchtitan": "PyTorch FSDP", "pax": "XLA", "maxtext": "XLA",
}  # fmt: skip


def kin_of(job: JobFeatures) -> str:
    """The framework that a job's framework grew out of; its own stem where none is known."""
    return _KIN.get(job.lineage, job.lineage)


def _width(job: JobFeatures) -> str:
    return "16 bits" if job.precision in ("bf16", "fp16") else job.precision


def _unnamed(_: JobFeatures) -> str:
    return ""


def _whole(job: JobFeatures) -> str:
    return "" if not job.sharding else "whole" if job.whole else "apart"


def _maker(job: JobFeatures) -> str:
    """Whose libraries run kernels and collectives; unknown boards are NVIDIA's, as all measured ones are."""
    return "AMD" if job.board.startswith("MI") else "NVIDIA"


#: (weight, value, what a run is called that has it).
_WORDS: Final[tuple[tuple[float, Callable[[JobFeatures], str], Callable[[JobFeatures], str]], ...]] = (
    (0.5, lambda job: job.framework, lambda job: job.framework),
    (0.87, kin_of, _unnamed),  # beside another preset: 1 in all
    (0.7, lambda job: job.die, _unnamed),
    (0.15, lambda job: job.board, lambda job: job.board.partition("-")[0]),
    (0.7, lambda job: job.blocks, lambda job: job.blocks),
    (0.4, _width, lambda job: job.precision),
    (0.5, _whole, lambda job: f"parameters {'sharded' if job.whole else 'not sharded'}"),
    (0.2, lambda job: job.recompute, lambda job: f"recompute {job.recompute}"),
    (1.0, _maker, _unnamed),
    (0.5, lambda job: job.source.replace("row", "described"), _unnamed),
)

#: (weight of a doubling, feature, what it is called).
_NUMBERS: Final = (
    (0.15, "gpus", "{} GPUs"),
    (0.15, "params_b", "{}B parameters"),
    (0.25, "seq", "{} tokens"),
    (0.15, "tp", "tp {}"),
    (0.1, "pp", "pp {}"),
    (0.1, "vpp", "{} chunks a stage"),
    (0.4, "cp", "cp {}"),
    (0.2, "ep", "ep {}"),
    (0.1, "micro_batch", "micro batch {}"),
    (0.05, "microbatches", "{} microbatches"),
)

#: Doublings that stand for a number that is unknown, and the share of a word's weight.
_UNKNOWN_DOUBLINGS: Final = 2.0
_UNKNOWN_WORD: Final = 0.5


_OF_BLOCKS: Final = {
    "experts": "with experts", "tables": "of tables", "tables forward": "of tables, forward alone",
    "images": "of images", "images forward": "of images, forward alone",
}  # fmt: skip

#: How a job is spoken of in which a word (by its place in :data:`_WORDS`) is new.  A new preset of a
#: framework whose kin was measured is not.
_NEW_WORDS: Final[tuple[tuple[int, Callable[[JobFeatures], str]], ...]] = (
    (1, lambda job: f"of {job.framework}, nor of a framework that it grew out of"),
    (2, lambda job: f"on {job.board}"),
    (4, lambda job: _OF_BLOCKS.get(job.blocks, "without experts")),
    (5, lambda job: f"in {job.precision}"),
    (6, lambda job: "with sharded parameters" if job.whole else "without sharded parameters"),
    (8, lambda job: f"with libraries of {_maker(job)}"),
)

#: How one is spoken of that lies beyond the largest measured value of a number.
_NEW_NUMBERS: Final = {
    "gpus": "on more than {} GPUs", "params_b": "of more than {}B parameters",
    "seq": "with samples over {} tokens", "tp": "with tensor parallelism over {}",
    "pp": "with more than {} pipeline stages", "vpp": "with more than {} chunks a stage",
    "cp": "with context parallelism over {}", "ep": "with expert parallelism over {}",
}  # fmt: skip


@dataclass(frozen=True)
class FeatureColumns:
    """Features of runs, a column each: made once for many distances."""

    words: tuple[npt.NDArray[np.str_], ...]
    log2: FloatArray  # [number, run]; NaN: unknown

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun]) -> FeatureColumns:
        """The columns of ``runs``."""
        jobs = [run.features for run in runs]
        words = tuple(np.array([value(job) for job in jobs], dtype=np.str_) for _, value, _ in _WORDS)
        numbers = np.array([[getattr(job, name) for job in jobs] for _, name, _ in _NUMBERS], dtype=float)
        return cls(words, _log2(numbers))

    def terms(self, job: JobFeatures) -> FloatArray:
        """Terms of the distance of ``job`` from each run: [word or number, run]."""
        found = []
        for (weight, value, _), column in zip(_WORDS, self.words, strict=True):
            own = value(job)
            unknown = (column == "") | (own == "")
            found.append(weight * np.where(unknown, _UNKNOWN_WORD, column != own))
        own_log2 = _log2(np.array([float(getattr(job, name)) for _, name, _ in _NUMBERS]))
        doublings = np.abs(self.log2 - own_log2[:, None])
        doublings[np.isnan(self.log2) & np.isnan(own_log2)[:, None]] = 0.0
        weights = np.array([weight for weight, _, _ in _NUMBERS])[:, None]
        numbers = weights * np.where(np.isnan(doublings), _UNKNOWN_DOUBLINGS, doublings)
        return np.concatenate([np.array(found).reshape(len(_WORDS), -1), numbers])

    def distances(self, job: JobFeatures) -> FloatArray:
        """Distance of ``job`` from each run; see Note [Distance between jobs]."""
        return np.asarray(np.sqrt((self.terms(job) ** 2).sum(axis=0)))

    def novelties(self, job: JobFeatures, used: npt.NDArray[np.bool_]) -> tuple[tuple[float, str], ...]:
        """What none of the ``used`` runs on the framework of ``job`` has: (term of the distance, in words).

        On its framework: of its preset, else of its kin, else all.  A word that no run anywhere has counts
        twice.
        """
        kin = used & (self.words[1] == kin_of(job))
        own = kin & (self.words[0] == job.framework)
        pool, where = (own, " on this framework") if own.any() else (kin, f" on {kin_of(job)}")
        if not kin.any():
            pool, where = used, ""
        found = []
        for place, text in _NEW_WORDS:
            weight, value, _ = _WORDS[place]
            alike = self.words[place] == value(job)
            if value(job) and not (alike & pool).any():
                elsewhere = bool((alike & used).any())
                term = weight if elsewhere else 2 * weight
                found.append((term, f"no measured run {text(job)}{where if elsewhere else ''}"))
        for row, (weight, name, _) in enumerate(_NUMBERS):
            own_log2 = float(_log2(np.array([float(getattr(job, name))]))[0])
            known = self.log2[row][pool & ~np.isnan(self.log2[row])]
            if name in _NEW_NUMBERS and len(known) and own_log2 > known.max() + 0.01:
                most = _shown(2.0 ** float(known.max()))
                far = weight * (own_log2 - float(known.max()))
                found.append((far, f"no measured run {_NEW_NUMBERS[name].format(most)}{where}"))
        if job.source == "traced":
            found.append((_WORDS[-1][0], "no measured run of a traced program: all are described by tables"))
        return tuple(found)


def _log2(numbers: FloatArray) -> FloatArray:
    return log_of(np.where(numbers > 0, numbers, np.nan)) / _LOG_2


def differences(job: JobFeatures, run: JobFeatures) -> tuple[str, ...]:
    """What ``run`` has that ``job`` has not, what matters most first; unknowns are left out."""
    found: list[tuple[float, str]] = []
    for weight, value, name in _WORDS:
        if value(job) and value(run) and value(job) != value(run) and name(run):
            found.append((weight, name(run)))
    for weight, key, text in _NUMBERS:
        own, other = float(getattr(job, key)), float(getattr(run, key))
        doublings = abs(log(own / other)) / _LOG_2 if own and other else 0.0
        if doublings > 0.01:
            found.append((weight * doublings, text.format(_shown(other))))
    return tuple(text for _, text in sorted(found, key=lambda item: -item[0]))


def _shown(number: Any) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
