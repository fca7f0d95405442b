"""Measured collectives: a row of a CSV in the columns of nccl-tests, understood.

Sizes follow nccl-tests: the whole output of an all_gather, the whole input of a reduce_scatter, the buffer of
one rank otherwise; ``algbw = bytes / time``, and ``busbw`` is that times 2 (n-1)/n for an all_reduce and
(n-1)/n for all_gather, reduce_scatter and all_to_all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from simcore.apps.measured import engines
from simcore.apps.measured.nccl_loop import ALONE_ON_A_THREAD, Loop, loop_of
from simcore.apps.measured.tables import LEAST_US, MOST_US, number, within
from simcore.collectives import COLLECTIVES
from simcore.collectives.kinds import SEND_RECV, kind_of
from simcore.collectives.kinds.all_to_all import TokenExchange
from simcore.collectives.spread import band_name
from simcore.errors import InputError, nearest
from simcore.hardware import known_clusters, named_board
from simcore.hardware.profiles import fabric_profile
from simcore.outside import quoted
from simcore.records import dataclass

#: What a row must say; its time may come from ``time_us``, ``algbw_GBps`` or ``busbw_GBps``.
REQUIRED_COLUMNS: Final = ("gpu", "nodes", "gpus", "collective", "bytes")
TIME_COLUMNS: Final = ("time_us", "algbw_GBps", "busbw_GBps", engines.TIME_COLUMN)

#: As many as the simulator is built for; a larger number is a slip of the pen.
_MOST_GPUS: Final = 131_072
_MOST_BYTES: Final = 1 << 50
#: nccl-tests and CSV files write some names their own way.
#: What a switch cannot add (src/enqueue.cc, ncclNvlsSupported): NCCL takes a ring or tree instead.
_NO_NVLS: Final = re.compile(r"\b(u?int8|fp8\w*|float8\w*)\b", re.IGNORECASE)
_NVLS_OFF: Final = re.compile(r"NCCL_NVLS_ENABLE\s*=\s*0")
_FORCED_ALGORITHM: Final = re.compile(r"NCCL_ALGO\s*=\s*(\^?[\w:]+(?:,[\w:]+)*)", re.IGNORECASE)
_FORCED_PROTOCOL: Final = re.compile(r"NCCL_PROTO\s*=\s*(\^?[\w:]+(?:,[\w:]+)*)", re.IGNORECASE)
_FORCED_NUMBERS: Final = {
    name: re.compile(rf"{variable}\s*=\s*(\d{{1,9}})(?!\d)")
    for name, variable in (
        ("min_channels", "NCCL_MIN_(?:NCHANNELS|CTAS)"),
        ("max_channels", "NCCL_MAX_(?:NCHANNELS|CTAS)"),
        ("buffer_bytes", "NCCL_BUFFSIZE"),
    )
}
#: The release that ran: what the log itself says before what a folder is called.
_VERSION: Final = re.compile(r"(?:version column|NCCL version|NCCL)\s+(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
_VERSION_COLUMN: Final = re.compile(r"version column\s+(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)


@dataclass(frozen=True)
class NcclSetup:
    """Everything beside size and collective that decides a plan.

    ``cluster`` is a family's name, ``numbers`` what else the planner is told, ``gpu`` the GPU's profile where
    the family is a fabric's.
    """

    cluster: str
    nodes: int
    gpus: int
    version: str | None
    algorithm: str | None
    protocol: str | None
    nvls: bool
    numbers: tuple[tuple[str, int], ...] = ()
    gpu: str | None = None


@dataclass(frozen=True)
class NcclRow:
    """One measurement: ``line`` of the CSV, microseconds, and the row's own ``columns``.

    ``apart`` is why no healthy fabric explains the row, None for the others.
    """

    line: int
    setup: NcclSetup
    gpu: str
    collective: str
    num_bytes: int
    measured_us: float
    columns: Mapping[str, str]
    apart: str | None = None
    loop: Loop = ALONE_ON_A_THREAD

    @property
    def source(self) -> str:
        """Where the row was published."""
        return self.columns.get("source") or "unnamed source"

    @property
    def exchange(self) -> str | None:
        """Which exchange of tokens another library's kernel made; None for NCCL's collectives."""
        return self.columns.get("exchange")

    @property
    def family(self) -> str:
        """GPU x nodes x collective x size band."""
        nodes = f"{self.setup.nodes} node{'s' if self.setup.nodes > 1 else ''}"
        what = self.exchange or self.collective
        family = f"{self.setup.cluster} {nodes} {what} {band_name(self.num_bytes)}"
        return family if self.apart is None else f"apart: {family}"


def parse_row(line: int, cells: dict[str, str]) -> NcclRow:
    """InputError, with the reason, for a row that cannot be predicted."""
    said = f"{cells.get('notes', '')}; {cells.get('source', '')}"
    cluster, board = _cluster(cells["gpu"], said)
    known = (*COLLECTIVES, SEND_RECV.name)
    spellings = {name.replace("_", ""): name for name in known}  # nccl-tests writes sendrecv
    collective = spellings.get(cells["collective"].lower(), cells["collective"].lower())
    if collective not in known and TokenExchange.parse(collective) is None:
        raise InputError(f"unknown collective {cells['collective']!r}{nearest(collective, known)}")
    nodes, gpus = _count(cells, "nodes"), _count(cells, "gpus")
    if gpus < max(2, nodes):
        raise InputError(f"{gpus} GPUs on {nodes} node(s) are no group")
    if gpus > _MOST_GPUS:
        raise InputError(f"{gpus} GPUs are more than the {_MOST_GPUS} that can be predicted")
    num_bytes = _count(cells, "bytes")
    if num_bytes > _MOST_BYTES:
        raise InputError(f"{num_bytes} bytes are more than the {_MOST_BYTES} that a message may have")
    version = _VERSION_COLUMN.search(said) or _VERSION.search(said)
    algorithm, protocol = _FORCED_ALGORITHM.search(said), _FORCED_PROTOCOL.search(said)
    setup = NcclSetup(
        cluster=cluster,
        nodes=nodes,
        gpus=gpus,
        version=version[1] if version else None,
        algorithm=algorithm[1] if algorithm else None,
        protocol=protocol[1] if protocol else None,
        nvls=not (_NO_NVLS.search(cells.get("notes", "")) or _NVLS_OFF.search(said)),
        numbers=tuple(
            (name, int(number[1]))
            for name, pattern in _FORCED_NUMBERS.items()
            if (number := pattern.search(said))
        ),
        gpu=board,
    )
    measured_us = within("time_us", _measured_us(cells, collective, gpus), LEAST_US, MOST_US, "us")
    return NcclRow(line, setup, cells["gpu"], collective, num_bytes, measured_us, cells, loop=loop_of(said))


def _cluster(gpu: str, said: str) -> tuple[str, str | None]:
    """(family, its GPU where a fabric that the row's words name chose the family) of a GPU's name."""
    board = named_board(gpu)
    if board is None or not board.cluster or board.stands_in:
        raise InputError(f"no profile of GPU {gpu!r}; there are {known_clusters()}")
    return fabric_profile(board.cluster, said) or (board.cluster, None)


def _measured_us(cells: Mapping[str, str], collective: str, gpus: int) -> float:
    if cells.get("time_us", "").strip():
        return _positive(cells, "time_us")
    if cells.get("algbw_GBps", "").strip():
        return _positive(cells, "bytes") / _positive(cells, "algbw_GBps") / 1e3
    if cells.get("busbw_GBps", "").strip():
        algbw = _positive(cells, "busbw_GBps") / kind_of(collective).bus_factor(gpus)
        return _positive(cells, "bytes") / algbw / 1e3
    raise InputError("no time and no bandwidth")


def _positive(cells: Mapping[str, str], name: str) -> float:
    value = number(cells, name)
    if value <= 0:
        raise InputError(f"{name} = {quoted(cells[name])} must be a number above 0")
    return value


def _count(cells: Mapping[str, str], name: str) -> int:
    value = _positive(cells, name)
    if value != int(value):
        raise InputError(f"{name} = {cells[name]!r} must be a whole number")
    return int(value)
