"""What each class of layers does on two levels, and how tables are placed: section ``strategy``.

Note [Two levels]
    A strategy is a word for each level, inside a group of ``local`` GPUs and between such groups
    ("fsdp.ddp"), or one word for both ("ddp").  "ddp": parameters whole, gradients added up; "fsdp":
    parameters in shards, gathered for each layer and pass; "tp": products split, samples of the level's ranks
    gathered before them (MAD-Max, arXiv 2310.02784, section 4); "mp": each rank has tables, or experts, of
    its own, and samples travel to them.  Tables take "mp" and "ddp", experts "mp", "ddp" and "fsdp".
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from simcore.errors import InputError, nearest
from simcore.records import dataclass
from workloads.models.frozen import Frozen, RowsOrNone
from workloads.models.pieces import LayerClass
from workloads.parallel.table_plans import read_plan

Word = Literal["ddp", "fsdp", "tp", "mp"]

#: Words that a class of layers may have at a level.
WORDS: Final[dict[LayerClass, tuple[Word, ...]]] = {
    "embedding": ("mp", "ddp"),
    "dense": ("ddp", "fsdp", "tp"),
    "transformer": ("ddp", "fsdp", "tp"),
    "expert": ("mp", "ddp", "fsdp"),
}

#: How tables may be placed where no plan says it table by table.
Placement = Literal[
    "auto",
    "balanced",
    "hierarchical",
    "hybrid",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "grid_shard",
    "data_parallel",
]


class StrategySpec(Frozen):
    """Strategies of classes of layers (Note [Two levels]), "" for the job's own sharding.

    ``local``: GPUs of the inner level; 0: those of a node.  ``tables``: how tables are placed over the ranks
    that "mp" splits them over; ``plan``: a file that says it table by table, as TorchRec writes plans.
    ``copied_rows``: tables of fewer rows are on every rank.  ``room_bytes``: of a rank for tables (0: no
    limit), which "auto" keeps to.
    """

    embedding: str = ""
    dense: str = ""
    transformer: str = ""
    expert: str = ""
    local: RowsOrNone = 0
    tables: Placement = "auto"
    plan: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    copied_rows: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    room_bytes: Annotated[float, Field(ge=0, le=1e15)] = 30e9

    @field_validator("embedding", "dense", "transformer", "expert")
    @classmethod
    def _words(cls, value: str, info: object) -> str:
        if value:
            levels_of(getattr(info, "field_name", "dense"), value)
        return value

    def words(self, of: LayerClass) -> tuple[Word, Word] | None:
        """Words of a class inside and between groups; None where the job's own sharding holds."""
        said = str(getattr(self, of))
        return levels_of(of, said) if said else None

    @field_validator("plan", mode="before")
    @classmethod
    def _of_file(cls, value: object) -> object:
        """A file's name is the plan that it holds."""
        return read_plan(Path(value)) if isinstance(value, str) and value else value or ()

    @property
    def has_levels(self) -> bool:
        """Whether tables are the only ones with a strategy of their own."""
        return bool(self.dense or self.transformer or self.expert)

    @property
    def is_said(self) -> bool:
        """Whether any class has a strategy of its own."""
        return bool(self.embedding) or self.has_levels


@dataclass(frozen=True)
class Levels:
    """Groups over which ranks share a class of layers, "" where they do not, and how many members each has.

    ``products``: of tensor parallelism; ``owners``: of experts; ``shards``: of FSDP; ``replicas``: ranks that
    hold the same.
    """

    products: str = ""
    owners: str = ""
    shards: str = ""
    replicas: str = ""
    num_products: int = 1
    num_owners: int = 1
    num_shards: int = 1


def groups_of(words: tuple[Word, Word], local: int, ranks: int) -> Levels:
    """Who shares what by the words of a class, on ``ranks`` in groups of ``local``."""
    sizes = (local, ranks // local)

    def group(taken: Iterable[Word]) -> tuple[str, int]:
        over = tuple(level for level in (0, 1) if words[level] in taken and sizes[level] > 1)
        size = 1
        for level in over:
            size *= sizes[level]
        return "" if size == 1 else "world" if size == ranks else ("intra", "inter")[over[0]], size

    products, num_products = group(("tp",))
    owners, num_owners = group(("mp",))
    shards, num_shards = group(("fsdp",))
    return Levels(products, owners, shards, group(("ddp",))[0], num_products, num_owners, num_shards)


def levels_of(of: LayerClass, said: str) -> tuple[Word, Word]:
    """The two words of ``said``.  InputError for words that the class does not take, with the nearest."""
    parts = said.lower().split(".")
    parts = parts * 2 if len(parts) == 1 else parts
    known = WORDS[of]
    wrong = next((part for part in parts if part not in known), "")
    if len(parts) != 2 or wrong:
        near = nearest(wrong or said, known)
        raise InputError(
            f"strategy.{of}={said!r}: one or two of {', '.join(known)}, as in {known[-1]}.{known[0]}{near}"
        )
    found: dict[str, Word] = {word: word for word in known}
    return found[parts[0]], found[parts[1]]
