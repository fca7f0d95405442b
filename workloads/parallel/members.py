"""Ranks that run the same program: all, unless tables lie on some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from workloads.models.listed import BlockModel, module_of
from workloads.models.lookups import TablesSpec
from workloads.models.tables import TableSpec, TablesView, row_bytes, whole_view
from workloads.parallel.job import Job
from workloads.parallel.placement import PlacedTable, check_plan, expanded, placed, views
from workloads.parallel.strategy import StrategySpec, Word

Views = tuple[tuple[str, TablesView], ...]


def members_of(job: Job) -> list[tuple[list[int], Job]]:
    """Ranks that hold the same, each with the job as they see it.  InputError for plans that cannot be."""
    ranks = job.parallel.world_size
    blocks = tables_of(job)
    if not blocks or ranks == 1:
        return [(list(range(ranks)), job)]
    found: dict[Views, list[int]] = {}
    per_rank = [
        _views(name, block, ranks, job.parallel.strategy, job.mesh.local_ranks, job.training.micro_batch)
        for name, block in blocks
    ]
    for rank in range(ranks):
        seen = tuple((name, view[rank]) for (name, _), view in zip(blocks, per_rank, strict=True))
        found.setdefault(seen, []).append(rank)
    return [(own, replace(job, views=seen)) for seen, own in found.items()]


def tables_of(job: Job) -> list[tuple[str, TablesSpec]]:
    """Blocks of tables by the names of their modules."""
    if not isinstance(job.model, BlockModel):
        return []
    return [
        (module_of(number, block), block)
        for number, block in enumerate(job.model.blocks)
        if isinstance(block, TablesSpec)
    ]


def plan_of(
    name: str, block: TablesSpec, num_ranks: int, strategy: StrategySpec, local: int
) -> list[PlacedTable]:
    """Which of ``num_ranks`` hold which table of a block."""
    tables = expanded(block.tables)
    if strategy.plan:
        numbers = {one.name or f"{name}.{k}": k for k, one in enumerate(tables)}
        plan = [
            PlacedTable(numbers[table], how, ranks) for table, how, ranks in strategy.plan if table in numbers
        ]
        check_plan(tables, plan, num_ranks, local)
        return plan
    return placed(
        tables, num_ranks, strategy.tables, local=local, copied_rows=strategy.copied_rows,
        row_bytes=row_bytes(block.dtype), room=strategy.room_bytes,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _views(
    name: str, block: TablesSpec, ranks: int, strategy: StrategySpec, local: int, samples: int
) -> Sequence[TablesView]:
    words: tuple[Word, Word] = strategy.words("embedding") or ("mp", "mp")
    nodes = max(1, ranks // local)
    inner = "intra" if local < ranks else "world"
    if words == ("ddp", "ddp"):
        return [whole_view(block.tables, copied=True)] * ranks
    tables: Sequence[TableSpec] = expanded(block.tables)
    if words == ("mp", "mp"):
        plan = plan_of(name, block, ranks, strategy, local)
        return views(
            tables, plan, ranks, local=local, groups=("world", inner, "inter"), samples=samples,
            popularity=block.popularity,
        )  # fmt: skip
    if words == ("mp", "ddp"):
        plan = plan_of(name, block, local, strategy, local)
        return views(tables, plan, local, local=local, groups=(inner, inner, "")) * nodes
    plan = plan_of(name, block, nodes, strategy, 1)
    once = views(tables, plan, nodes, local=1, groups=("inter", "", "inter"))
    return [once[rank // local] for rank in range(ranks)]
