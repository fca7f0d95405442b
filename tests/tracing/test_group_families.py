"""Process groups as strides: what was made comes back, whatever its shape."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import GraphError
from workloads.tracing.fake.group_names import described_family
from workloads.tracing.record.group_families import check_members, fit_family, used_families


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_groups_over_any_axes_of_a_mesh(sizes: list[int], data: st.DataObject) -> None:
    strides = [1]
    for size in sizes[:-1]:
        strides.append(strides[-1] * size)
    axes = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    inside = [k for k in range(len(sizes)) if k in axes]
    outside = [k for k in range(len(sizes)) if k not in axes]

    def ranks(chosen: list[int]) -> list[int]:
        # product() runs its last factor fastest, ranks their first axis
        steps = product(*(range(sizes[k]) for k in reversed(chosen)))
        return [sum(i * strides[k] for i, k in zip(step, reversed(chosen), strict=True)) for step in steps]

    groups = [tuple(base + member for member in ranks(inside)) for base in ranks(outside)]
    family = fit_family("axes", groups)
    assert family.explicit == ()  # no mesh needs a list
    assert sorted({family.ranks_of(group[0]) for group in groups}) == sorted(groups)
    for group in groups:
        for index, rank in enumerate(group):
            assert family.index_of(rank) == index


def test_embedding_groups_join_first_and_last_stage() -> None:
    family = fit_family("embd", [(tp, tp + 88) for tp in range(8)])
    assert family.dims == ((2, 88),) and family.base_dims == ((8, 1),)
    assert not family.contains(40)


def test_groups_without_strides_are_listed() -> None:
    family = fit_family("odd", [(0, 1, 5), (2, 3, 4)])
    assert family.explicit == ((0, 1, 5), (2, 3, 4))
    assert family.ranks_of(5) == (0, 1, 5) and family.size == 3


def test_disagreement_is_an_error() -> None:
    with pytest.raises(GraphError, match="differ in size or overlap"):
        fit_family("bad", [(0, 1), (1, 2)])
    with pytest.raises(GraphError, match="rank 1 recorded process group 'tp'"):
        check_members(fit_family("tp", [(0, 1), (2, 3)]), 1, (1, 2))


def test_only_used_families_are_kept() -> None:
    made = [("tp", (0, 1)), ("tp", (2, 3)), ("dp", (0, 2)), ("dp", (1, 3))]
    families = used_families(made, ["dp", "world"], 4)
    assert sorted(families) == ["dp", "world"]
    assert families["world"].ranks_of(3) == (0, 1, 2, 3) and families["dp"].ranks_of(3) == (1, 3)


def test_symbols() -> None:
    assert described_family("TENSOR_MODEL_PARALLEL_GROUP") == "tp"
    assert described_family("SOME_OTHER_GROUP") == "some_other"
