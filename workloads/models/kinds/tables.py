"""Embedding tables: keys go where their rows are, rows are added up, sums come back; gradients the other way.

Note [Lookups]
    Where tables lie on several ranks, each looks up what all samples ask of its tables, and sums travel
    (:class:`~workloads.models.tables.TablesView`).  They travel beside what comes next of the model; the
    block that reads them (:func:`looked_up`) waits.  In backward that block sends gradients off, which travel
    beside the backward of what stands between, and the tables' update waits for them.  Keys of the next
    batch may travel beside a step ("ahead"), as TorchRec's pipeline and HugeCTR do.

    An update is one of: "fused" (keys sorted, sums and the optimizer in one kernel: FBGEMM, HugeCTR),
    "sorted" (sums are written, then an optimizer reads them: sparse tensors of PyTorch, IndexedSlices of
    TensorFlow), "atomic" (each lookup's gradient is added where the row lies, SGD alone) or "dense"
    (gradients as large as the table).  Keys are sorted within it, or in "forward" beside what comes behind
    the lookup (HugeCTR).  Copied tables have dense gradients, which are reduced as those of other parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simcore.errors import InputError
from workloads.models.listed import BlockKind, Passage, register
from workloads.models.lookups import (
    LEFT,
    TablesSpec,
    copied,
    key_sort,
    lists_kept,
    lookups,
    sorted_out,
    sorts_keys,
    update,
)
from workloads.models.op_tape import TapedLaunch
from workloads.models.tables import WIDE_NAMES, Exchange, TablesView, keys_of_batch, whole_view
from workloads.models.tensors import Tensor, collective, compute

#: Streams of exchanged rows, of keys of the next batch, and of keys that are sorted ahead.
ROWS_STREAM: Final = "rows"
KEYS_STREAM: Final = "keys"
INDEX_STREAM: Final = "index"


def _tables(at: Passage, spec: TablesSpec) -> None:
    view = at.shard.view_of(at.module) or whole_view(spec.tables)
    dtype = WIDE_NAMES[spec.dtype]
    wire = at.shard.software.embedding_output
    trains = at.shard.trains(f"{at.module}.weight")
    if view.held or view.is_split:
        _held(at, spec, view, dtype, wire, trains=trains)
    if view.copied:
        copied(at, spec, view.copied, dtype, wire)
    count, dims = sum(one.count for one in spec.tables), {one.dim for one in spec.tables}
    width = sum(one.dim * one.count for one in spec.tables)
    shape = (count, *dims) if len(dims) == 1 else (width,)
    at.beside[f"{LEFT}{at.module}"] = [Tensor((at.batch, *shape), wire)] * (1 if trains else 2)


def _held(at: Passage, spec: TablesSpec, view: TablesView, dtype: str, wire: str, *, trains: bool) -> None:
    op, software = at.tape.op(), at.shard.software
    keys = keys_of_batch(view.held, at.batch)
    if software.keys_whole and view.keys:
        ways = max((one.ways for one in view.held), default=1)
        whole = Tensor(
            (round(sum(one.pooling * one.count for one in spec.tables) * ways * at.batch),),
            software.key_dtype,
        )
        copy = compute("memcpy_htod", [whole], [whole], op_class="copy", module=at.module)
        op.launch(TapedLaunch(replace(copy, stream=KEYS_STREAM, leaves=f"{at.module}.keys")))
    for exchange in view.keys if not software.keys_whole else ():
        sent = Tensor((max(1, round(exchange.elements * at.batch)),), software.key_dtype)
        launch = collective(exchange.collective, sent, exchange.group, module=at.module)
        if software.keys_ahead:
            launch = replace(launch, stream=KEYS_STREAM, leaves=f"{at.module}.keys")
        op.launch(TapedLaunch(launch))
    if any(one.alone for one in view.held):
        for kernel in sorted_out(at, spec, view):
            if software.keys_ahead:
                kernel = replace(kernel, stream=KEYS_STREAM, leaves=f"{at.module}.keys")
            op.launch(TapedLaunch(kernel))
    if software.table_kernels == "hugectr" and software.keys_ahead and keys and not view.held[0].alone:
        for kernel in lists_kept(at, keys, groups=2 if view.copied else 1):
            op.launch(TapedLaunch(kernel))
    looked = at.tape.new_label()
    kernels = lookups(at, spec, view.held, dtype, wire) if view.held else []
    for number, kernel in enumerate(kernels):
        last = number == len(kernels) - 1
        kept = sum(key.num_bytes for key in keys) if last and trains else 0
        op.launch(TapedLaunch(kernel, looked if last else None, role="weight", saved_inputs=kept))
    if trains and software.keys_sorted == "forward" and sorts_keys(at, spec, view):
        kernel = replace(key_sort(at, view, dtype), stream=INDEX_STREAM, leaves=f"{at.module}.sorted")
        op.launch(TapedLaunch(kernel, None, (looked,)))
    for number, exchange in enumerate(view.rows_out):
        there = f"{at.module}.rows" if number == len(view.rows_out) - 1 else ""
        sent = Tensor((max(1, round(exchange.elements * at.batch)),), wire)
        launch = collective(exchange.collective, sent, exchange.group, module=at.module)
        label = at.tape.new_label()
        waits = (looked,) if kernels or number else ()
        op.launch(TapedLaunch(replace(launch, stream=ROWS_STREAM, leaves=there), label, waits))
        looked = label
    if view.held:
        op.parameter(f"{at.module}.weight", sum(one.numel for one in view.held), group="table")
    if trains and view.held:
        ahead = software.keys_ahead and bool(view.keys)
        update(at, op, spec, view, dtype, wire, awaits=(f"{at.module}.keys",) if ahead else ())


def looked_up(at: Passage, *, dim: int = 0) -> Tensor:
    """What tables left, ``[batch, tables, dim]`` (``dim`` 0: side by side), here and in order.

    InputError where no tables stand before, or their widths differ from ``dim``.
    """
    left = {name: at.beside.pop(name) for name in sorted(at.beside) if name.startswith(LEFT)}
    if not left:
        raise InputError(f"{at.module}: no tables stand before this block; nearest: a block of kind tables")
    width = 0
    for name, tensors in left.items():
        module, rows = name.removeprefix(LEFT), tensors[0]
        if dim and rows.shape[2:] != (dim,):
            wide = f"{rows.shape[2]} columns" if rows.shape[2:] else "columns of several widths"
            raise InputError(
                f"{at.module}: tables of {wide} meet features of {dim}; nearest: {dim} columns each"
            )
        rows = rows.like(at.batch, rows.numel // at.batch)
        width += rows.shape[1]
        trains = len(tensors) == 1
        at.trains |= trains
        view = at.shard.view_of(module)
        if view is not None and view.is_split:
            _arrived(at, module, rows, view.rows_out, trains=trains)
    dtype = next(iter(left.values()))[0].dtype
    return Tensor((at.batch, width // dim, dim) if dim else (at.batch, width), dtype)


def _arrived(at: Passage, module: str, rows: Tensor, exchanges: Sequence[Exchange], *, trains: bool) -> None:
    """Sums of rows put in order; their gradients put in order and sent back."""
    op = at.tape.op()
    kernel = compute("table_outputs", [rows], [rows], op_class="copy", module=module)
    op.launch(TapedLaunch(replace(kernel, awaits=(f"{module}.rows",))))
    if not trains:
        return
    label = at.tape.new_label()
    op.back(compute("table_gradients", [rows], [rows], op_class="copy", module=module), label=label)
    for number, exchange in enumerate(reversed(exchanges)):
        there = f"{module}.gradients" if number == len(exchanges) - 1 else ""
        sent = Tensor((max(1, round(exchange.elements * at.batch)),), rows.dtype)
        back = collective(_reverse(exchange.collective), sent, exchange.group, module=module)
        following = at.tape.new_label()
        op.back(replace(back, stream=ROWS_STREAM, leaves=there), label=following, waits=(label,))
        label = following


def _reverse(what: str) -> str:
    """The collective of gradients: of sums that were scattered a gather; of pieces the same, turned round."""
    if what.startswith("reduce_scatter"):
        return "all_gather"
    turned = {"from": "to", "to": "from"}
    family, colon, said = what.partition(":")
    side, equals, shares = said.partition("=")
    return f"{family}{colon}{turned.get(side, side)}{equals}{shares}"


def _check(spec: TablesSpec, where: str) -> None:
    if not spec.tables:
        raise InputError(f"{where}.tables: no tables; nearest: one of {{rows: 1000000, dim: 128}}")
    if spec.cached and spec.memory != "uvm":
        raise InputError(f"{where}.cached: rows in HBM are all there; nearest: memory: uvm")


register(BlockKind("tables", TablesSpec, _tables, "embedding", beside=True, check=_check))
