"""What a fused kernel reads, writes and allocates: the tensors that cross its border, each once.

Edges join ops, not tensors, so tensors are told apart by element count and source.  An input comes from
inside when an op of the match with an output of that size feeds it; inputs from outside are one tensor
when they have one source, and, without an edge (parameters, saved activations), when they have one size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simcore.graph.ops import shapes_text
from simcore.graph.passes.view import GraphView, Operand
from simcore.records import dataclass

#: Products may take the same tensor twice (a square); sums of a tensor with itself do not occur.
_SQUARES = frozenset({"mul", "mul_", "bmm", "mm"})


@dataclass(frozen=True)
class Traffic:
    """Border of a fused kernel; ``alloc_bytes`` is storage that outlives it."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    alloc_bytes: int

    def columns(self) -> dict[str, str | int]:
        """Values of the op-table columns that follow from the border."""
        return {
            "in_shapes": shapes_text(tensor.shape for tensor in self.inputs),
            "out_shapes": shapes_text(tensor.shape for tensor in self.outputs),
            "bytes_read": sum(tensor.num_bytes for tensor in self.inputs),
            "bytes_written": sum(tensor.num_bytes for tensor in self.outputs),
            "alloc_bytes": self.alloc_bytes,
        }


def total(view: GraphView, members: Sequence[int]) -> Traffic:
    """Traffic of ``members`` when they share no tensors."""
    return Traffic(
        inputs=tuple(tensor for row in members for tensor in view.inputs(row)),
        outputs=tuple(tensor for row in members for tensor in view.outputs(row)),
        alloc_bytes=sum(view.alloc_bytes[row] for row in members),
    )


def border(view: GraphView, members: Sequence[int]) -> Traffic:
    """Traffic of ``members`` (op rows of one template, in issue order) run as one kernel."""
    inside = set(members)
    freed = [release for row in members for release in view.releases.get(row, ()) if release.after in inside]
    allocated = sum(view.alloc_bytes[row] for row in members)
    return Traffic(
        inputs=tuple(_external_inputs(view, members, inside)),
        outputs=tuple(_external_outputs(view, members, inside)),
        alloc_bytes=max(0, allocated - sum(release.num_bytes for release in freed)),
    )


def _external_inputs(view: GraphView, members: Sequence[int], inside: set[int]) -> list[Operand]:
    # One slot per distinct tensor: (source op, or -1 - k for the k-th without one; size).
    found: dict[tuple[int, int], Operand] = {}
    for row in members:
        by_size: dict[int, list[Operand]] = defaultdict(list)
        for tensor in view.inputs(row):
            by_size[tensor.numel].append(tensor)
        for size, tensors in by_size.items():
            feeding = [s for s in view.sources.get(row, ()) if _writes_size(view, s, size)]
            internal = sum(source in inside for source in feeding)
            outside = [source for source in feeding if source not in inside]
            if internal and not outside and view.name(row) in _SQUARES:
                internal = len(tensors)
            for number, tensor in enumerate(tensors[internal:]):
                source = outside[number] if number < len(outside) else -1 - (number - len(outside))
                known = found.get((source, size))
                # An op that picks or changes a few entries shows fewer bytes than one that reads all.
                if known is None or known.num_bytes < tensor.num_bytes:
                    found[source, size] = tensor
    return list(found.values())


def _writes_size(view: GraphView, row: int, size: int) -> bool:
    """Whether an op writes a tensor of ``size`` elements in full; scattering a few entries does not count."""
    return any(tensor.numel == size <= tensor.num_bytes for tensor in view.outputs(row))


def _external_outputs(view: GraphView, members: Sequence[int], inside: set[int]) -> list[Operand]:
    """Outputs that outlive the kernel.  A storage written several times in place counts once."""
    last = members[-1]
    found: list[Operand] = []
    survivors: dict[int, list[Operand]] = {}
    for row in members:
        outputs = list(view.outputs(row))
        if view.alloc_bytes[row] > 0 and not view.name(row).endswith("_"):
            survivors[row] = kept = _without_freed(view, row, outputs, inside)
        elif outputs and row != last and _only_read_inside(view, row, inside):
            kept = []
        else:
            # In place: a storage that a surviving member already stands for is not counted again.
            already = [t.numel for s in view.sources.get(row, ()) for t in survivors.get(s, ())]
            kept = [tensor for tensor in outputs if tensor.numel not in already]
            survivors[row] = outputs
        found += kept
    return found or list(view.outputs(last))


def _without_freed(view: GraphView, row: int, outputs: list[Operand], inside: set[int]) -> list[Operand]:
    """Outputs of an allocating op minus those whose storage is released inside the match."""
    kept = list(outputs)
    for release in view.releases.get(row, ()):
        if release.after not in inside:
            continue
        for tensor in kept:
            if tensor.num_bytes == release.num_bytes:
                kept.remove(tensor)
                break
    return kept


def _only_read_inside(view: GraphView, row: int, inside: set[int]) -> bool:
    readers = view.readers.get(row, [])
    return bool(readers) and inside.issuperset(readers)
