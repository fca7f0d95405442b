"""Directed links as columns, and their names, computed on demand: half a million need no memory."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.records import dataclass

_CANONICAL: Final = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Links:
    """All directed links, columnar.  Names: ``nvlink.<gpu>.out``, ``nic.<node>.<n>.in``, ``leaf.<l>.up``.

    A link may stand for ``cables`` parallel ones of equal capacity: ``bytes_per_s`` is that of all together.
    """

    names: Sequence[str]
    bytes_per_s: npt.NDArray[np.float64]  # usable by data, efficiency applied
    latency_s: npt.NDArray[np.float64]
    cables: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bytes_per_s)


@dataclass(frozen=True)
class LinkBlock:
    """A run of links with names of one form.

    ``name`` of a link by its index in the block; ``find`` gives the index of a name's parts between dots, or
    None; ``spelling`` says how names of the block are spelt and how far they go.
    """

    size: int
    name: Callable[[int], str]
    find: Callable[[Sequence[str]], int | None]
    spelling: str


class LinkNames(Sequence[str]):
    """Names of all links, by index and back."""

    def __init__(self, blocks: Sequence[LinkBlock]) -> None:
        self._blocks = [block for block in blocks if block.size]
        self._len = sum(block.size for block in self._blocks)

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[str]:
        return (self._name(link) for link in range(self._len))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        picked = range(self._len)[index]
        return self._name(picked) if isinstance(picked, int) else tuple(map(self._name, picked))

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Index of the link called ``value``.  InputError, saying what there is, if there is none."""
        link = self._find(value)
        if link is None or link not in range(self._len)[start:stop]:
            raise InputError(f"unknown link {value!r}; {self._hint(value)}")
        return link

    def _name(self, link: int) -> str:
        for block in self._blocks:
            if link < block.size:
                return block.name(link)
            link -= block.size
        raise IndexError(link)

    def _find(self, name: str) -> int | None:
        parts = name.split(".")
        start = 0
        for block in self._blocks:
            found = block.find(parts)
            if found is not None:
                return start + found
            start += block.size
        return None

    def _hint(self, name: str) -> str:
        """How the names of the kind that ``name`` is closest to are spelt and how far they go."""
        spelling = {block.spelling.split(".")[0]: block.spelling for block in self._blocks}
        kind = next(iter(difflib.get_close_matches(name.split(".")[0], spelling, n=1)), None)
        return f"links are {spelling[kind] if kind else '; '.join(spelling.values())}"


def numbers_in(parts: Sequence[str], limits: Sequence[int]) -> list[int] | None:
    """``parts`` as whole numbers below their ``limits``; None where one is not."""
    if len(parts) != len(limits) or not all(_CANONICAL.fullmatch(part) for part in parts):
        return None
    numbers = [int(part) for part in parts]
    return numbers if all(n < limit for n, limit in zip(numbers, limits, strict=True)) else None


def port_blocks(num_gpus: int) -> tuple[LinkBlock, ...]:
    """``nvlink.<gpu>.out``, then ``nvlink.<gpu>.in``; GPU numbers are global."""
    spelling = f"nvlink.<gpu>.out|in with GPU 0 to {num_gpus - 1}"
    return tuple(_way_block("nvlink", way, (num_gpus,), spelling) for way in ("out", "in"))


def nic_blocks(num_nodes: int, ports: int) -> tuple[LinkBlock, ...]:
    """``nic.<node>.<n>.out``, then ``nic.<node>.<n>.in``."""
    spelling = f"nic.<node>.<n>.out|in with node 0 to {num_nodes - 1} and n 0 to {ports - 1}"
    return tuple(_way_block("nic", way, (num_nodes, ports), spelling) for way in ("out", "in"))


def switch_block(kind: str, count: int) -> LinkBlock:
    """``<kind>.<n>.up`` and ``.down``, interleaved."""

    def find(parts: Sequence[str]) -> int | None:
        numbers = numbers_in(parts[1:-1], (count,))
        if parts[0] != kind or parts[-1] not in ("up", "down") or numbers is None:
            return None
        return 2 * numbers[0] + (parts[-1] == "down")

    return LinkBlock(
        2 * count,
        lambda link: f"{kind}.{link // 2}.{'down' if link % 2 else 'up'}",
        find,
        f"{kind}.<n>.up|down with n 0 to {count - 1}",
    )


def node_block(num_nodes: int, names: Sequence[str]) -> LinkBlock:
    """``node.<n>.<name>`` for each of the links inside a node."""
    index = {name: number for number, name in enumerate(names)}

    def find(parts: Sequence[str]) -> int | None:
        numbers = numbers_in(parts[1:2], (num_nodes,))
        link = index.get(".".join(parts[2:]))
        if parts[0] != "node" or numbers is None or link is None:
            return None
        return numbers[0] * len(names) + link

    def name(link: int) -> str:
        node, local = divmod(link, len(names))
        return f"node.{node}.{names[local]}"

    examples = ", ".join({name.split(".")[0]: name for name in names}.values())
    spelling = f"node.<n>.<link> with node 0 to {num_nodes - 1} and links such as {examples}"
    return LinkBlock(num_nodes * len(names), name, find, spelling)


def pair_block(kind: str, group_size: int, count: int) -> LinkBlock:
    """``<kind>.<from>.<to>`` for all ordered pairs of different things within groups of ``group_size``."""
    others = group_size - 1

    def name(link: int) -> str:
        src, k = divmod(link, others)
        first = src // group_size * group_size
        return f"{kind}.{src}.{first + k + (k >= src - first)}"

    def find(parts: Sequence[str]) -> int | None:
        numbers = numbers_in(parts[1:], (count, count))
        if parts[0] != kind or numbers is None:
            return None
        src, dst = numbers
        if src == dst or src // group_size != dst // group_size:
            return None
        return pair_index(src, dst, group_size)

    spelling = f"{kind}.<from>.<to> with numbers 0 to {count - 1}"
    return LinkBlock(count * others, name, find, spelling)


def pair_index(src: int, dst: int, group_size: int) -> int:
    """Index of the link from ``src`` to ``dst`` in a :func:`pair_block`."""
    inside = dst % group_size
    return src * (group_size - 1) + inside - (inside > src % group_size)


def _way_block(kind: str, way: str, shape: tuple[int, ...], spelling: str) -> LinkBlock:
    inner = shape[-1]
    size = shape[0] * (inner if len(shape) == 2 else 1)

    def name(link: int) -> str:
        numbers = f"{link // inner}.{link % inner}" if len(shape) == 2 else str(link)
        return f"{kind}.{numbers}.{way}"

    def find(parts: Sequence[str]) -> int | None:
        numbers = numbers_in(parts[1:-1], shape)
        if parts[0] != kind or parts[-1] != way or numbers is None:
            return None
        return numbers[0] * inner + numbers[1] if len(shape) == 2 else numbers[0]

    return LinkBlock(size, name, find, spelling)
