"""Arrow arrays over numpy's memory, and back.

``pyarrow.array`` and ``to_numpy`` ask pandas what they are given, and to ask import it: a third of the time
that a small run takes to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[Any]) -> pa.Array:
    """A column of integers or floats, no copy where they lie in one piece."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts(values: Sequence[str]) -> pa.Array:
    """A column of text."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def values_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column of numbers without nulls as numpy, no copy where it lies in one piece."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dtype = np.dtype(column.type.to_pandas_dtype())
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype=dtype, count=len(chunk), offset=chunk.offset * dtype.itemsize)
        for chunk in chunks
        if len(chunk)
    ]
    if not parts:
        return np.zeros(0, dtype=dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
