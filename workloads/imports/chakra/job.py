"""Chakra files into a job: which rank each is of, the graph, what was recorded, the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simcore.errors import InputError
from simcore.files import check_file, manifest_of
from simcore.graph import Graph
from simcore.graph.kinds import is_communication
from simcore.graph.ops import OpKind, Strings
from simcore.units import PS_PER_S
from workloads.imports.chakra.read import ChakraNode, read_nodes
from workloads.imports.chakra.schema import EXPORT, NodeType
from workloads.imports.chakra.to_graph import RankNodes, build_graph
from workloads.imports.files import TraceFile, read_each, read_object
from workloads.imports.job import ImportedJob, ImportReport, RankReport
from workloads.imports.recorded import MAX_SPAN_S, ImportedRank, RecordedOps, Step

_RANK = re.compile(r"([0-9]{1,9})\.et(?:\.gz)?$")
_GROUP_FILE = re.compile(r"(^|/)comm_?groups?[^/]*\.json$")


def is_chakra(source: TraceFile, head: bytes) -> bool:
    """Whether a file is a Chakra stream by name and first message, or the groups that go with some."""
    if _GROUP_FILE.search(source.label):
        return head.lstrip()[:1] == b"{"
    if not source.label.endswith((".et", ".et.gz")):
        return False
    return head.lstrip()[:1] not in (b"{", b"<")


def import_chakra(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import Chakra files, one per rank; ranks are told by file names that end in their number.

    Start times give a recording to compare with; without, there is the graph alone.  ``gaps`` has no meaning.
    Errors: InputError for a bad file, two files of one rank, data from what is missing, a circle, an export
    of ours that is not as it was written.
    """
    del gaps
    groups: dict[str, tuple[int, ...]] = {}
    exports, missing = _exports(sources, skip_bad)

    def read(source: TraceFile) -> RankNodes | None:
        manifest = exports.get(source.path.parent, {"files": ()})
        if source.path.name in manifest["files"]:
            check_file(source.path, source.path.name, manifest)
        if _GROUP_FILE.search(source.label):
            groups.update(_groups(source))
            return None
        found = _RANK.search(source.label)
        number = int(found.group(1)) if found is not None else -1
        return RankNodes.of(source.label, number, list(read_nodes(source)))

    of_files, skipped = read_each(sources, read, skip_bad=skip_bad, needed=False)
    skipped += missing
    ranks = [rank for rank in of_files if rank is not None]
    if not ranks:
        raise InputError("no trace could be read: " + ("; ".join(skipped) or "only groups are given"))
    if any(rank.number < 0 for rank in ranks):
        for index, rank in enumerate(ranks):
            rank.number = index
    ranks.sort(key=lambda rank: rank.number)
    for index in range(1, len(ranks)):
        if ranks[index].number == ranks[index - 1].number:
            raise InputError(
                f"{ranks[index].label} and {ranks[index - 1].label} are both of rank {ranks[index].number}"
            )
    graph = build_graph(ranks, groups)
    begins = [node.start_ps for rank in ranks for node, _ in rank.placed if node.start_ps >= 0]
    origin_ps = min(begins, default=0)
    recorded = [_recorded(graph, index, rank, origin_ps) for index, rank in enumerate(ranks)]
    imported = tuple(rank for rank in recorded if rank is not None)
    return ImportedJob(
        graph, imported if len(imported) == len(ranks) else (), _report(graph, ranks, recorded, skipped)
    )


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
    first = int(graph.template_start[index])
    placed = [(node, row) for node, row in rank.placed if node.start_ps >= 0 and node.duration_ps >= 0]
    if not placed or len(placed) < len(rank.placed):
        return None
    placed.sort(key=lambda pair: pair[0].start_ps)
    last = placed[-1][0]
    if last.start_ps - origin_ps > MAX_SPAN_S * PS_PER_S:
        days = (last.start_ps - origin_ps) / PS_PER_S / 86400
        raise InputError(f"{rank.label}: node {last.id} starts {days:.3g} days after the first node of all")
    start = np.array([node.start_ps - origin_ps for node, _ in placed], dtype=np.int64)
    end = start + np.array([node.duration_ps for node, _ in placed], dtype=np.int64)
    rows = np.array([row for _, row in placed], dtype=np.int64)
    ops = graph.ops
    kind = ops.kind[first + rows]
    communicates = is_communication(kind)
    recorded = RecordedOps(
        start, end, Strings.encode([node.name for node, _ in placed]), ops.stream.take(first + rows),
        communicates, kind != int(OpKind.MEMCPY), np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows)),
    )  # fmt: skip
    step = Step(-1, int(start[0]), int(end.max()))
    return ImportedRank(rank.number, recorded, rows, (step,), (np.arange(len(rows)),))


def _report(
    graph: Graph, ranks: list[RankNodes], recorded: list[ImportedRank | None], skipped: list[str]
) -> ImportReport:
    reports = []
    missing = []
    untimed = sum(node.duration_ps < 0 for rank in ranks for node, _ in rank.placed)
    if untimed:
        total = sum(len(rank.placed) for rank in ranks)
        missing.append(f"{untimed} of {total} GPU nodes have no duration: they are predicted")
    for index, rank in enumerate(ranks):
        gpu_nodes = [node for node, _ in rank.placed]
        known = recorded[index]
        span = 0 if known is None else int(known.recorded.end_ps.max() - known.recorded.start_ps[0])
        first, last = int(graph.template_start[index]), int(graph.template_start[index + 1])
        reports.append(
            RankReport(
                rank=rank.number, file=rank.label, gpu_ops=len(gpu_nodes),
                communication_kernels=sum(_communicates(node) for node in gpu_nodes),
                streams=len(set(graph.ops.stream.codes[first:last].tolist())), span_s=span / 1e12,
            )
        )  # fmt: skip
    if any(known is None for known in recorded):
        missing.append("no start times: there is no recorded step to compare a replay with")
    lacking, in_circles = (sum(counts) for counts in zip(*(rank.left_aside for rank in ranks), strict=True))
    if lacking:
        missing.append(f"{lacking} control dependencies on nodes that the files lack are left aside")
    if in_circles:
        missing.append(f"{in_circles} control dependencies that go in circles are left aside")
    stood_in = sum(rank.stood_in for rank in ranks)
    if stood_in:
        missing.append(f"{stood_in} sends and receives whose other end is of no file last as recorded")
    inferred = []
    if any(rank.guessed_streams for rank in ranks):
        inferred.append(
            "streams are not recorded: one for compute, one for copies, one for each group's communication"
        )
    if any(rank.guessed_groups for rank in ranks):
        inferred.append("collectives without a known group are of all ranks")
    return ImportReport(
        ranks=tuple(reports), world_size=graph.world_size,
        clock_shift_us=(0.0,) * len(ranks), skipped=tuple(skipped), format="chakra",
        found=("operations with dependencies, sizes and groups",), inferred=tuple(inferred),
        missing=tuple(missing),
    )  # fmt: skip


def _communicates(node: ChakraNode) -> bool:
    return node.type in (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
