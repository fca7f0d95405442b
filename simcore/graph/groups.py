"""Process groups as strides: a group of 131,072 ranks costs a few integers."""

from __future__ import annotations

from functools import cached_property

from simcore.errors import InputError
from simcore.records import dataclass

Dim = tuple[int, int]  # (size, stride in ranks)


@dataclass(frozen=True)
class ProcessGroup:
    """A family of equal groups, one of which a rank belongs to: "tp", "dp", "embd", ...

    Members of a group are ``base + sum(i_k * stride_k)`` over ``dims`` (the innermost, fastest first);
    bases are the same sums over ``base_dims``.  Groups that no strides describe are listed in
    ``explicit`` (then ``dims`` only holds the size).

    Errors: InputError when sizes or strides are not positive.
    """

    name: str
    dims: tuple[Dim, ...]
    base_dims: tuple[Dim, ...] = ()
    offset: int = 0
    explicit: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for size, stride in (*self.dims, *self.base_dims):
            if size < 1 or stride < 1:
                raise InputError(f"process group {self.name!r}: size {size}, stride {stride} must be >= 1")

    @cached_property
    def size(self) -> int:
        """Ranks in one group of the family."""
        if self.explicit:
            return len(self.explicit[0])
        product = 1
        for size, _ in self.dims:
            product *= size
        return product

    @cached_property
    def _by_stride(self) -> list[tuple[int, int, int]]:
        """(stride, size, member dim or -1), largest stride first: the mixed radix of a rank."""
        marked = [(stride, size, k) for k, (size, stride) in enumerate(self.dims)]
        marked += [(stride, size, -1) for size, stride in self.base_dims]
        return sorted(marked, reverse=True)

    @cached_property
    def _explicit_of(self) -> dict[int, tuple[int, ...]]:
        return {rank: members for members in self.explicit for rank in members}

    def _locate(self, rank: int) -> tuple[int, int] | None:
        """(base, index) of ``rank``, or None when the rank is in no group of the family."""
        rest = rank - self.offset
        base = self.offset
        position = [0] * len(self.dims)
        for stride, size, member in self._by_stride:
            step = min(rest // stride, size - 1) if rest >= 0 else 0
            rest -= step * stride
            if member < 0:
                base += step * stride
            else:
                position[member] = step
        if rest != 0:
            return None
        index, scale = 0, 1
        for step, (size, _) in zip(position, self.dims, strict=True):
            index += step * scale
            scale *= size
        return base, index

    def contains(self, rank: int) -> bool:
        """Whether ``rank`` is a member of some group of the family."""
        return rank in self._explicit_of if self.explicit else self._locate(rank) is not None

    def index_of(self, rank: int) -> int:
        """Rank within its group (NCCL's rank in the communicator).  InputError for a non-member."""
        if self.explicit:
            return self.ranks_of(rank).index(rank)
        found = self._locate(rank)
        if found is None:
            raise InputError(f"rank {rank} is in no process group {self.name!r}")
        return found[1]

    def position(self, rank: int, member: int) -> int:
        """Where ``member`` is in the group that ``rank`` is in.  InputError unless it is there."""
        members = self.ranks_of(rank)
        if member not in members:
            raise InputError(f"rank {member} is not in the process group {self.name!r} of rank {rank}")
        return members.index(member)

    def ranks_of(self, rank: int) -> tuple[int, ...]:
        """Global ranks of the group that ``rank`` is in, in group order.  InputError for a non-member."""
        if self.explicit:
            try:
                return self._explicit_of[rank]
            except KeyError:
                raise InputError(f"rank {rank} is in no process group {self.name!r}") from None
        found = self._locate(rank)
        if found is None:
            raise InputError(f"rank {rank} is in no process group {self.name!r}")
        members = [found[0]]
        for size, stride in self.dims:
            members = [m + i * stride for i in range(size) for m in members]
        return tuple(members)
