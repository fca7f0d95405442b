"""Columns of texts and numbers: told apart, and with their values in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.graph.ops import Strings, first_rows, told_apart

WORDS = st.lists(st.sampled_from(["", "a", "b", "c"]))


@given(WORDS, WORDS)
def test_canonical_is_as_encoded(words: list[str], others: list[str]) -> None:
    whole = Strings.encode([*others, *words])
    rows = whole.take(np.arange(len(others), len(whole)))
    found, wanted = rows.canonical(), Strings.encode(words)
    assert found.values == wanted.values
    assert found.codes.dtype == np.int32
    np.testing.assert_array_equal(found.codes, wanted.codes)


@pytest.mark.parametrize("stretch", [1, 1 << 50])  # close together, and far apart
@given(st.lists(st.integers(-5, 5)))
def test_told_apart_as_sorting_does(stretch: int, values: list[int]) -> None:
    column = np.array(values, dtype=np.int64) * stretch
    distinct, number = told_apart(column)
    wanted, inverse = np.unique(column, return_inverse=True)
    np.testing.assert_array_equal(distinct, wanted)
    np.testing.assert_array_equal(number, inverse.reshape(-1))
    firsts = first_rows(number, len(distinct) + 1)
    assert firsts.tolist() == [*(values.index(int(one) // stretch) for one in distinct), len(values)]
