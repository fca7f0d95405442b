"""Echo's white box of a tree all_reduce on 32 H800: what its published columns say, and what they do not.

Note [Echo's table 6]
    Echo (arXiv 2412.12487, table 6) lists for seven tensors the chunk that NCCL cuts, a round trip within the
    node, one between the nodes, and the time of the reductions.  Its white box adds them up: a first chunk
    travels down the chain of a node and up the tree of nodes and back, the rest of the tensor follows.

    The stages here have that meaning, with chunks as :func:`simcore.collectives.protocols.tree_chunking` cuts
    them: a round trip is a latency per hop and the time of its chunk, forwarded line by line within a node (a
    chunk up, one down) and stored at every hop between nodes; the reductions are a start and a rate.  Six
    numbers describe 21 columns.
"""

from __future__ import annotations

import textwrap
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from simcore.collectives.protocols import LL128, tree_chunking
from simcore.collectives.tree import double_binary_tree
from simcore.records import dataclass

FloatArray = npt.NDArray[np.float64]

NUM_NODES: Final = 4
GPUS_PER_NODE: Final = 8
#: NCCL's channels over eight NICs of 400 Gb/s.
CHANNELS: Final = 16
#: Megabytes (10^6 bytes), then microseconds: round trip in the node, between nodes, reductions.
TABLE_6: Final = (
    (4, 57.43, 54.3, 50.14),
    (8, 64.36, 72.32, 65.86),
    (16, 73.62, 106.73, 102.46),
    (32, 74.61, 112.9, 219.89),
    (64, 77.46, 111.25, 463.43),
    (128, 75.55, 174.2, 841.71),
    (256, 99.23, 278.98, 1657.72),
)
#: Errors below this count squared, above it by their absolute value.
_SOFT: Final = 0.03


@dataclass(frozen=True)
class WhiteBoxStage:
    """One column: ``start_us`` and a rate, bytes/us, of what the column moves."""

    start_us: float
    bytes_per_us: float


@dataclass(frozen=True)
class WhiteBox:
    """Echo's three stages.  ``within`` and ``between`` move a chunk, ``reductions`` the tensor."""

    within: WhiteBoxStage
    between: WhiteBoxStage
    reductions: WhiteBoxStage

    @property
    def nvlink_hop_us(self) -> float:
        """Latency of one of the 2 (K-1) hops of a chain of K GPUs, up and down."""
        return self.within.start_us / (2 * (GPUS_PER_NODE - 1))

    @property
    def network_hop_us(self) -> float:
        """Latency of one of the hops up and down the deeper tree of nodes."""
        return self.between.start_us / (2 * max(tree.depth for tree in double_binary_tree(NUM_NODES)))

    def columns_us(self, num_bytes: int) -> tuple[float, float, float]:
        """Round trip in the node, between nodes, and reductions of a tensor."""
        chunk = chunk_bytes(num_bytes)
        moved = ((self.within, chunk), (self.between, chunk), (self.reductions, num_bytes))
        first, second, third = (stage.start_us + size / stage.bytes_per_us for stage, size in moved)
        return first, second, third


def chunk_bytes(num_bytes: int) -> int:
    """The chunk that NCCL cuts for a tree under LL128 on these nodes."""
    ranks = NUM_NODES * GPUS_PER_NODE
    depth = GPUS_PER_NODE - 1 + max(tree.depth for tree in double_binary_tree(NUM_NODES))
    return tree_chunking(LL128, num_bytes, ranks, NUM_NODES, CHANNELS, depth).chunk_bytes


def fit_white_box() -> WhiteBox:
    """The three stages that come closest to the table, all sizes at once, each row counting the same."""
    sizes = np.array([row[0] * 1e6 for row in TABLE_6])
    chunks = np.array([float(chunk_bytes(row[0] * 10**6)) for row in TABLE_6])
    columns = [np.array([row[k] for row in TABLE_6]) for k in (1, 2, 3)]
    return WhiteBox(*(_fitted(x, y) for x, y in zip((chunks, chunks, sizes), columns, strict=True)))


def _fitted(moved: FloatArray, measured_us: FloatArray) -> WhiteBoxStage:
    start = np.array([measured_us[0] / 2, measured_us[-1] / moved[-1]])

    def log_errors(x: FloatArray) -> FloatArray:
        errors: FloatArray = np.log((start[0] * x[0] + start[1] * x[1] * moved) / measured_us)
        return errors

    result = least_squares(log_errors, np.ones(2), bounds=(1e-3, 1e3), loss="soft_l1", f_scale=_SOFT)
    found = result.x * start
    return WhiteBoxStage(float(found[0]), float(1.0 / found[1]))


def table_6_lines() -> list[str]:
    """The table beside the white box: total of the columns and each of them, errors in percent."""
    box = fit_white_box()
    lines = [
        "all_reduce of 32 H800 by Echo's white box (arXiv 2412.12487, table 6)",
        f"{'MB':>6}{'chunk':>9}{'table us':>11}{'us':>9}{'total %':>9}{'in node':>9}{'between':>9}"
        f"{'reduce':>9}",
    ]
    for megabytes, *measured in TABLE_6:
        columns = box.columns_us(megabytes * 10**6)
        total, table = sum(columns), sum(measured)
        errors = [100 * (a / b - 1) for a, b in zip((total, *columns), (table, *measured), strict=True)]
        lines.append(
            f"{megabytes:6}{chunk_bytes(megabytes * 10**6):9}{table:11.1f}{total:9.1f}"
            + "".join(f"{error:9.1f}" for error in errors)
        )
    lines += textwrap.wrap(
        f"hops of {box.nvlink_hop_us:.1f} us in the node and {box.network_hop_us:.1f} us between nodes;"
        f" chunks at {2e-3 * box.within.bytes_per_us:.1f} and {4e-3 * box.between.bytes_per_us:.1f} GB/s per"
        f" channel; reductions at {1e-3 * box.reductions.bytes_per_us:.0f} GB/s",
        78,
    )
    return lines
