"""Kernels of lookups in tables and of their updates; see Note [Lookups] of ``kinds/tables.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field

from workloads.models.listed import BlockSpec, Passage
from workloads.models.op_tape import Op, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tables import (
    HeldTable,
    TableDtype,
    TableSpec,
    TablesView,
    keys_of_batch,
    weights_of,
)
from workloads.models.tensors import Tensor, compute

#: What names of tensors beside the main stream begin with where tables left them.
LEFT: Final = "tables:"
#: Values in fp32 that an optimizer keeps of a row of ``dim``: all columns, or one.
STATES: Final = {"adam": (2, 0), "adagrad": (1, 0), "momentum": (1, 0), "rowwise_adagrad": (0, 1)}


class TablesSpec(BlockSpec):
    """Tables, each looked up by every sample.

    ``dtype`` of weights; ``popularity``: the exponent by which rows are popular (Zipf; 0: all alike).
    ``optimizer``: "" as the model's, or one of its own.  ``memory``: where rows lie: "hbm", or in the host's
    memory with a ``cached`` share of them, the popular ones, in HBM ("uvm").
    """

    tables: tuple[TableSpec, ...]
    dtype: TableDtype = "fp32"
    popularity: Annotated[float, Field(ge=0, le=4)] = 0.0
    optimizer: Literal["", "sgd", "adagrad", "rowwise_adagrad", "adam", "momentum"] = ""
    memory: Literal["hbm", "uvm"] = "hbm"
    cached: Annotated[float, Field(ge=0, le=1)] = 0.0


def sorted_out(at: Passage, spec: TablesSpec, view: TablesView) -> list[KernelLaunch]:
    """Where the rows of the whole batch lie, and which of them are wanted here: a look at each key's place.

    HugeCTR's hybrid embedding: indices of popular and other rows, of what is looked up and what is sent
    (embeddings/hybrid_embedding/*_embedding_functors: cub::DeviceSelect six times, each of two kernels).
    """
    ways = max(one.ways for one in view.held)
    keys = Tensor((round(sum(one.pooling * one.count for one in spec.tables) * ways * at.batch),), "int32")
    rows = sum(one.rows * one.count for one in spec.tables)
    places = compute(
        _named(at, spec, "table_lookup"), [Tensor((rows, 2), "int32"), keys], [keys], op_class="lookup_fwd",
        module=at.module,
    )  # fmt: skip
    select = compute("key_select", [keys, keys], [keys], op_class="elementwise", module=at.module)
    return [replace(places, dtype="float32"), *[select] * 12]


def lists_kept(at: Passage, keys: Sequence[Tensor], groups: int) -> list[KernelLaunch]:
    """What came ahead is copied before the next batch comes: keys, how many, and where each bag's begin.

    HugeCTR/src/embeddings/embedding_collection.cpp, cache_ddl_output: four copies for tables on some GPUs,
    and for those on all; then offsets and addresses of rows are found (two kernels).
    """
    whole = Tensor((sum(key.numel for key in keys),), at.shard.software.key_dtype)
    one = Tensor((1,), at.shard.software.key_dtype)
    found = compute("key_lists", [whole], [whole], op_class="copy", module=at.module)
    small = compute("key_lists", [one], [one], op_class="copy", module=at.module)
    return [found, replace(small, launches=4 * groups - 1), replace(found, launches=2)]


def _named(at: Passage, spec: TablesSpec, kernel: str) -> str:
    """A kernel's name with what its cost depends on beside shapes."""
    far = f".uvm={spec.cached:g}" if spec.memory == "uvm" else ""
    own = at.shard.software.table_kernels
    whose = "" if own == "even" else f".{own}"
    return f"{kernel}{whose}{f'.zipf={spec.popularity:g}' if spec.popularity else ''}{far}"


def lookups(
    at: Passage, spec: TablesSpec, held: Sequence[HeldTable], dtype: str, wire: str
) -> list[KernelLaunch]:
    """One kernel for all tables, or one for each."""
    how = at.shard.software.lookup_kernels
    if how == "grouped":
        kernels = [_lookup(at, spec, held, dtype, wire)]
    else:
        kernels = [replace(_lookup(at, spec, [one], dtype, wire), launches=one.count) for one in held]
    if how == "columns":
        kernels = [
            every for kernel, one in zip(kernels, held, strict=True) for every in _columns(at, kernel, one)
        ]
    if leaves_rows(at):  # the batch is there
        return kernels
    first, *others = kernels
    return [replace(first, host_us=at.shard.software.input_us_per_sample * at.batch), *others]


def _columns(at: Passage, kernel: KernelLaunch, one: HeldTable) -> list[KernelLaunch]:
    """Keys made sparse, sorted to find equal ones, and sums of their rows, of which empty ones are cleared.

    TensorFlow's safe_embedding_lookup_sparse (tensorflow/python/ops/embedding_ops.py).
    """
    keys = Tensor((kernel.in_shapes[-1][0] // one.count,), "int64")
    rows = Tensor((keys.numel, one.dim), "float32")
    each = [
        compute("aten::where", [keys], [keys], op_class="elementwise", module=at.module),
        compute(
            "key_sort",
            [keys, Tensor((one.rows, 1), "float32")],
            [keys],
            op_class="key_sort",
            module=at.module,
        ),
        replace(kernel, launches=1),
        compute("segment_sums", [rows, keys], [rows], op_class="reduction", module=at.module),
        compute("aten::where", [rows, rows], [rows], op_class="elementwise", module=at.module),
    ]
    return [replace(launch, launches=one.count) for launch in each]


def _lookup(at: Passage, spec: TablesSpec, held: Sequence[HeldTable], dtype: str, wire: str) -> KernelLaunch:
    keys = keys_of_batch(held, at.batch)
    out = Tensor((max(1, round(sum(one.handed_out for one in held) * at.batch)),), wire)
    kernel = compute(
        _named(at, spec, "table_lookup"), [*weights_of(held, dtype), *keys], [out], op_class="lookup_fwd",
        module=at.module,
    )  # fmt: skip
    rows = sum(round(one.dim * one.count * one.lookups * one.ways * at.batch) for one in held)
    read = Tensor((rows,), dtype).num_bytes + sum(key.num_bytes for key in keys)
    return replace(kernel, bytes_read=read, dtype=dtype)


def sorts_keys(at: Passage, spec: TablesSpec, view: TablesView) -> bool:
    """Whether an update needs its keys sorted; places of rows that are alone are known (sorted_out)."""
    optimizer = spec.optimizer or at.shard.optimizer
    atomic = at.shard.software.table_update == "atomic" and optimizer == "sgd"
    return bool(view.held) and not atomic and not any(one.alone for one in view.held)


def key_sort(at: Passage, view: TablesView, dtype: str) -> KernelLaunch:
    """Equal keys side by side."""
    count = sum(key.numel for key in keys_of_batch(view.held, at.batch))
    rows, key = sum(one.count * one.rows for one in view.held), at.shard.software.key_dtype
    fbgemm = at.shard.software.table_kernels == "fbgemm"
    return compute(
        f"key_sort{'.fbgemm' if fbgemm else ''}", [Tensor((count,), key), Tensor((rows, 1), dtype)],
        [Tensor((count,), key)], op_class="key_sort", module=at.module,
    )  # fmt: skip


def update(
    at: Passage, op: Op, spec: TablesSpec, view: TablesView, dtype: str, wire: str, *, awaits: tuple[str, ...]
) -> None:
    """What gradients of rows go through; the first of it waits for them."""
    keys, weights = keys_of_batch(view.held, at.batch), weights_of(view.held, dtype)
    gradient = Tensor((max(1, round(sum(one.handed_out for one in view.held) * at.batch)),), wire)
    if view.is_split:
        awaits = (*awaits, f"{at.module}.gradients")
    how = at.shard.software.table_update
    optimizer = spec.optimizer or at.shard.optimizer
    if how == "atomic" and optimizer != "sgd":
        how = "fused"
    launches: list[KernelLaunch] = []
    if sorts_keys(at, spec, view):
        if at.shard.software.keys_sorted == "forward":
            awaits = (*awaits, f"{at.module}.sorted")
        else:
            launches.append(key_sort(at, view, dtype))
    columns, single = STATES.get(optimizer, (0, 0))
    states = [
        Tensor((one.count * one.rows, columns * one.dim + single), "float32")
        for one in view.held
        if columns + single
    ]
    name = f"table_update.{'atomic' if how == 'atomic' else optimizer}{'.g16' if wire != 'float32' else ''}"
    launches.append(
        compute(
            _named(at, spec, name),
            [*weights, *keys, gradient],
            [*weights, *states],
            op_class="lookup_bwd",
            module=at.module,
        )
    )
    if how == "sorted":  # sums are written and read once more
        met = Tensor(
            (sum(round(one.dim * key.numel) for one, key in zip(view.held, keys, strict=True)),), "float32"
        )
        launches.append(compute("aten::_sparse_sums", [met], [met], op_class="elementwise", module=at.module))
    touched = gradient.num_bytes + sum(key.num_bytes for key in keys)
    for number, kernel in enumerate(launches):
        if kernel.op_class == "lookup_bwd":
            kernel = replace(kernel, bytes_read=touched, bytes_written=touched, dtype=dtype)
        if number == 0 and awaits:
            kernel = replace(kernel, awaits=awaits)
        op.back(kernel, "weight")


def copied(at: Passage, spec: TablesSpec, held: Sequence[HeldTable], dtype: str, wire: str) -> None:
    """Tables that every rank has: dense gradients."""
    op = at.tape.op()
    for kernel in lookups(at, spec, held, dtype, wire):
        op.launch(TapedLaunch(kernel, role="weight"))
    keys = keys_of_batch(held, at.batch)
    if at.shard.software.lookup_kernels == "grouped":
        _copied_at_once(at, op, held, keys, dtype, wire)
        return
    for number, (one, key) in enumerate(zip(held, keys, strict=True)):
        name = f"{at.module}.copied.{number}.weight"
        op.parameter(name, one.count * one.rows, one.dim)
        table = Tensor((one.count * one.rows, one.dim), "float32")
        out = Tensor((at.batch, one.count * one.dim), wire)
        op.back(compute("aten::zeros", [], [table], op_class="fill", module=name[:-7]), "weight")
        kernel = compute(
            "aten::embedding_dense_backward", [out, key], [table], op_class="embedding_bwd", module=name[:-7]
        )
        op.back(replace(kernel, bytes_written=out.num_bytes), "weight")
        op.accumulate(table.shape, "float32", at.shard.main_grad_dtype, name[:-7])


def _copied_at_once(
    at: Passage, op: Op, held: Sequence[HeldTable], keys: Sequence[Tensor], dtype: str, wire: str
) -> None:
    """Gradients of all of them by one kernel, into one tensor."""
    name = f"{at.module}.copied"
    numel = sum(one.numel for one in held)
    op.parameter(f"{name}.weight", numel)
    whole = Tensor((numel,), at.shard.main_grad_dtype)
    gradient = Tensor((max(1, round(sum(one.handed_out for one in held) * at.batch)),), wire)
    op.back(compute("aten::zeros", [], [whole], op_class="fill", module=name), "weight")
    weights = weights_of(held, dtype)
    whose = ".hugectr" if at.shard.software.table_kernels == "hugectr" else ""
    kernel = compute(
        f"table_update.atomic{'.g16' if wire != 'float32' else ''}{whose}", [*weights, *keys, gradient],
        weights, op_class="lookup_bwd", module=name,
    )  # fmt: skip
    op.back(
        replace(kernel, dtype=dtype, bytes_read=gradient.num_bytes, bytes_written=gradient.num_bytes),
        "weight",
    )
    op.accumulate((numel,), at.shard.wide_dtype, at.shard.main_grad_dtype, name)


def leaves_rows(at: Passage) -> bool:
    """Whether tables stand before whose rows nobody has read."""
    return any(name.startswith(LEFT) for name in at.beside)
