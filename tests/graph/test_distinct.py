"""Different values, by sorting: what numpy finds."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.distinct import among, distinct, distinct_columns


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_found_is_what_numpy_finds(size: int) -> None:
    random = np.random.default_rng(size)
    values, others = random.integers(-5, 9, size), random.integers(-5, 5, size // 2)
    table = random.integers(0, 3, (3, size))
    assert distinct(values).tolist() == np.unique(values).tolist()
    assert distinct_columns(table).tolist() == np.unique(table, axis=1).tolist()
    assert among(values, others).tolist() == np.isin(values, others).tolist()
