"""Links and routes of a cluster, as data.

A link is directed; its name is stable and can be used in ``--set link.<name>.bytes_per_s=...``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Links:
    """All directed links, columnar.  Names: ``nvlink.<gpu>.out``, ``nic.<node>.<n>.in``, ``leaf.<l>.up``."""

    names: tuple[str, ...]
    bytes_per_s: npt.NDArray[np.float64]  # usable by data, efficiency applied
    latency_s: npt.NDArray[np.float64]
