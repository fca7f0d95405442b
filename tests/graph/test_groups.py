"""Process groups as strides say the same as groups listed one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.graph import ProcessGroup


@st.composite
def mixed_radix(draw):
    """(sizes, which of them are group dims, offset): a world cut into axes, some of them the group's."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    members = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return sizes, members, draw(st.integers(0, 3))


def strided(sizes, members, offset):
    stride, dims, base = 1, [], []
    for size, member in zip(sizes, members, strict=True):
        (dims if member else base).append((size, stride))
        stride *= size
    return ProcessGroup("g", tuple(dims), tuple(base), offset), stride


@given(mixed_radix())
def test_strides_equal_the_explicit_list(case):
    group, world = strided(*case)
    offset = case[2]
    explicit = tuple({group.ranks_of(rank): None for rank in range(offset, offset + world)})
    listed = ProcessGroup("g", ((group.size, 1),), explicit=explicit)
    for rank in range(offset, offset + world):
        assert rank in group.ranks_of(rank)
        assert len(set(group.ranks_of(rank))) == group.size
        assert group.ranks_of(rank) == listed.ranks_of(rank)
        assert group.index_of(rank) == listed.index_of(rank) == group.ranks_of(rank).index(rank)


@given(mixed_radix())
def test_groups_partition_their_ranks(case):
    group, world = strided(*case)
    offset = case[2]
    families = {group.ranks_of(rank) for rank in range(offset, offset + world)}
    assert sorted(rank for members in families for rank in members) == list(range(offset, offset + world))
    for outside in (offset - 1, offset + world):
        assert not group.contains(outside)


def test_inner_dims_vary_fastest():
    # dp_cp of a world of tp=2, cp=2, dp=2: members of rank 0 are 0 + 2 i + 4 j.
    group = ProcessGroup("dp_cp", ((2, 2), (2, 4)), ((2, 1),))
    assert group.ranks_of(1) == (1, 3, 5, 7)
    assert group.index_of(5) == 2


def test_strangers_are_refused():
    first_and_last = ProcessGroup("embd", ((2, 88),), ((8, 1),))
    assert first_and_last.ranks_of(91) == (3, 91)
    with pytest.raises(InputError, match="rank 40 is in no process group 'embd'"):
        first_and_last.ranks_of(40)
    with pytest.raises(InputError, match="size 0"):
        ProcessGroup("none", ((0, 1),))


def test_a_large_group_costs_two_integers():
    group = ProcessGroup("world", ((131_072, 1),))
    assert group.size == 131_072
    assert group.index_of(131_071) == 131_071
