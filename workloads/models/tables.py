"""Embedding tables: what they are, what a rank holds of them, and what ranks exchange."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import Field

from simcore.records import dataclass
from workloads.models.frozen import Frozen, Width
from workloads.models.tensors import ELEMENT_BYTES, Tensor

TableDtype = Literal["fp32", "fp16", "bf16", "int8"]
#: torch's names of them.
WIDE_NAMES: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


class TableSpec(Frozen):
    """A table of ``rows`` vectors of ``dim``; a sample looks up ``pooling`` rows, which are added up.

    ``count``: so many tables alike.  ``name``: as a plan calls it ("" for its number).
    """

    rows: Annotated[int, Field(gt=0, le=1 << 40)]
    dim: Width = 128
    pooling: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    count: Annotated[int, Field(gt=0, le=1 << 16)] = 1
    name: Annotated[str, Field(max_length=200)] = ""


@dataclass(frozen=True, order=True)
class HeldTable:
    """What a rank has of ``count`` tables alike: rows, columns, and what is looked up there.

    ``lookups``: of a sample, among its rows, in each table.  ``ways``: the samples of how many ranks are
    looked up here.  ``partial``: sums over its rows alone, which others have to be added to; ``alone``: rows
    leave one by one.
    """

    rows: int
    dim: int
    lookups: float
    ways: int = 1
    partial: bool = False
    alone: bool = False
    count: int = 1

    @property
    def numel(self) -> int:
        """Elements."""
        return self.count * self.rows * self.dim

    @property
    def handed_out(self) -> float:
        """Elements of what is looked up, for one sample of a rank."""
        each = self.lookups if self.alone else 1.0
        return self.count * self.dim * self.ways * each


@dataclass(frozen=True)
class Exchange:
    """What ranks exchange around lookups: ``collective`` over ``group``.

    ``elements``: of a rank's batch of one sample, of what an average rank hands to the collective.
    """

    collective: str
    group: str
    elements: float


@dataclass(frozen=True)
class TablesView:
    """What one rank holds of a block's tables, and what it exchanges with others.

    ``held``: looked up here and not held by others.  ``copied``: whole on every rank; their gradients are
    added up.  ``keys``: keys on their way to where their rows are, per sample.  ``rows_out``: sums of rows on
    their way back, in the order in which they go; gradients go the same way in reverse.  ``copies``: the
    group whose members hold the same, and average it behind each step (TorchRec's DMPCollection.sync).
    """

    held: tuple[HeldTable, ...] = ()
    copied: tuple[HeldTable, ...] = ()
    keys: tuple[Exchange, ...] = ()
    rows_out: tuple[Exchange, ...] = ()
    copies: str = ""

    @property
    def is_split(self) -> bool:
        """Whether ranks exchange anything."""
        return bool(self.rows_out)


def whole_view(tables: Iterable[TableSpec], *, copied: bool = False) -> TablesView:
    """Every table on one rank, or a copy of each on all."""
    held = merged(HeldTable(one.rows, one.dim, one.pooling, count=one.count) for one in tables)
    return TablesView(copied=held) if copied else TablesView(held=held)


def merged(held: Iterable[HeldTable]) -> tuple[HeldTable, ...]:
    """Equal ones counted together, in order."""
    counts: dict[HeldTable, int] = {}
    for one in held:
        key = HeldTable(one.rows, one.dim, one.lookups, one.ways, one.partial, one.alone)
        counts[key] = counts.get(key, 0) + one.count
    return tuple(
        HeldTable(key.rows, key.dim, key.lookups, key.ways, key.partial, key.alone, count)
        for key, count in sorted(counts.items())
    )


def weights_of(held: Iterable[HeldTable], dtype: str) -> list[Tensor]:
    """Tensors of what is held."""
    return [
        Tensor((one.count, one.rows, one.dim) if one.count > 1 else (one.rows, one.dim), dtype)
        for one in held
    ]


def keys_of_batch(held: Iterable[HeldTable], batch: int) -> list[Tensor]:
    """Lists of keys that are looked up for ``batch`` samples of a rank."""
    return [Tensor((max(1, round(one.count * one.lookups * one.ways * batch)),), "int64") for one in held]


def row_bytes(dtype: TableDtype) -> int:
    """Bytes of an element."""
    return ELEMENT_BYTES[WIDE_NAMES[dtype]]
