"""Kernels alone and beside communication as groups of alike ones: the table that ``--overlap`` reads.

A group is one kernel (rank, name, grid, block, registers, shared memory, framework op and input shapes)
beside one kind of communication kernel.  It was recorded at least :data:`LEAST_ALONE` times alone, which is
with communication beside less than :data:`ALONE` of its time, and at least once with communication beside
more than :data:`BESIDE` of it; recordings with other compute beside more than :data:`OTHERS` of them are left
out.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from simcore.apps.replay.alone import overlapped
from simcore.apps.replay.categories import CATEGORIES, categories
from simcore.apps.studies.contention.rows import TraceRows
from simcore.hardware.sm import ThreadBlock
from simcore.outside import csv_rows
from simcore.units import PS_PER_US
from workloads.imports import ImportedJob
from workloads.imports.recorded import ImportedRank, RecordedOps

LEAST_ALONE: Final = 3
ALONE, BESIDE, OTHERS = 0.02, 0.8, 0.05
_LEAST_PS: Final = 5 * PS_PER_US
#: Quality: quartiles within a tenth of the median, ten microseconds or more, shapes known or five alone.
_ALIKE: Final = 0.1
_TELLING_PS: Final = 10 * PS_PER_US
_MANY_ALONE: Final = 5

COLUMNS: Final = (
    "trace", "device", "gpu", "num_sms", "quality", "kclass", "kernel", "op", "input_dims", "grid", "block",
    "n_blocks", "registers", "shared_mem", "n_alone", "alone_us", "alone_q1_us", "alone_q3_us",
    "n_overlapped", "overlapped_us", "slowdown", "comm_kernel", "collective", "comm_bytes", "comm_group_size",
    "comm_grid", "comm_block", "comm_registers", "comm_shared_mem", "comm_dur_us",
)  # fmt: skip

_Key = tuple[int, int, int, int, int, int, int]
_Beside = tuple[int, int, int, int, int, int, int]


def group_rows(trace: TraceRows, job: ImportedJob) -> list[dict[str, object]]:
    """Rows of :data:`COLUMNS` for all groups of a trace."""
    return [row for rank in job.ranks for row in _of_rank(trace, rank)]


def groups_text(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as CSV, as ``--overlap`` reads them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _of_rank(trace: TraceRows, rank: ImportedRank) -> Iterator[dict[str, object]]:
    ops = rank.recorded
    length = ops.end_ps - ops.start_ps
    kinds = categories(ops)
    computes = ops.is_kernel & ~ops.is_comm & (length > 0)
    by_comm = _share_of(ops, ops.is_comm)
    by_other = _share_of(ops, ~ops.is_comm)
    alone: dict[_Key, list[int]] = defaultdict(list)
    beside: dict[tuple[_Key, _Beside], list[tuple[int, int]]] = defaultdict(list)
    longest = int(length.max(initial=0))
    for op in np.flatnonzero(computes & (by_other <= OTHERS)).tolist():
        key = _key(ops, op)
        if by_comm[op] < ALONE:
            alone[key].append(int(length[op]))
        elif by_comm[op] > BESIDE:
            other = _longest_beside(ops, op, longest)
            beside[key, _communication(ops, other)].append((op, other))
    for (key, _), found in beside.items():
        times = alone.get(key, [])
        if len(times) < LEAST_ALONE:
            continue
        low, middle, high = np.quantile(times, (0.25, 0.5, 0.75))
        if middle < _LEAST_PS:
            continue
        op, other = found[0]
        known = sum(ops.moved(op)) > 0 or (ops.shapes is not None and ops.shapes.of_op[op] >= 0)
        steady = high - low <= _ALIKE * middle and middle >= _TELLING_PS
        quality = ("good" if known else "ok" if len(times) >= _MANY_ALONE else "weak") if steady else "weak"
        yield _row(trace, rank, op, other, quality, CATEGORIES[int(kinds[op])]) | {
            "n_alone": len(times), "alone_us": float(middle) / PS_PER_US,
            "alone_q1_us": float(low) / PS_PER_US, "alone_q3_us": float(high) / PS_PER_US, "n_overlapped":
            len(found), "overlapped_us": float(np.median([length[one] for one, _ in found])) / PS_PER_US,
            "slowdown": float(np.median([length[one] for one, _ in found])) / middle, "comm_dur_us":
            float(np.median([length[one] for _, one in found])) / PS_PER_US,
        }  # fmt: skip


def _share_of(ops: RecordedOps, by: np.ndarray) -> np.ndarray:
    """Share of each op's time during which ops of ``by`` on other streams ran."""
    share = np.zeros(len(ops))
    candidates = np.flatnonzero(overlapped(ops, by))
    order = np.flatnonzero(by)
    reach = np.maximum.accumulate(ops.end_ps[order]) if len(order) else order
    starts = ops.start_ps[order]
    for op in candidates.tolist():
        begin, end = int(ops.start_ps[op]), int(ops.end_ps[op])
        first, last = int(np.searchsorted(reach, begin, side="right")), int(np.searchsorted(starts, end))
        covered, until = 0, begin
        for other in order[first:last].tolist():
            if other == op:
                continue
            low, high = max(until, int(ops.start_ps[other])), min(end, int(ops.end_ps[other]))
            if high > low:
                covered, until = covered + high - low, high
        share[op] = covered / max(1, end - begin)
    return share


def _longest_beside(ops: RecordedOps, op: int, longest_ps: int) -> int:
    """The communication kernel that shares most time with ``op``."""
    first = int(np.searchsorted(ops.start_ps, ops.start_ps[op] - longest_ps))
    last = int(np.searchsorted(ops.start_ps, ops.end_ps[op]))
    inside = np.arange(first, last)
    inside = inside[ops.is_comm[inside]]
    shared = np.minimum(ops.end_ps[inside], ops.end_ps[op]) - np.maximum(
        ops.start_ps[inside], ops.start_ps[op]
    )
    return int(inside[int(np.argmax(shared))])


def _launch(ops: RecordedOps, op: int) -> ThreadBlock:
    return (ops.launches.of(op) if ops.launches is not None else None) or ThreadBlock(0, 0, 0)


def _key(ops: RecordedOps, op: int) -> _Key:
    launch, shapes = _launch(ops, op), ops.shapes
    call = int(shapes.of_op[op]) if shapes is not None else -1
    named = (
        (-1, -1)
        if shapes is None or call < 0
        else (int(shapes.name.codes[call]), int(shapes.in_shapes.codes[call]))
    )
    return (
        int(ops.name.codes[op]), int(ops.blocks[op]), launch.threads, launch.registers, launch.shared_bytes,
        *named,
    )  # fmt: skip


def _communication(ops: RecordedOps, op: int) -> _Beside:
    launch, known = _launch(ops, op), ops.collectives
    return (
        int(ops.name.codes[op]), int(ops.blocks[op]), launch.threads, launch.registers, launch.shared_bytes,
        int(known.num_bytes[op]) if known is not None else 0, len(known.members[op]) if known is not None else
        0,
    )  # fmt: skip


def _row(
    trace: TraceRows, rank: ImportedRank, op: int, other: int, quality: str, category: str
) -> dict[str, object]:
    ops = rank.recorded
    launch, beside, known, shapes = _launch(ops, op), _launch(ops, other), ops.collectives, ops.shapes
    call = int(shapes.of_op[op]) if shapes is not None else -1
    read, written = ops.moved(op)
    dims = f"in_bytes={read};out_bytes={written}" if read or written else ""
    return {
        "trace": trace.trace, "device": rank.number, "gpu": trace.gpu.name, "num_sms": trace.gpu.num_sms,
        "quality": quality, "kclass": category, "kernel": ops.name[op],
        "op": shapes.name[call] if shapes is not None and call >= 0 else "",
        "input_dims": shapes.in_shapes[call] if shapes is not None and call >= 0 else dims,
        "grid": ops.blocks[op] or "", "block": launch.threads or "", "n_blocks": ops.blocks[op] or "",
        "registers": launch.registers if launch.threads else "",
        "shared_mem": launch.shared_bytes if launch.threads else "",
        "comm_kernel": ops.name[other],
        "collective": known.collective[other] if known is not None else "",
        "comm_bytes": known.num_bytes[other] if known is not None and known.num_bytes[other] else "",
        "comm_group_size": len(known.members[other]) if known is not None and known.members[other] else "",
        "comm_grid": ops.blocks[other] or "", "comm_block": beside.threads or "",
        "comm_registers": beside.registers if beside.threads else "",
        "comm_shared_mem": beside.shared_bytes if beside.threads else "",
    }  # fmt: skip


def agreement(own: Sequence[Mapping[str, object]], table: Path) -> dict[str, dict[str, Any]]:
    """By trace of the table: its good and ok rows, how many ``own`` has, ninth tenths of differences.

    A row is found where a group of its kernel, blocks, registers and shared memory has a time alone within a
    tenth of the row's; of several the one whose time beside is nearest counts.
    """
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for group in own:
        times = float(str(group["alone_us"])), float(str(group["overlapped_us"]))
        groups[_same(group)].append(times)
    found: dict[str, list[tuple[float, float] | None]] = defaultdict(list)
    for _, row in csv_rows(table, "kernels beside communication", ("kernel", "alone_us", "overlapped_us")):
        if row.get("quality") not in ("good", "ok"):
            continue
        differences = [
            (abs(alone / float(row["alone_us"]) - 1), abs(beside / float(row["overlapped_us"]) - 1))
            for alone, beside in groups.get(_same(row), ())
        ]
        near = [pair for pair in differences if pair[0] < _ALIKE]
        found[row.get("trace", "")].append(min(near, key=lambda pair: pair[1]) if near else None)
    agreed = {}
    for trace, pairs in found.items():
        both = [pair for pair in pairs if pair is not None]
        if both:
            alone, beside = np.quantile(np.array(both), 0.9, axis=0).tolist()
            agreed[trace] = {"rows": len(pairs), "found": len(both), "alone": alone, "beside": beside}
    return agreed


def _same(row: Mapping[str, object]) -> tuple[str, ...]:
    """What tells a kernel in any table; thunks without the library that they call."""

    def whole(name: str) -> str:
        text = str(row.get(name, ""))
        return str(int(float(text))) if text not in ("", "nan") else ""

    name = str(row["kernel"]).removeprefix("__cublas$gemm ")[:60]
    return name, whole("n_blocks"), whole("registers"), whole("shared_mem")
