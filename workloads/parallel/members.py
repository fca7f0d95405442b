"""Ranks that run the same program: all, unless tables lie on some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from simcore.elementary import plain_sum
from simcore.errors import InputError
from simcore.units import GIB
from workloads.models.listed import BlockModel, module_of
from workloads.models.lookups import TablesSpec
from workloads.models.tables import TablesView, row_bytes, whole_view
from workloads.parallel.job import Job
from workloads.parallel.placement import PlacedTable, check_plan, expanded, placed
from workloads.parallel.strategy import StrategySpec, Word
from workloads.parallel.table_views import popular_rows, views

Views = tuple[tuple[str, TablesView], ...]


def members_of(job: Job) -> list[tuple[list[int], Job]]:
    """Ranks that hold the same, each with the job as they see it.  InputError for plans that cannot be."""
    ranks = job.parallel.world_size
    blocks = tables_of(job)
    if not blocks or ranks == 1:
        return [(list(range(ranks)), job)]
    strategy = job.parallel.strategy.model_copy(update=dict.fromkeys(("dense", "transformer", "expert"), ""))
    kinds = _kinds(tuple(blocks), ranks, strategy, job.mesh.local_ranks, job.training.micro_batch)
    return [(list(own), replace(job, views=seen)) for own, seen in kinds]


@lru_cache(maxsize=64)
def _kinds(
    blocks: tuple[tuple[str, TablesSpec], ...], ranks: int, strategy: StrategySpec, local: int, samples: int
) -> Sequence[tuple[tuple[int, ...], Views]]:
    """Ranks that hold the same, with what they hold."""
    per_rank = [_views(name, block, ranks, strategy, local, samples) for name, block in blocks]
    found: dict[Views, list[int]] = {}
    for rank in range(ranks):
        seen = tuple((name, view[rank]) for (name, _), view in zip(blocks, per_rank, strict=True))
        found.setdefault(seen, []).append(rank)
    return [(tuple(own), seen) for seen, own in found.items()]


def busiest_of(job: Job, most: int) -> list[tuple[int, Job]]:
    """A rank of each of the ``most`` kinds of members that look up most columns, and the job as it sees it.

    A job without tables is as every rank sees it.  InputError for plans that cannot be.
    """

    def columns(own: Job) -> float:
        held = [one for _, view in own.views for one in view.held]
        return plain_sum(one.count * one.lookups * one.ways * one.dim for one in held)

    found = sorted(members_of(job), key=lambda member: (-columns(member[1]), member[0][0]))
    return [(ranks[0], own) for ranks, own in found[:most]]


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
        # As a model names them, by number, or as TorchRec's DLRM names Criteo's.
        numbers = {
            said: k for k, one in enumerate(tables) for said in (one.name or f"{name}.{k}", f"t_cat_{k}")
        }
        plan = [
            PlacedTable(numbers[table], how, ranks) for table, how, ranks in strategy.plan if table in numbers
        ]
        if not plan:
            known, strange = next(iter(numbers)), strategy.plan[0][0]
            raise InputError(f"plan: it has {strange!r} and no table of {name}; nearest: {known!r}")
        check_plan(tables, plan, num_ranks, local)
        return plan
    return placed(
        tables, num_ranks, strategy.tables, local=local, copied_rows=strategy.copied_rows,
        row_bytes=row_bytes(block.dtype), room=strategy.room_bytes,
    )  # fmt: skip


def fullest_tables(job: Job) -> list[str]:
    """Of the rank whose tables are largest in HBM: how much they are, and the largest of them by name."""
    blocks = [(name, block) for name, block in tables_of(job) if block.memory == "hbm"]
    if not blocks:
        return []
    ranks, local, strategy = job.parallel.world_size, job.mesh.local_ranks, job.parallel.strategy
    holders, group = (ranks, local) if strategy.embedding in ("", "mp", "mp.mp") else (0, 0)
    held: dict[int, list[tuple[float, str]]] = {}
    for name, block in blocks:
        tables = expanded(block.tables)
        plan = plan_of(name, block, holders, strategy, group) if holders > 1 else [
            PlacedTable(k, "data_parallel") for k in range(len(tables))
        ]  # fmt: skip
        for one in plan:
            table = tables[one.table]
            rows = table.rows / (len(one.ranks) or 1)
            if one.how == "hybrid":
                often = popular_rows(table, ranks, local, job.training.micro_batch, block.popularity)
                rows = often + (table.rows - often) / ranks
            size = rows * table.dim * row_bytes(block.dtype)
            title = table.name or f"{name}.{one.table}"
            said = f"{title} ({table.rows:,} x {table.dim} in {block.dtype}, {one.how}: {size / GIB:.2f} GiB)"
            for rank in one.ranks or range(ranks):
                held.setdefault(rank, []).append((size, said))
    rank, most = max(held.items(), key=lambda item: plain_sum(size for size, _ in item[1]))
    total = plain_sum(size for size, _ in most) / GIB
    largest = max(most, key=lambda one: one[0])[1]
    return [f"tables of rank {rank}: {total:.2f} GiB in {len(most)} tables or parts, the largest {largest}"]


def _views(
    name: str, block: TablesSpec, ranks: int, strategy: StrategySpec, local: int, samples: int
) -> Sequence[TablesView]:
    words: tuple[Word, Word] = strategy.words("embedding") or ("mp", "mp")
    nodes = ranks // local
    sizes = (local, nodes)
    over = [level for level in (0, 1) if words[level] == "mp" and sizes[level] > 1]
    if not over:
        return [whole_view(block.tables, copied=True)] * ranks
    inner = "intra" if nodes > 1 else "world"
    outer = "inter" if local > 1 else "world"
    holders, group_ranks = (
        (ranks, local) if len(over) == 2 else (sizes[over[0]], local if over[0] == 0 else 1)
    )
    plan = plan_of(name, block, holders, strategy, group_ranks)
    every = "world" if len(over) == 2 else (inner, outer)[over[0]]
    found = views(
        expanded(block.tables), plan, holders, local=group_ranks, groups=(every, inner, outer),
        samples=samples, popularity=block.popularity,
    )  # fmt: skip
    if len(over) == 2:
        return found
    if over == [0]:
        return [replace(one, copies=outer if nodes > 1 else "") for one in found] * nodes
    return [replace(found[rank // local], copies=inner if local > 1 else "") for rank in range(ranks)]
