"""Chakra files into a job: which rank each is of, the graph, what was recorded, the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simcore.errors import InputError
from simcore.files import check_file, manifest_of
from simcore.graph import Graph
from simcore.graph.kinds import is_communication
from simcore.graph.ops import OpKind
from simcore.units import PS_PER_S
from workloads.imports.chakra.alike import RankFile, Tails, outline
from workloads.imports.chakra.schema import EXPORT
from workloads.imports.chakra.to_graph import RankNodes, build_graph
from workloads.imports.files import TraceFile, head_of, read_each, read_object
from workloads.imports.job import ImportedJob, ImportReport, RankReport
from workloads.imports.op_columns import columns_of
from workloads.imports.recorded import MAX_SPAN_S, ImportedRank, RecordedOps, Step

_RANK = re.compile(r"([0-9]{1,9})\.et(?:\.gz)?$")
_GROUP_FILE = re.compile(r"(^|/)comm_?groups?[^/]*\.json$")
_GROUPS = re.compile(rb'\s*\{\s*"[^"]{1,99}"\s*:\s*\[\s*[0-9]')  # whatever ASTRA-sim's generators call it


def is_chakra(source: TraceFile, head: bytes) -> bool:
    """Whether a file is a Chakra stream by name and first message, or the groups that go with some."""
    if _tells_groups(source, head):
        return head.lstrip()[:1] == b"{"
    if not source.label.endswith((".et", ".et.gz")):
        return False
    return head.lstrip()[:1] not in (b"{", b"<")


def _tells_groups(source: TraceFile, head: bytes) -> bool:
    by_content = source.label.endswith(".json") and _GROUPS.match(head) is not None
    return by_content or _GROUP_FILE.search(source.label) is not None


def import_chakra(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import Chakra files, one per rank; ranks are told by file names that end in their number.

    Start times give a recording to compare with; without, there is the graph alone.  ``gaps`` has no meaning.
    Errors: InputError for a bad file, two files of one rank, data from what is missing, a circle, an export
    of ours that is not as it was written.
    """
    del gaps
    groups: dict[str, tuple[int, ...]] = {}
    exports, missing = _exports(sources, skip_bad)

    tails, checked, right = Tails(), set[bytes](), set[bytes | None]()

    def read(source: TraceFile) -> RankFile | None:
        manifest = exports.get(source.path.parent, {"files": ()})
        if source.path.name in manifest["files"]:
            check_file(source.path, source.path.name, manifest)
        if not source.label.endswith((".et", ".et.gz")) and _tells_groups(source, head_of(source)):
            groups.update(_groups(source))
            return None
        found = _RANK.search(source.label)
        number = int(found.group(1)) if found is not None else -1
        file = outline(source, number, tails, checked)
        if skip_bad and (file.digest is None or file.digest not in right):
            RankNodes.of(file)  # else errors come when the graph is built
            right.add(file.digest)
        return file

    of_files, skipped = read_each(sources, read, skip_bad=skip_bad, needed=False)
    skipped += missing
    ranks = [rank for rank in of_files if rank is not None]
    if not ranks:
        raise InputError("no trace could be read: " + ("; ".join(skipped) or "only groups are given"))
    if any(rank.number < 0 for rank in ranks):
        ranks = [replace(rank, number=index) for index, rank in enumerate(ranks)]
    ranks.sort(key=lambda rank: rank.number)
    for index in range(1, len(ranks)):
        if ranks[index].number == ranks[index - 1].number:
            raise InputError(
                f"{ranks[index].label} and {ranks[index - 1].label} are both of rank {ranks[index].number}"
            )
    graph, played = build_graph(ranks, groups, tails)
    origin_ps = min((start for rank in played for start in rank.starts if start >= 0), default=0)
    recorded = [_recorded(graph, index, rank, origin_ps) for index, rank in enumerate(played)]
    imported = tuple(rank for rank in recorded if rank is not None)
    return ImportedJob(
        graph, imported if len(imported) == len(ranks) else (),
        _report(graph, ranks, played, recorded, skipped),
    )  # fmt: skip


def _exports(sources: Sequence[TraceFile], skip_bad: bool) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """Manifests of the exports that files are from, by folder, and which files of them are missing.

    InputError for the first that is, unless bad files are skipped.
    """
    exports: dict[Path, dict[str, Any]] = {}
    missing: list[str] = []
    for folder in dict.fromkeys(source.path.parent for source in sources if source.member is None):
        manifest = manifest_of(folder, EXPORT)
        if manifest is None:
            continue
        exports[folder] = manifest
        for name in manifest["files"]:
            if not (folder / name).exists():
                try:
                    check_file(folder / name, name, manifest)
                except InputError as error:
                    if not skip_bad:
                        raise
                    missing.append(str(error))
    return exports, missing


def _groups(source: TraceFile) -> dict[str, tuple[int, ...]]:
    """``comm_group.json``: ranks by group name."""
    found = read_object(source, "groups")
    for name, ranks in found.items():
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            raise InputError(f"{source.label}: group {name!r} is no list of ranks")
    return {str(name): tuple(ranks) for name, ranks in found.items()}


def _recorded(graph: Graph, index: int, rank: RankNodes, origin_ps: int) -> ImportedRank | None:
    """What was recorded of a rank, if its GPU nodes have start times; times count from ``origin_ps``."""
    rows, duration, _ = columns_of(rank.placed, 3)
    if not len(rows) or min(rank.starts) < 0 or (duration < 0).any():
        return None
    first = int(graph.template_start[index])  # each rank of which times are known is one template
    after = np.array([start - origin_ps for start in rank.starts], dtype=np.object_)
    if max(after) > MAX_SPAN_S * PS_PER_S:
        days, node = max(after) / PS_PER_S / 86400, rank.ids[int(np.argmax(after))]
        raise InputError(f"{rank.label}: node {node} starts {days:.3g} days after the first node of all")
    order = np.argsort(after.astype(np.int64), kind="stable")
    rows, start = rows[order], after.astype(np.int64)[order]
    end = start + duration[order]
    ops = graph.ops
    kind = ops.kind[first + rows]
    communicates = is_communication(kind)
    recorded = RecordedOps(
        start, end, ops.name.take(first + rows), ops.stream.take(first + rows),
        communicates, kind != int(OpKind.MEMCPY), np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows)),
    )  # fmt: skip
    step = Step(-1, int(start[0]), int(end.max()))
    return ImportedRank(rank.number, recorded, rows, (step,), (np.arange(len(rows)),))


def _report(
    graph: Graph,
    files: list[RankFile],
    played: list[RankNodes],
    recorded: list[ImportedRank | None],
    skipped: list[str],
) -> ImportReport:
    reports = []
    missing = []
    streams = [
        len(np.unique(graph.ops.stream.codes[start:end]))
        for start, end in pairwise(graph.template_start.tolist())
    ]
    untimed = total = 0
    for file, rank, known, program in zip(
        files, played, recorded, graph.program_of_rank.tolist(), strict=True
    ):
        _, duration, communicates = columns_of(rank.placed, 3)
        untimed += int((duration < 0).sum())
        total += len(duration)
        span = 0 if known is None else int(known.recorded.end_ps.max() - known.recorded.start_ps[0])
        reports.append(
            RankReport(
                rank=file.number, file=file.label, gpu_ops=len(duration),
                communication_kernels=int(communicates.sum()), streams=streams[program], span_s=span / 1e12,
            )
        )  # fmt: skip
    if untimed:
        missing.append(f"{untimed} of {total} GPU nodes have no duration: they are predicted")
    if any(known is None for known in recorded):
        missing.append("no start times: there is no recorded step to compare a replay with")
    lacking, in_circles = (sum(counts) for counts in zip(*(rank.left_aside for rank in played), strict=True))
    if lacking:
        missing.append(f"{lacking} control dependencies on nodes that the files lack are left aside")
    if in_circles:
        missing.append(f"{in_circles} control dependencies that go in circles are left aside")
    stood_in = sum(rank.stood_in for rank in played)
    if stood_in:
        missing.append(f"{stood_in} sends and receives whose other end is of no file last as recorded")
    inferred = []
    if any(rank.guessed_streams for rank in played):
        inferred.append(
            "streams are not recorded: one for compute, one for copies, one for each group's communication"
        )
    after_sends = sum(rank.after_sends for rank in played)
    if after_sends:
        inferred.append(
            f"{after_sends} messages that come after a send of their rank do not wait until it is received"
        )
    if any(rank.guessed_groups for rank in played):
        inferred.append("collectives without a known group are of all ranks")
    return ImportReport(
        ranks=tuple(reports), world_size=graph.world_size,
        clock_shift_us=(0.0,) * len(played), skipped=tuple(skipped), format="chakra",
        found=("operations with dependencies, sizes and groups",), inferred=tuple(inferred),
        missing=tuple(missing),
    )  # fmt: skip
