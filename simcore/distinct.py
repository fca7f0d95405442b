"""Different values of an array, and which values are among others, by sorting.

``np.unique`` and ``np.isin`` ask for masked arrays, which take a run 12 to 17 ms to import, and from numpy
2.3 on for a hash table: 500 ms of CPU for 700,000 numbers that all differ, sorting 37.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.integer[Any])


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Different ``values``, ascending: ``np.unique`` of whole numbers in one dimension."""
    ordered = np.sort(values)
    found: npt.NDArray[Number] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


def distinct_columns(table: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Different columns of ``table``, in order of their rows: ``np.unique`` along axis 1."""
    ordered = table[:, np.lexsort(table[::-1])]
    differs = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    return ordered[:, np.append(True, differs)[: ordered.shape[1]]]


def among(values: npt.NDArray[Number], others: npt.NDArray[Number]) -> npt.NDArray[np.bool_]:
    """Of each of ``values`` whether it is one of ``others``: ``np.isin`` of whole numbers."""
    if not len(others):
        return np.zeros(len(values), dtype=np.bool_)
    ordered = np.sort(others)
    at = np.searchsorted(ordered, values)
    found: npt.NDArray[np.bool_] = ordered[np.minimum(at, len(ordered) - 1)] == values
    return found
