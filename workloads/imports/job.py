"""A trace set imported: the graph to replay, what was recorded, and how far it can be trusted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from simcore.graph import Graph
from simcore.graph.layout import contiguous_text
from simcore.records import dataclass
from workloads.imports.recorded import ImportedRank

#: Time of GPU ops in no step, as part of all, from which on the report says so: steps of a warm-up are none.
_MUCH_OUTSIDE: Final = 0.05
#: Launches of kernels that were not recorded, as part of all, from which on it does.
_MUCH_LOST: Final = 0.005
_NUMBER: Final = re.compile(r"\d[\d,]*(?:\.\d+)?%?")


@dataclass(frozen=True)
class RankReport:
    """Facts about one rank's trace; what a format does not record at all is 0.

    ``unexplained_s`` is GPU time that passed before ops for a reason that the trace does not show: it is
    replayed as recorded, and stays when the rest is edited.  ``unexplained_busy_s`` is the part of it in
    which other streams had kernels running: their GPU was full, probably.  ``outside_steps``: the part of the
    time of GPU ops that belongs to no step.  ``launches_without_op``: calls that launch a kernel which was
    not recorded, in steps ``cut_steps``.
    """

    rank: int
    file: str
    gpu: str = ""
    gpu_ops: int = 0
    communication_kernels: int = 0
    streams: int = 1
    steps: int = 0
    span_s: float = 0.0
    resolution_us: float = 0.0
    ops_without_launch: int = 0
    launches: int = 0
    launches_without_op: int = 0
    cut_steps: tuple[int, ...] = ()
    graph_launched_ops: int = 0
    recorded_waits: int = 0
    guessed_waits: int = 0
    inferred_edges: int = 0
    contradicted_waits: int = 0
    blocking_calls: int = 0
    inferred_blocks: int = 0
    concurrent_blocks: int = 0
    host_threads: int = 1
    queue_full_blocks: int = 0
    overlaps_trimmed: int = 0
    host_bound_share: float = 0.0
    unexplained_waits: int = 0
    unexplained_s: float = 0.0
    unexplained_busy_s: float = 0.0
    outside_steps: float = 0.0

    def doubts(self) -> list[str]:
        """What limits trust in a replay of this rank, worst first; empty: nothing known."""
        found = []
        if self.unexplained_s > 0.01 * self.span_s:
            share = self.unexplained_s / self.span_s
            busy = self.unexplained_busy_s / self.unexplained_s
            found.append(
                f"{share:.1%} of the span passes before {self.unexplained_waits} ops for no recorded reason"
                f" ({busy:.0%} of it while other streams had kernels running);"
                " replayed as it was, what-if answers do not shorten it"
            )
        if self.steps and self.outside_steps > _MUCH_OUTSIDE:
            alone = ": without launches a step has what starts in it" if self._lacks_launches() else ""
            found.append(f"{self.outside_steps:.0%} of the time of GPU ops lies in no step{alone}")
        if self.ops_without_launch:
            found.append(
                f"{self.ops_without_launch} of {self.gpu_ops} ops have no launch call: taken as launched"
                " before what is recorded"
            )
        if self.launches_without_op > _MUCH_LOST * self.launches:
            steps = f" (steps {contiguous_text(self.cut_steps)})" if self.cut_steps else ""
            found.append(
                f"{self.launches_without_op} of {self.launches} launches have no kernel{steps}: cut off,"
                " dropped or captured as a graph; what they ran is missing"
            )
        if self.guessed_waits and not self.recorded_waits:
            found.append(
                "waits between streams are guessed: the events that streams waited for were not recorded"
                " (torch: experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True);"
                " nsys: --cuda-event-trace=true)"
            )
        if self.concurrent_blocks:
            found.append(
                f"{self.concurrent_blocks} blocking calls beside launches of other threads are host time only"
            )
        if self.host_threads > 1:
            found.append(f"{self.host_threads} host threads launch beside each other: each is one of its own")
        if self.steps == 0 and self.span_s > 0:
            found.append("no step annotations: the whole trace is one step")
        return found

    def _lacks_launches(self) -> bool:
        return self.ops_without_launch == self.gpu_ops


@dataclass(frozen=True)
class ImportReport:
    """Facts about a trace set; ``world_size`` is -1 where not recorded.

    ``clock_shift_us`` are corrections of the ranks' clocks against that of the first rank.  ``format`` is the
    importer's name of the format.  What the importer ``found`` that not every trace has, what it ``inferred``
    and how, and what is ``missing`` from the format or the file with what that costs, are sentences.
    """

    ranks: tuple[RankReport, ...]
    world_size: int
    coupled_collectives: int = 0
    lone_collectives: int = 0
    refused_groups: tuple[str, ...] = ()
    clock_shift_us: tuple[float, ...] = ()
    skipped: tuple[str, ...] = ()
    format: str = "kineto"
    found: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def doubts(self) -> list[str]:
        """What limits trust, each once."""
        found = [f"left out: {reason}" for reason in self.skipped]
        found += [*self.missing, *self.inferred]
        missing = self.world_size - len(self.ranks)
        if self.lone_collectives:
            absent = f"{missing} of {self.world_size} ranks are missing: " if missing > 0 else ""
            found.append(
                f"{absent}{self.lone_collectives} communication kernels last as recorded, waiting included"
            )
        found += [f"not coupled: {reason}" for reason in self.refused_groups]
        return found + _of_ranks([(rank.rank, doubt) for rank in self.ranks for doubt in rank.doubts()])

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "doubts": self.doubts()}


def _of_ranks(doubts: Sequence[tuple[int, str]]) -> list[str]:
    """What is said of ranks, once of all of them, with the least and the largest of each number."""
    alike: dict[str, list[tuple[int, str]]] = {}
    for rank, doubt in doubts:
        alike.setdefault(_NUMBER.sub("\0", doubt), []).append((rank, doubt))
    found = []
    for text, said in alike.items():
        columns = zip(*(_NUMBER.findall(doubt) for _, doubt in said), strict=True)
        for ends in ((min(column, key=_value), max(column, key=_value)) for column in columns):
            text = text.replace("\0", " to ".join(dict.fromkeys(ends)), 1)
        ranks = contiguous_text(rank for rank, _ in said)
        found.append(f"rank{'s' * (len(said) > 1)} {ranks}: {text}")
    return found


def _value(number: str) -> float:
    return float(number.rstrip("%").replace(",", ""))


@dataclass(frozen=True)
class ImportedJob:
    """A graph whose ops last what was recorded, one program per rank, and the import report.

    ``origin`` is the importer's own value, where something else than a replay can be made of it: the log of
    a pipeline, the workers of a job.  ``unedited``: the ranks before edits, where these keep who they are.
    """

    graph: Graph
    ranks: tuple[ImportedRank, ...]
    report: ImportReport
    origin: object = None
    unedited: tuple[ImportedRank, ...] = ()
