"""Process groups that a program made, as families with strides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from simcore.errors import GraphError
from simcore.graph.groups import Dim, ProcessGroup

Members = tuple[int, ...]


def fit_family(symbol: str, groups: Sequence[Members]) -> ProcessGroup:
    """The groups called ``symbol`` as one family: strides when they fit every group, else a list.

    GraphError when the groups differ in size or share a rank.
    """
    distinct = sorted(set(groups))
    sizes = {len(members) for members in distinct}
    everyone = [rank for members in distinct for rank in members]
    if len(sizes) != 1 or len(everyone) != len(set(everyone)):
        raise GraphError(f"process groups {symbol!r} differ in size or overlap: {distinct[:4]}")
    dims = _strides(distinct[0])
    bases = [members[0] for members in distinct]
    base_dims = _strides(bases)
    if dims is not None and base_dims is not None:
        family = ProcessGroup(symbol, dims, base_dims, offset=bases[0])
        if _describes(family, distinct):
            return family
    return ProcessGroup(symbol, ((len(distinct[0]), 1),), explicit=tuple(distinct))


def used_families(
    families: Iterable[tuple[str, Members]], used: Iterable[str], world_size: int
) -> dict[str, ProcessGroup]:
    """Families of the symbols in ``used``, from every group that was made."""
    made: dict[str, list[Members]] = {"world": [tuple(range(world_size))]}
    for symbol, members in families:
        if symbol != "world":
            made.setdefault(symbol, []).append(members)
    return {symbol: fit_family(symbol, made[symbol]) for symbol in sorted(set(used))}


def check_members(family: ProcessGroup, rank: int, recorded: Members) -> None:
    """GraphError unless ``rank`` recorded the members that the family gives it."""
    if not family.contains(rank) or family.ranks_of(rank) != recorded:
        raise GraphError(
            f"rank {rank} recorded process group {family.name!r} as {recorded[:8]}, the world has another"
        )


def check_all(groups: Mapping[str, ProcessGroup], rank: int, recorded: Mapping[str, Members]) -> None:
    """:func:`check_members` for every group that ``rank`` used."""
    for symbol, members in recorded.items():
        if symbol in groups:
            check_members(groups[symbol], rank, members)


def _strides(ranks: Sequence[int]) -> tuple[Dim, ...] | None:
    """Dims (innermost first) whose sums give ``ranks - ranks[0]`` in order; None when no strides do."""
    offsets = [rank - ranks[0] for rank in ranks]
    dims: list[Dim] = []
    while len(offsets) > 1:
        stride = offsets[1]
        size = 1
        while size < len(offsets) and offsets[size] == size * stride:
            size += 1
        if stride < 1 or len(offsets) % size:
            return None
        inner = [step * stride for step in range(size)]
        outer = offsets[::size]
        if [base + step for base in outer for step in inner] != offsets:
            return None
        dims.append((size, stride))
        offsets = list(outer)
    return tuple(dims) or ((1, 1),)


def _describes(family: ProcessGroup, groups: Sequence[Members]) -> bool:
    # A member is its base plus the offset of its index, so equal indices mean equal bases: linear in ranks.
    described = all(
        family.contains(members[0])
        and family.ranks_of(members[0]) == members
        and all(family.contains(rank) and family.index_of(rank) == i for i, rank in enumerate(members))
        for members in groups
    )
    num_described = 1
    for size, _ in family.base_dims:
        num_described *= size
    return described and num_described == len(groups)
