"""A training script to trace: what is run, as how many ranks, which step is kept, which ranks differ."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from simcore.errors import InputError
from simcore.graph import ProcessGroup, Workload
from simcore.graph.header import MAX_RANKS
from simcore.records import dataclass
from workloads.tracing.drive.framework_imports import Preparation, leading_imports
from workloads.tracing.drive.others_batches import OthersBatches
from workloads.tracing.drive.rank_classes import DistinctRanks, StartRounds, TraceReport, group_ranks
from workloads.tracing.drive.rank_search import RankSearch
from workloads.tracing.fake.expert_load import parse_load
from workloads.tracing.record import group_families
from workloads.tracing.record.assemble import RankClass, RankTrace
from workloads.tracing.record.recording import COLUMNS, NAME, PHASE
from workloads.tracing.record.tokens import tokens_of_step
from workloads.tracing.record.world_axes import axes_of, parallel_dims

#: Ranks that are run at most, unless the user says otherwise.
MAX_RANKS_RUN = 32
#: Seconds without a single tensor operation after which a script counts as hanging.
HANG_S = 60.0
MAX_STEP: Final = 1_000_000  # steps before the one that is kept are run
MAX_TOKENS: Final = 2**53
_COLLECTIVE, _NUM_BYTES = (COLUMNS.index(name) for name in ("collective", "num_bytes"))
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class ScriptError(InputError):
    """The traced script failed, ended early, or did something that cannot be traced."""


class OtherStepsError(ScriptError):
    """The script's steps are not those that its job says; ``step`` and ``closing`` are what a job must say
    instead (None: as it does).
    """

    step: int | None = None
    closing: int | None = None

    @classmethod
    def later_optimizer(cls, closing: int) -> OtherStepsError:
        """An optimizer stepped for the first time behind whole steps of ``closing`` others; -1: none does."""
        which = f"with optimizer {closing + 1} of the script, which steps later than others"
        error = cls(
            f"a step ends {which if closing >= 0 else 'where the script updates its parameters itself'}"
        )
        error.closing = closing
        return error


class ScriptHangError(Exception):
    """Raised inside a script that has done nothing for too long."""


@dataclass(frozen=True)
class ScriptJob:
    """``torchrun script arguments`` on ``world_size`` ranks, ``gpus_per_node`` to a node.

    ``step``: the optimizer step that is kept, counted from 0; those before it run and are dropped (DDP
    learns its buckets in the first, optimizers make their states); its last where the script takes fewer and
    ``exact_step`` is not set.  ``closing``: see :class:`workloads.tracing.record.step_marks.StepMarks`.
    ``setup``: a Python file run before the script, for shape functions and stand-ins.  ``values``:
    (``file.py:line``, value) answers for host reads of device values.  ``load``: how mixtures of experts
    spread their tokens, as :func:`workloads.tracing.fake.expert_load.parse_load` reads it.
    ``tokens_per_step``: what the script trains on in a step over all ranks, for reports (0: what it looks up
    in its embedding).  ``recipe``: the module that readies a process for a program known by name, which says
    itself what it does (Note [Steps of a script]).  ``module``: the name under which ``python -m`` finds
    ``script`` ("": it is run by its path).

    In ``arguments``, ``{rank}`` and ``{local_rank}`` are the rank's.

    Errors: InputError for a file or number that cannot be.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    world_size: int = 1
    gpus_per_node: int = 8
    step: int = 2
    exact_step: bool = False
    closing: int | None = None
    setup: Path | None = None
    values: tuple[tuple[str, float], ...] = ()
    hang_s: float = HANG_S
    load: str = "uniform"
    tokens_per_step: int = 0
    max_ranks: int = MAX_RANKS_RUN
    recipe: str = ""
    module: str = ""

    def __post_init__(self) -> None:
        for path in (self.script, self.setup):
            if path is not None and not path.is_file():
                raise InputError(f"{path}: no such file")
        for name, value, lowest, highest in (
            ("world-size", self.world_size, 1, MAX_RANKS),
            ("gpus-per-node", self.gpus_per_node, 1, MAX_RANKS),
            ("max-ranks", self.max_ranks, 1, MAX_RANKS),
            ("steps", self.step, 0, MAX_STEP),
            ("tokens-per-step", self.tokens_per_step, 0, MAX_TOKENS),
            ("hang-s", self.hang_s, 0.25, math.inf),
        ):
            if not value >= lowest:  # NaN, too
                raise InputError(f"{name}: {value} must be at least {lowest}")
            if value > highest:
                raise InputError(f"{name}: {value} must be at most {highest}")
        parse_load(self.load)
        nodes, rest = divmod(self.world_size, self.gpus_per_node)
        if nodes and rest and not self.recipe:
            raise InputError(
                f"world-size {self.world_size} does not fill nodes of {self.gpus_per_node} GPUs: "
                f"{nodes * self.gpus_per_node} or {(nodes + 1) * self.gpus_per_node} would"
            )

    @property
    def local_world_size(self) -> int:
        """Ranks on a node."""
        return min(self.world_size, self.gpus_per_node)

    @property
    def by_recipe(self) -> bool:
        """Whether the program says itself what it does."""
        return bool(self.recipe)

    @property
    def folder(self) -> str:
        """The first place of ``sys.path``: of the script, or where ``python -m`` is called."""
        return str(Path.cwd()) if self.module else str(self.script.resolve().parent)

    def preparation(self) -> Preparation:
        """Frameworks that the script imports are imported once, unless ``setup`` may replace modules."""
        return Preparation(
            leading_imports(self.script) if self.setup is None else (),
            (str(self.script), *self.arguments),
            self.folder,
            self.recipe,
        )

    def distinct_ranks(self, start: StartRounds, report: TraceReport) -> DistinctRanks:
        """Runs ranks until it is known which differ; see Note [Distinct ranks]."""
        rounds = start(lambda _: self, "trace")
        seen = rounds.seen
        search = RankSearch(
            lambda ranks: {rank: seen[rank].fingerprint() for rank in rounds.run(ranks)},
            self.max_ranks,
            lambda rank: seen[rank].held,
            lambda size, place: tuple(one.pieces(place) for one in seen[0].cut if one.places == size),
            lambda rank: batches.of(rank),
        )
        search.ends(self.world_size)
        search.named(seen[0].named)
        axes = axes_of(self._families(seen[0]), list(seen.values()), self.world_size)
        batches = OthersBatches(seen, axes, self.world_size)

        def found(hashes: dict[int, str]) -> DistinctRanks:
            report.ranks_run = sorted(seen)
            stages = {
                rank: sum(axis.place(rank) * axis.stride for axis in axes if axis.stages) for rank in hashes
            }
            number = {stage: place for place, stage in enumerate(sorted(set(stages.values())))}
            classes = group_ranks(hashes, {rank: number[stage] for rank, stage in stages.items()})
            traces = [seen[_representative(one, hashes, search.hashes)] for one in classes]
            programs = [one.program for one in traces]
            return DistinctRanks(
                classes, traces, programs, list(seen.values()), search.assumed, settle, batches
            )

        def settle(ranks: Sequence[int]) -> DistinctRanks | None:
            hashes = search.settle(ranks)
            return None if hashes is None else found(hashes)

        recorded = list(seen.values())
        return found(
            search.classes(
                axes,
                flat_shards=any(map(_has_flat_shards, recorded)),
                cut=any(map(_gathers_what_it_updated, recorded)),
            )
        )

    def workload(self, name: str, found: DistinctRanks) -> Workload:
        """What the graph is a graph of."""
        trace = found.traces[0]
        families = self._families(trace)
        axes = axes_of(families, found.seen, self.world_size)
        dims, experts = parallel_dims(trace, axes, families)
        classes = zip(found.classes, found.traces, strict=True)
        alike = [(len(one.ranks), own) for one, own in classes if one.stage == found.classes[0].stage]
        tokens = tokens_of_step(alike, dims)
        model = {"family": "script", "parameters_per_rank": trace.num_parameters}
        return Workload(
            name=name or self.module.rpartition(".")[2] or self.script.stem,
            world_size=self.world_size,
            dims=dims,
            num_microbatches=trace.num_microbatches,
            micro_batch_size=tokens.sequences,
            seq_len=tokens.length,
            tokens_per_step=self.tokens_per_step or tokens.total,
            precision=trace.precision,
            framework="pytorch",
            versions=dict(trace.versions),
            command=self.command(),
            model=model | ({"ep": experts} if experts > 1 else {}),
            options={"step": self.step, "values": dict(self.values)}
            | ({"not_run": found.not_run} if found.not_run else {}),
        )

    def _families(self, trace: RankTrace) -> dict[str, ProcessGroup]:
        """Every family that the program made, used or not."""
        symbols = dict.fromkeys(("world", *(symbol for symbol, _ in trace.families)))
        return group_families.used_families(trace.families, symbols, self.world_size)

    def command(self) -> str:
        """The command line that traces this job; the script by its name alone."""
        what = f"-m {self.module}" if self.module else self.script.name
        parts = ["python scripts/trace_workload.py", what, *map(shlex.quote, self.arguments)]
        parts += [f"--world-size {self.world_size}", f"--gpus-per-node {self.gpus_per_node}"]
        parts.append(f"--steps {self.step}:{self.step + 1}")
        if self.setup is not None:
            parts.append(f"--setup {self.setup.name}")
        parts += [f"--value {site}={value:g}" for site, value in self.values]
        if self.load != "uniform":
            parts.append(f"--expert-load {self.load}")
        return " ".join(parts)


def _has_flat_shards(trace: RankTrace) -> bool:
    """Whether gradients are reduced to shards, but for those of FSDP2, which deals out rows."""
    reduced = "reduce_scatter" in trace.program.column(_COLLECTIVE)
    return reduced and not any(str(name).startswith("fsdp::") for name in trace.program.column(NAME))


def _gathers_what_it_updated(trace: RankTrace) -> bool:
    """Whether ranks update a part each of parameters that all of them hold (ZeRO-1 and 2), and gather these
    behind it: more than the forward pass gathers of what is sharded.
    """
    gathered: Counter[str] = Counter()
    columns = (trace.program.column(number) for number in (_COLLECTIVE, PHASE, _NUM_BYTES))
    for collective, phase, size in zip(*columns, strict=True):
        if collective == "all_gather":
            gathered[str(phase)] += int(size)
    return gathered["optimizer"] > gathered["fwd"]


def _representative(one: RankClass, hashes: Mapping[int, str], run: Mapping[int, str]) -> int:
    """The lowest rank of the class that was run, else of any rank that recorded the same."""
    digest = hashes[one.representative]
    return next((rank for rank in one.ranks if rank in run), None) or min(
        rank for rank, found in run.items() if found == digest
    )


def parse_steps(text: str) -> int:
    """``"2:3"`` or ``"2"``: the step to keep.  InputError for anything but one step."""
    first, colon, last = text.partition(":")
    if not _NUMBER.fullmatch(first) or (colon and not _NUMBER.fullmatch(last)):
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
            number = math.nan
        if not (equals and colon and name and _NUMBER.fullmatch(line) and math.isfinite(number)):
            raise InputError(f"value: {text!r} is not FILE.py:LINE=NUMBER, such as train.py:42=0.5")
        found.append((site, number))
    return tuple(found)
