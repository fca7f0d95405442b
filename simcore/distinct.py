"""Different values of a large array, by sorting."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Different ``values``, ascending: ``np.unique`` of whole numbers in one dimension.

    From numpy 2.3 on that asks a hash table: 500 ms of CPU for 700,000 numbers that all differ, sorting 37.
    """
    ordered = np.sort(values)
    found: npt.NDArray[np.int64] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found
