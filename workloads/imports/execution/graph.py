"""Execution traces alone as a graph: every call that launches a kernel, in call order, without durations."""

from __future__ import annotations

import json
from collections.abc import Callable

from simcore.collectives.kinds import kind_of
from simcore.graph import EdgeKind, Graph, OpKind
from simcore.graph.builder import GraphBuilder
from workloads.imports.collective_names import LIBRARY_CALLS, collective_kind, graph_collective
from workloads.imports.execution.join import collective_of
from workloads.imports.execution.read import ExecutionTrace, ObservedNode
from workloads.imports.op_columns import OpColumns
from workloads.imports.shapes import describe

Groups = Callable[[int, str], str]  # place of a rank, ranks of its group as JSON -> symbol

_ALL = "all ranks"
#: Calls that touch no memory of the GPU: views, allocations and questions.
_VIEWS = """
    view reshape _reshape_alias as_strided t transpose permute expand expand_as unsqueeze squeeze slice
    select narrow split split_with_sizes chunk detach detach_ alias empty empty_like empty_strided
    new_empty new_empty_strided unbind flatten unfold diagonal _unsafe_view swapaxes movedim view_as
    view_as_real reshape_as resize_ resize_as_ set_ lift_fresh record_stream size stride numel
    is_contiguous result_type can_cast is_nonzero requires_grad_ retain_grad is_pinned pin_memory to
    contiguous type_as resolve_conj resolve_neg conj data_ptr _has_compatible_shallow_copy_type
"""
_NO_KERNEL = frozenset(_VIEWS.split())
_GPUS = ("cuda", "hip", "xpu")


def build_programs(traces: list[ExecutionTrace]) -> tuple[Graph, list[str]]:
    """One program per trace; and which collectives could not be placed in a group."""
    build = GraphBuilder(len(traces), name="execution trace", framework="recorded")
    numbers = [trace.rank if trace.rank >= 0 else index for index, trace in enumerate(traces)]
    place = {number: index for index, number in enumerate(numbers)}
    build.group(_ALL, explicit=(tuple(range(len(traces))),))
    known: dict[tuple[int, ...], str] = {tuple(range(len(traces))): _ALL}
    refused: dict[str, None] = {}

    def group(rank: int, ranks: str) -> str:
        """The group of present ranks; those that were not recorded cannot take part."""
        told = json.loads(ranks) if ranks else list(numbers)
        if numbers[rank] not in told:
            refused[f"{traces[rank].label}: rank {numbers[rank]} communicates in the group {ranks}"] = None
            told = [numbers[rank]]
        present = tuple(sorted(place[number] for number in told if number in place))
        if present not in known:
            known[present] = f"ranks {', '.join(str(numbers[i]) for i in present[:8])} #{len(known)}"
            build.group(known[present], explicit=(present,))
        return known[present]

    ops = OpColumns()
    for index, trace in enumerate(traces):
        ops.template(f"rank {numbers[index]}")
        _write(trace, index, ops, group)
    return ops.graph(build.build()), list(refused)


def _write(trace: ExecutionTrace, rank: int, ops: OpColumns, group: Groups) -> None:
    by_id = {node.id: node for node in trace.nodes}
    launching = _launching(trace.nodes, by_id)
    writer: dict[int, int] = {}
    communicates: set[int] = set()
    alike: dict[object, int] = {}
    for node in launching:
        sources = list(dict.fromkeys(writer[t.storage] for t in node.inputs if t.storage in writer))
        meta = collective_of(node, by_id, trace) if _communicates(node) else None
        if meta is not None:
            kind = graph_collective(collective_kind(meta.collective, node.name))
            row = ops.op(
                OpKind.COLLECTIVE,
                {
                    "name": f"nccl::{kind}", "collective": kind, "stream": "comm",
                    "reduce_op": "sum" if kind_of(kind).reduces else "",
                    "group": group(rank, meta.group_ranks), "num_bytes": meta.num_bytes(kind),
                },
            )  # fmt: skip
            communicates.add(row)
            waits = sources
        else:
            seen = (
                node.name, tuple([(t.shape, t.dtype) for t in node.inputs]),
                tuple([t.shape for t in node.outputs]),
            )  # fmt: skip
            like = alike.get(seen, -1)
            if like >= 0:
                row = ops.again(like)
            else:
                row = alike[seen] = _compute(node, ops)
            waits = [s for s in sources if s in communicates] if communicates else []
        ops.edges(row, EdgeKind.DATA, sources)
        ops.edges(row, EdgeKind.WAIT, waits)
        for tensor in node.outputs or node.inputs[: node.first_inputs]:
            writer[tensor.storage] = row


def _compute(node: ObservedNode, ops: OpColumns) -> int:
    found = describe(
        node.name,
        json.dumps([t.shape for t in node.inputs]),
        json.dumps([t.dtype for t in node.inputs]),
        json.dumps([t.shape for t in node.outputs]) if node.outputs else "",
    )
    return ops.op(OpKind.COMPUTE, {"name": node.name, **({} if found is None else vars(found))})


def _communicates(node: ObservedNode) -> bool:
    return node.name.startswith(LIBRARY_CALLS)


def _launching(nodes: tuple[ObservedNode, ...], by_id: dict[int, ObservedNode]) -> list[ObservedNode]:
    """Calls on GPU tensors with no such call inside: what launches, in call order."""
    relevant = {node.id for node in nodes if _launches(node)}
    outer = set()
    for number in relevant:
        at = by_id[number]
        for _ in range(64):
            parent = by_id.get(at.parent)
            if parent is None or parent is at:
                break
            outer.add(parent.id)
            at = parent
    return [node for node in nodes if node.id in relevant and node.id not in outer]


def _launches(node: ObservedNode) -> bool:
    if not any(t.device.startswith(_GPUS) for t in (*node.inputs, *node.outputs)):
        return False
    if _communicates(node):
        return True
    namespace, _, bare = node.name.rpartition("::")
    return bool(namespace) and not namespace.startswith("c10d") and bare.split(".")[0] not in _NO_KERNEL
