"""What a kind of collective tells about itself; one file beside this one fills it in for each.

Note [A new collective]
    A file in this folder that registers a :class:`Collective` is all that a new collective takes: graphs
    accept its name, the planner and the packet network run its schedules, folding and reports read its
    sizes.  Kinds know nothing of hardware; what NCCL makes of them on a cluster is the business of the
    modules one level up, which ask a kind instead of comparing names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Final

from simcore.collectives.kinds.schedule import Generator, Schedule
from simcore.errors import InputError, nearest
from simcore.records import dataclass
from simcore.registry import Registry

if TYPE_CHECKING:
    from simcore.collectives.kinds.own_kernel import OwnKernel


@dataclass(frozen=True)
class Collective:
    """One kind of collective over n ranks.

    Meaning.  ``num_bytes`` is everywhere nccl-tests' size, the larger of what a rank gives and gets.
    ``gives_part``, ``gets_part``: a rank gives, or gets, an n-th of it.  ``reduces``: the program says how
    values are combined.  ``root_chain``: everything passes all ranks one after the other, from or to a root.

    Volume.  ``passes``: how often an average rank sends the n - 1 parts of the size that it does not keep.
    ``pieces(src, dst, n)``: what ``src`` has for ``dst``, in n-ths of the size; None where all are equal.
    ``user_bytes(n)``: HBM traffic on users' buffers per byte sent; None where a rank reads all that it gives
    and writes all that it gets once.

    Schedule.  ``schedules``: by NCCL's name of each algorithm that can run it, who sends what to whom.
    ``chunk_slots``, ``slice_slots``: slots of a connection's buffer that a ring under Simple sends as a chunk
    and forwards as a slice (NCCL src/include/collectives.h, *_CHUNKSTEPS and *_SLICESTEPS).

    How it is launched.  ``grouped``: NCCL has no kernel for it, but groups sends and receives (``pair``: a
    single one, of two ranks).  ``carrier``: the kind that NCCL runs in its place, with ``fixed_bytes`` of
    its own.  ``kernel``: a program's own kernel that carries it out instead of NCCL.  ``variant``: what a
    name with more behind a colon stands for; InputError for one that is misspelt.  ``bare``: the name alone
    is a kind, too; where it is not, ``variant`` gets it to say what is missing.

    Errors: InputError for a field of a wrong type, or without what another needs.
    """

    name: str
    schedules: Mapping[str, Generator] = field(default_factory=dict)
    reduces: bool = False
    gives_part: bool = False
    gets_part: bool = False
    root_chain: bool = False
    passes: int = 1
    pieces: Callable[[int, int, int], float] | None = None
    user_bytes: Callable[[int], float] | None = None
    chunk_slots: int = 4
    slice_slots: int = 2
    grouped: bool = False
    pair: bool = False
    carrier: Collective | None = None
    fixed_bytes: int = 0
    kernel: OwnKernel | None = None
    variant: Callable[[str], Collective] | None = None
    bare: bool = True

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(one.default, bool):
                fits, what = isinstance(value, bool), "True or False"
            elif isinstance(one.default, int):
                fits, what = type(value) is int and value >= 0, "a count"
            elif one.name in ("pieces", "user_bytes", "variant"):
                fits, what = value is None or callable(value), "a function"
            elif one.name == "schedules":
                fits = isinstance(value, Mapping) and all(map(callable, value.values()))
                what = "a generator of transfers for each algorithm"
            else:
                continue
            if not fits:
                raise InputError(f"collective {self.name!r}: {one.name} is {value!r}, not {what}")
        if not self.bare and self.variant is None:
            raise InputError(f"collective {self.name!r}: a name that is not bare needs variant")
        if self.bare and not self.schedules and not self.pair and self.kernel is None:
            raise InputError(f"collective {self.name!r}: schedules has no algorithm, so nothing can run it")
        if self.grouped and self.schedules and "pairwise" not in self.schedules:
            raise InputError(
                f"collective {self.name!r}: NCCL groups its sends and receives, the schedule 'pairwise';"
                f" schedules has {', '.join(map(repr, self.schedules))}"
            )

    @property
    def family(self) -> str:
        """The name without what says behind a colon how it runs."""
        return self.name.partition(":")[0]

    @property
    def one_way(self) -> bool:
        """Whether ranks give and get different amounts, so that a port's two directions differ."""
        return self.gives_part or self.gets_part

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Algorithms that can run it."""
        return tuple(self.schedules)

    def given_bytes(self, num_bytes: int, num_ranks: int) -> int:
        """What a rank puts in, of ``num_bytes`` by nccl-tests' convention."""
        return num_bytes // num_ranks if self.gives_part else num_bytes

    def received_bytes(self, num_bytes: int, num_ranks: int) -> int:
        """What a rank gets out."""
        return num_bytes // num_ranks if self.gets_part else num_bytes

    def sent_share(self, num_ranks: int) -> float:
        """Bytes that an average rank sends, per byte of nccl-tests' size; the same for every algorithm.

        The sum of the schedule divided by ranks and bytes: 2 (n-1)/n for all_reduce, (n-1)/n for most others.
        """
        if self.pieces is not None:
            return math.fsum(self._pieces_sent(num_ranks)) / num_ranks**2
        share = (num_ranks - 1) / num_ranks
        return self.passes * share

    def largest_message(self, num_bytes: int, num_ranks: int) -> int:
        """The largest of the messages that a grouped kind is made of, bytes."""
        if self.pieces is not None:
            return math.ceil(max(self._pieces_sent(num_ranks)) * num_bytes / num_ranks)
        return -(-num_bytes // num_ranks)

    def bus_factor(self, num_ranks: int) -> float:
        """What nccl-tests multiplies algbw with to get busbw."""
        return 1.0 if self.root_chain or self.pair or self.carrier else self.sent_share(num_ranks)

    def ring_steps(self, num_ranks: int) -> int:
        """Steps of a ring as NCCL's tuner counts them (src/graph/tuning.cc, nsteps)."""
        return num_ranks if self.root_chain else self.passes * (num_ranks - 1)

    def channel_traffic(self, num_ranks: int) -> int:
        """Traffic per byte by which NCCL gives out channels (src/enqueue.cc, ncclFuncTrafficPerByte)."""
        return num_ranks if self.one_way else self.passes

    def user_bytes_per_sent(self, num_ranks: int) -> float:
        """HBM traffic on users' buffers per data byte that an average rank sends."""
        if self.user_bytes is not None:
            return self.user_bytes(num_ranks)
        reads, writes = (1 if part else num_ranks for part in (self.gives_part, self.gets_part))
        return (reads + writes) / (self.passes * (num_ranks - 1))

    def steps(
        self, algorithm: str, num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1
    ) -> Schedule:
        """The schedule by ``algorithm``: transfers in an order that respects the steps.

        InputError for an algorithm that cannot run it.
        """
        if algorithm not in self.schedules:
            raise InputError(
                f"{self.name} has no algorithm {algorithm!r}{nearest(algorithm, self.algorithms)}"
            )
        return self.schedules[algorithm](num_ranks, num_bytes, channels, chunks)

    def _pieces_sent(self, num_ranks: int) -> list[float]:
        assert self.pieces is not None
        ranks = range(num_ranks)
        return [self.pieces(src, dst, num_ranks) for src in ranks for dst in ranks if src != dst]


#: Kinds of collectives over a group, by name.
COLLECTIVES: Final[Registry[Collective]] = Registry("collective", "simcore.collectives.kinds")


def register(kind: Collective) -> Collective:
    """Make ``kind`` known by its name.  InputError for a name that is taken."""
    return COLLECTIVES.register(kind.name, kind)


def unknown_collective(name: str) -> InputError:
    """What is raised for a name that NCCL has no collective of, with the nearest that it has."""
    return InputError(f"unknown collective {name!r}{nearest(name, COLLECTIVES)}")


def collective_named(name: str) -> Collective:
    """The kind that a graph calls ``name``.

    Errors: InputError with the nearest name for an unknown one, or where more belongs behind a colon.
    """
    family, colon, _ = name.partition(":")
    if family not in COLLECTIVES:
        raise unknown_collective(name)
    kind = COLLECTIVES[family]
    if kind.variant is not None and (colon or not kind.bare):
        return kind.variant(name)
    if colon:
        raise unknown_collective(name)
    return kind
