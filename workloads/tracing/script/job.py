"""A user's training script to trace: what is run, as how many ranks, which step is kept."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simcore.errors import InputError
from workloads.tracing.expert_load import parse_load

#: Seconds without a single tensor operation after which a script counts as hanging.
HANG_S = 60.0


@dataclass(frozen=True)
class ScriptJob:
    """``torchrun script arguments`` on ``world_size`` ranks, ``gpus_per_node`` to a node.

    ``step``: the optimizer step that is kept, counted from 0; those before it run and are dropped (DDP
    learns its buckets in the first, optimizers make their states).  ``setup``: a Python file run before the
    script, for shape functions and stand-ins.  ``values``: (``file.py:line``, value) answers for host reads
    of device values.  ``load``: how mixtures of experts spread their tokens, as
    :func:`workloads.tracing.expert_load.parse_load` reads it.

    Errors: InputError for a file or number that cannot be.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    world_size: int = 1
    gpus_per_node: int = 8
    step: int = 2
    setup: Path | None = None
    values: tuple[tuple[str, float], ...] = ()
    hang_s: float = HANG_S
    load: str = "uniform"

    def __post_init__(self) -> None:
        for path in (self.script, self.setup):
            if path is not None and not path.is_file():
                raise InputError(f"{path}: no such file")
        for name, value, lowest in (
            ("world-size", self.world_size, 1),
            ("gpus-per-node", self.gpus_per_node, 1),
            ("steps", self.step, 0),
        ):
            if value < lowest:
                raise InputError(f"{name}: {value} must be at least {lowest}")
        parse_load(self.load)
        nodes, rest = divmod(self.world_size, self.gpus_per_node)
        if nodes and rest:
            raise InputError(
                f"world-size {self.world_size} does not fill nodes of {self.gpus_per_node} GPUs: "
                f"{nodes * self.gpus_per_node} or {(nodes + 1) * self.gpus_per_node} would"
            )

    @property
    def local_world_size(self) -> int:
        """Ranks on a node."""
        return min(self.world_size, self.gpus_per_node)

    def command(self) -> str:
        """The command line that traces this job; the script by its name alone."""
        parts = ["python scripts/trace_workload.py", self.script.name, *map(shlex.quote, self.arguments)]
        parts += [f"--world-size {self.world_size}", f"--gpus-per-node {self.gpus_per_node}"]
        parts.append(f"--steps {self.step}:{self.step + 1}")
        if self.setup is not None:
            parts.append(f"--setup {self.setup.name}")
        parts += [f"--value {site}={value:g}" for site, value in self.values]
        if self.load != "uniform":
            parts.append(f"--expert-load {self.load}")
        return " ".join(parts)


def parse_steps(text: str) -> int:
    """``"2:3"`` or ``"2"``: the step to keep.  InputError for anything but one step."""
    first, colon, last = text.partition(":")
    if not first.isdigit() or (colon and not last.isdigit()):
        raise InputError(f"steps: {text!r} is not A:B with whole numbers, such as 2:3")
    if colon and int(last) != int(first) + 1:
        raise InputError(
            f"steps: {text!r} spans {int(last) - int(first)} steps; a graph holds one, such as 2:3"
        )
    return int(first)


def parse_values(texts: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """``file.py:line=number`` settings.  InputError for another form."""
    found = []
    for text in texts:
        site, equals, value = text.rpartition("=")
        name, colon, line = site.rpartition(":")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not (equals and colon and name and line.isdigit()):
            raise InputError(f"value: {text!r} is not FILE.py:LINE=NUMBER, such as train.py:42=0.5")
        found.append((site, number))
    return tuple(found)
