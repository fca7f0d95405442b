"""A table of kernels recorded alone and beside communication, predicted row by row.

A row says what a profiler does of both kernels: name, grid, block, registers and shared memory of the one;
name, grid and block of the other, or its size and group.  What was not recorded is filled in as for traces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from simcore.apps.replay.categories import OTHER, category
from simcore.apps.replay.tiles import unrecorded_launch
from simcore.apps.studies.contention.beside import FOREVER_PS, Beside, Channels
from simcore.apps.studies.contention.copied import copied_rows
from simcore.apps.studies.contention.pairs import Neighbour
from simcore.apps.studies.contention.rows import BesideRow
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, load_cluster, named_board
from simcore.hardware.boards import boards
from simcore.hardware.sm import ThreadBlock, load_sm
from simcore.outside import csv_rows
from simcore.units import PS_PER_US
from workloads.imports.collective_names import collective_kind, serves_peers

_NEEDED: Final = ("gpu", "kernel", "alone_us", "overlapped_us")
_CLASSES: Final = {
    "gemm": "gemm/conv", "elementwise": "elementwise/copy", "reduction": "reduce/norm",
    "attention": "attention",
}  # fmt: skip
#: What any start and end costs: the shortest kernels of recordings take 1.5 to 2.0 us.
_START_PS: Final = 2 * PS_PER_US
_TELLING_US: Final = 20.0  # shorter kernels find in caches what they seem to fetch
_LONGEST_US: Final = 1e8
_BYTES = re.compile(r"(in|out)_bytes=(\d{1,15})")


def overlap_rows(path: Path, cluster: str | None) -> tuple[list[BesideRow], list[dict[str, Any]]]:
    """Rows of the table at ``path``, and those refused as ``{id, reason}``; ids count rows from 0.

    ``path`` may be a folder that ``profile_gpu.py`` wrote; ``cluster`` is for rows that name no GPU.
    Errors: InputError for what is no such table.
    """
    if path.is_dir():
        return copied_rows(path)
    rows, refused = [], []
    table = [columns for _, columns in csv_rows(path, "kernels beside communication", _NEEDED)]
    boards = _Boards(table, cluster)
    for number, columns in enumerate(table):
        try:
            rows.append(_row(number, columns, boards))
        except InputError as error:
            refused.append({"id": number, "reason": str(error)})
    return rows, refused


def _row(number: int, columns: Mapping[str, str], boards: _Boards) -> BesideRow:
    alone, recorded = _time(columns, "alone_us"), _time(columns, "overlapped_us")
    spec, channels = boards.of(columns)
    gpu = spec.gpu
    kind = category(columns["kernel"])
    if kind == OTHER:
        kind = _CLASSES.get(columns.get("kclass", ""), OTHER)
    launch = _launch(columns, "block", "registers", "shared_mem")
    blocks = _product(columns.get("grid", ""))
    occupancy = load_sm(gpu.table("sm")).fit(launch) if launch is not None else 1
    alone_ps = round(alone * PS_PER_US)
    moved = _moved(columns)
    if not blocks:
        blocks, occupancy, launch = unrecorded_launch(columns["kernel"], kind, alone_ps, moved[1], gpu)
    # Where in the collective it ran no row tells: neither in its first nor in its last moments.
    neighbour = Neighbour(
        -FOREVER_PS, FOREVER_PS, _product(columns.get("comm_grid", "")),
        collective_kind(columns.get("collective", ""), columns.get("comm_kernel", "")),
        _whole(columns, "comm_bytes"), _whole(columns, "comm_group_size"),
        by_peers=serves_peers(columns.get("comm_kernel", "")),
        shortest_ps=_whole(columns, "comm_dur_us") * PS_PER_US,
    )  # fmt: skip
    beside = Beside(
        alone_ps,
        _START_PS,
        kind,
        blocks,
        occupancy,
        launch,
        moved,
        (neighbour,),
        channels,
        guessed=not _product(columns.get("grid", "")),
    )
    return BesideRow(
        number, columns.get("trace", ""), gpu.name, columns.get("quality", ""), kind, alone, recorded,
        beside.time_ps() / PS_PER_US, beside,
    )  # fmt: skip


class _Boards:
    """Clusters, and NCCL's channels on them, by what rows call their GPU.

    Where the name leaves the memory open, the board with the least bandwidth that the rows of the trace do
    not exceed is taken; where there is no name, the most usual board with as many SMs as the row's
    ``num_sms`` or, as a profiler of PyTorch says it, its blocks over those on each SM.
    """

    def __init__(self, table: Sequence[Mapping[str, str]], cluster: str | None) -> None:
        self._cluster = cluster
        self._fastest: dict[tuple[str, str], float] = {}
        self._known: dict[tuple[str, str], tuple[ClusterSpec, Channels]] = {}
        for columns in table:
            moved, alone = sum(_moved(columns)), columns["alone_us"]
            if moved and re.fullmatch(r"\d+(\.\d+)?", alone) and float(alone) >= _TELLING_US:
                board = named_board(columns["gpu"])
                cached = load_cluster(board.cluster).gpu.l2_bytes if board and board.cluster else 0
                if moved > cached:
                    key = columns["gpu"], columns.get("trace", "")
                    self._fastest[key] = max(self._fastest.get(key, 0.0), moved / float(alone) * 1e6)

    def of(self, columns: Mapping[str, str]) -> tuple[ClusterSpec, Channels]:
        """The cluster of a row.  InputError for a GPU without a profile."""
        gpu = columns["gpu"]
        if named_board(gpu) is None and self._cluster is None:
            gpu = _usual_board(_whole(columns, "num_sms") or _sms_of_grid(columns)) or gpu
        key = gpu, columns.get("trace", "")
        found = self._known.get(key)
        if found is None:
            spec = self._named(*key)
            found = self._known[key] = spec, Channels(spec, 1.0)
        return found

    def _named(self, gpu: str, trace: str) -> ClusterSpec:
        board = named_board(gpu)
        if board is None or not board.cluster:
            if self._cluster is None:
                raise InputError(f"there is no profile of the GPU {gpu!r}; --cluster names one")
            return load_cluster(self._cluster)
        smaller = named_board(f"{gpu}-40GB") if not re.search(r"\d\s*gb", gpu, re.IGNORECASE) else None
        fastest = self._fastest.get((gpu, trace), 0.0)
        for name in dict.fromkeys((smaller.cluster if smaller else board.cluster, board.cluster)):
            if 0 < fastest <= load_cluster(name).gpu.hbm_bytes_per_s:
                break
        else:
            name = board.cluster
        return load_cluster(f"{name}-{load_cluster(name).gpus_per_node}", {})


def _sms_of_grid(columns: Mapping[str, str]) -> int:
    """SMs by a row's blocks and blocks on each SM; 0 where it does not tell."""
    try:
        per_sm = float(columns.get("blocks_per_sm") or 0)
    except ValueError:
        return 0
    blocks = _product(columns.get("grid", ""))
    return round(blocks / per_sm) if per_sm > 0 else 0


@cache
def _usual_board(num_sms: int) -> str:
    """The last board of so many SMs, since those that are more special come first; empty without any."""
    found = ""
    for board in boards():
        if num_sms and board.cluster and not board.stands_in:
            gpu = load_cluster(board.cluster).gpu
            found = gpu.name if gpu.num_sms == num_sms else found
    return found


def _time(columns: Mapping[str, str], name: str) -> float:
    try:
        value = float(columns[name])
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST_US:
        raise InputError(f"{name} = {columns[name]!r} is no time of a kernel in us")
    return value


def _whole(columns: Mapping[str, str], name: str) -> int:
    """A number, 0 where none is recorded."""
    try:
        value = float(columns.get(name) or 0)
    except ValueError:
        value = 0.0
    return int(value) if 0 <= value < 1e15 else 0


def _product(text: str) -> int:
    """Blocks of a grid or threads of a block, "8x2x1"; 0 where not recorded."""
    sizes = text.split("x")
    if not all(re.fullmatch(r"\d{1,10}(\.0)?", size) for size in sizes):
        return 0
    return math.prod(int(float(size)) for size in sizes)


def _launch(columns: Mapping[str, str], block: str, registers: str, shared: str) -> ThreadBlock | None:
    threads = min(_product(columns.get(block, "")), 1024)
    return ThreadBlock(threads, _whole(columns, registers), _whole(columns, shared)) if threads else None


def _moved(columns: Mapping[str, str]) -> tuple[int, int]:
    """Bytes that a kernel reads and writes, where the row tells (XLA); 0 elsewhere."""
    found = {way: int(size) for way, size in _BYTES.findall(columns.get("input_dims", ""))}
    return found.get("in", 0), found.get("out", 0)
