"""What frameworks print while they train: step times, throughput, memory, timers of parts of a step.

Lines of Megatron-LM and its kin, torchtitan, DeepSpeed, Hugging Face's Trainer, NeMo and Megatron-Bridge.
Who else writes to the file, colours, and ranks in front of lines are looked past.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from statistics import median
from typing import Final

from simcore.errors import InputError
from simcore.outside import read_text
from simcore.records import dataclass
from simcore.units import GIB

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER: Final = r"\s*'?([0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)'?"
#: The share of steps at the beginning that are not counted, and above which multiple of the median one is
#: slow for a reason of its own (a checkpoint, an evaluation, garbage collection).
_WARM_UP: Final = 0.1
SLOW: Final = 1.5


@dataclass(frozen=True)
class LoggedStep:
    """A line of a log; None for what it does not say.

    ``step_s``: seconds a step; ``samples_per_s`` of the whole job; ``tokens_per_s`` and ``tflops`` of one
    GPU, by the framework's own count; ``batch``: samples of the whole job in a step.
    """

    number: int
    step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tflops: float | None = None
    batch: float | None = None


@dataclass(frozen=True)
class TrainingLog:
    """A log: who wrote it, what its lines say, and what it says of parts of a step.

    ``timers``: (least, most) over ranks of Megatron's timers, seconds a step; ``memory``: the most that one
    GPU reserved and had allocated, bytes.
    """

    path: str
    framework: str
    steps: tuple[LoggedStep, ...]
    timers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def steady(self) -> tuple[LoggedStep, ...]:
        """Steps without the first tenth (at least one, where three are left)."""
        first = max(1, round(_WARM_UP * len(self.steps)))
        return self.steps[first:] if len(self.steps) - first >= 3 else self.steps

    def typical(self, what: str) -> float | None:
        """Median of the steady steps' ``what``; None where no line says it."""
        known = [value for step in self.steady if (value := getattr(step, what)) is not None]
        return median(known) if known else None


@dataclass(frozen=True)
class _Style:
    """How a framework writes: a line's mark with the step's number, and fields by name."""

    framework: str
    line: re.Pattern[str]
    fields: Mapping[str, re.Pattern[str]]


def _style(framework: str, line: str, **fields: str) -> _Style:
    compiled = {name: re.compile(pattern + _NUMBER) for name, pattern in fields.items()}
    return _Style(framework, re.compile(line), compiled)


#: First match wins.  ``step_ms`` and ``steps_per_s`` become ``step_s``.
_STYLES: Final = (
    _style(
        "megatron",
        r"\biteration\s+([0-9]+)/\s*[0-9]+ .*elapsed time per iteration",
        step_ms=r"elapsed time per iteration \(ms\):",
        step_s=r"elapsed time per iteration \(s\):",
        tflops=r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs):",
        samples_per_s=r"samples per second:",
        tokens_per_s=r"tokens per gpu per second \(tgs\):",
        batch=r"global batch size:",
    ),
    _style(
        "torchtitan",
        r"\bstep:\s*([0-9]+)\s+loss:.*\b(?:tps|wps):",
        tokens_per_s=r"\b(?:tps|wps):",
        tflops=r"\btflops:",
    ),
    _style(
        "deepspeed",
        r"(?:global_step=|timer\.py.*\] [0-9]+/|\bsteps: )([0-9]+)\b.*(?:SamplesPerSec|samples/sec)",
        samples_per_s=r"(?:CurrSamplesPerSec=|\bSamplesPerSec=|samples/sec:)",
        step_s=r"iter time \(s\):",
    ),
    _style(
        "nemo",
        r"(?:\bglobal_step[:=]\s*|iteration\s+|Step\s+)?([0-9]*).*(?:train_step_timing in s|Step Time)\s*:",
        step_s=r"(?:train_step_timing in s|Step Time)\s*:",
        tflops=r"GPU utilization:",
    ),
    _style("trainer", r"()'train_steps_per_second':", steps_per_s=r"'train_steps_per_second':"),
    _style("trainer", r"\b([0-9]+)/[0-9]+ \[[0-9:]+<.*s/it", step_s=r"<[^,\]]*,"),
    _style("trainer", r"\b([0-9]+)/[0-9]+ \[[0-9:]+<.*it/s", steps_per_s=r"<[^,\]]*,"),
)  # fmt: skip
#: Bytes of one GPU: what was reserved (or, where that is not said, allocated) at most.
_MEMORY: Final = (
    ("reserved", re.compile(r"\| max reserved:" + _NUMBER), 1 << 20),
    ("allocated", re.compile(r"\| max allocated:" + _NUMBER), 1 << 20),
    ("reserved", re.compile(r"mem-max-reserved-bytes:" + _NUMBER), 1),
    ("allocated", re.compile(r"mem-max-allocated-bytes:" + _NUMBER), 1),
    ("reserved", re.compile(r"\bmemory:" + _NUMBER + r"GiB\("), GIB),
    ("allocated", re.compile(r"MaxMemAllocated=" + _NUMBER + r"GB"), GIB),
)
_TIMER: Final = re.compile(r"^\s*(?:\[\w+\]:?)?\s*([a-z][a-z0-9/-]+) \.{3,}: \(([0-9.]+), ([0-9.]+)\)\s*$")
_LONGEST_LINE: Final = 4000


def is_training_log(path: Path) -> bool:
    """Whether a file's name says that it is text that somebody printed, not a recording."""
    return path.suffix.lower() in (".log", ".txt", ".out", ".err", "")


def read_training_log(path: Path) -> TrainingLog:
    """What the log at ``path`` says of its steps.  InputError where no line says anything."""
    return training_log(read_text(path, "training log"), str(path))


def training_log(text: str, where: str) -> TrainingLog:
    """As :func:`read_training_log`, of a log's text."""
    found: dict[str, dict[int, LoggedStep]] = {}
    memory: dict[str, float] = {}
    timers: dict[str, list[tuple[float, float]]] = {}
    framework = ""
    for line in _lines(text):
        for kind, pattern, unit in _MEMORY:
            if match := pattern.search(line):
                memory[kind] = max(memory.get(kind, 0.0), _value(match[1]) * unit)
        if match := _TIMER.match(line):
            timers.setdefault(match[1], []).append((float(match[2]) / 1e3, float(match[3]) / 1e3))
            continue
        for style in _STYLES:
            if mark := style.line.search(line):
                of_style = found.setdefault(style.framework, {})
                number = int(mark[1]) if mark[1] else len(of_style)
                if (step := _step(style, number, line)) is not None:
                    # Ranks that print the same step are one.
                    of_style.setdefault(number, step)
                break
    if not found:
        raise InputError(
            f"{where}: no line of a training log that is known: Megatron-LM's 'elapsed time per iteration',"
            " torchtitan's 'tps:', DeepSpeed's 'SamplesPerSec', Trainer's 'train_steps_per_second' or its"
            " progress bar, NeMo's 'train_step_timing'"
        )
    # A DeepSpeed job within Trainer prints both: the one that says most often how long a step takes.
    framework = max(found, key=lambda name: (name != "trainer", len(found[name])))
    steps = tuple(step for _, step in sorted(found[framework].items()))
    middle = {
        name: (median(least for least, _ in seen), median(most for _, most in seen))
        for name, seen in timers.items()
    }
    return TrainingLog(where, framework, steps, middle, {kind: int(size) for kind, size in memory.items()})


def _lines(text: str) -> Iterator[str]:
    """Lines; a progress bar returns to the beginning of its own."""
    for line in text.replace("\r", "\n").split("\n"):
        yield _COLOUR.sub("", line[:_LONGEST_LINE])


def _step(style: _Style, number: int, line: str) -> LoggedStep | None:
    seen = {name: match for name, pattern in style.fields.items() if (match := pattern.search(line))}
    values = {name: _value(match[1]) for name, match in seen.items()}
    if (ms := values.pop("step_ms", 0.0)) > 0:
        values["step_s"] = ms / 1e3
    if (rate := values.pop("steps_per_s", 0.0)) > 0:
        values["step_s"] = 1 / rate
    known = {name: value for name, value in values.items() if value > 0}
    return LoggedStep(number, **known) if known else None


def _value(text: str) -> float:
    return float(text.replace(",", ""))
