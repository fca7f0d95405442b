"""Finding patterns in templates.  Every op belongs to at most one match."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from simcore.graph.ops import OpKind
from simcore.graph.passes.patterns import ACCUMULATE, FusedKernel
from simcore.graph.passes.view import GraphView
from simcore.records import dataclass

#: First letter for op names, in Unicode's private use area; the one before it matches nothing.
_FIRST_LETTER = 0xE000
_BARRIER = chr(_FIRST_LETTER - 1)
_MIN_OPS = 2
_REGION = re.compile(r"/fused:([A-Za-z0-9_]+)")
#: Cost classes that a jit fuser can put into one pointwise kernel.
_POINTWISE = frozenset({"elementwise", "dropout", "copy", "fill", "reduction"})
#: Cost classes of reductions along a row, which a compiler of whole modules fuses with their neighbours; the
#: kernel then is of that class.
_ROWWISE = ("norm_fwd", "norm_bwd", "softmax_fwd", "softmax_bwd", "cross_entropy")
_COMPILED = _POINTWISE.union(_ROWWISE)


def compilable(name: str, op_class: str) -> bool:
    """Whether a compiler of whole modules fuses an op with its neighbours: one of torch's own operators, of a
    class without products.  Custom operators (FSDP's copies, Triton kernels) stay kernels.
    """
    return op_class in _COMPILED and name.startswith(("aten::", "prims::"))


@dataclass(frozen=True)
class Match:
    """Op rows (ascending, one template) that become one kernel, issued where ``anchor`` stands."""

    kernel: FusedKernel
    members: tuple[int, ...]
    anchor: int


class Matcher:
    """Matches kernels against all templates, in the order asked; remembers which ops are taken."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        ops = view.graph.ops
        present = sorted(set(view.names))
        letters = {name: chr(_FIRST_LETTER + index) for index, name in enumerate(present)}
        self._letters = letters
        by_code = [letters[name] for name in view.names]
        fusible = ops.kind == OpKind.COMPUTE
        self._letter_of = [
            by_code[code] if is_compute else _BARRIER
            for code, is_compute in zip(ops.name.codes.tolist(), fusible.tolist(), strict=True)
        ]
        self._runs = [rows for rows in view.stream_runs if len(rows) >= _MIN_OPS]
        self._phase = ops.phase.codes.tolist()
        self._layer = ops.layer.tolist()

    def find(self, kernel: FusedKernel) -> Iterator[Match]:
        """Matches of a contiguous pattern; their ops are taken."""
        pattern = kernel.compile(self._letters)
        if pattern is None:
            return
        phases = {self._view.graph.ops.phase.values.index(p) for p in kernel.phases if self._has_phase(p)}
        for rows in self._runs:
            text = "".join([self._letter_of[row] for row in rows])
            for found in pattern.finditer(text):
                members = tuple(rows[found.start() : found.end()])
                if len(members) < _MIN_OPS or self._phase[members[0]] not in phases:
                    continue
                if self._alike(members) and (not kernel.connected or self._view.connected(members)):
                    self._take(members)
                    yield Match(kernel, members, members[-1])

    def find_accumulations(self, kernel: FusedKernel) -> Iterator[Match]:
        """A weight gradient GEMM and the op that adds its result, and nothing else's, to a buffer.

        The pair need not be adjacent: the kernel runs where the GEMM stands, so that a wait that came in
        between (the input gradient's all_reduce) stays behind it.
        """
        products, additions = ACCUMULATE
        view = self._view
        for row, sources in view.sources.items():
            if view.name(row) not in additions or self._letter_of[row] == _BARRIER:
                continue
            size = sum(tensor.numel for tensor in view.outputs(row))
            for gemm in sources:
                if view.name(gemm) not in products or self._letter_of[gemm] == _BARRIER:
                    continue
                fits = size == sum(tensor.numel for tensor in view.outputs(gemm))
                early = all(source <= gemm for source in sources) and self._can_wait_later(row)
                if fits and early and view.readers[gemm] == [row] and self._same_stream((gemm, row)):
                    self._take((gemm, row))
                    yield Match(kernel, (gemm, row), gemm)
                    break

    def find_regions(self, *, compiled: bool = False) -> Iterator[Match]:
        """What is left of jit-compiled regions: runs of pointwise ops under one ``/fused:<name>`` label.

        ``compiled``: as a compiler of whole modules does, across the modules of a region, norms and softmax
        included, cut where communication is issued.
        """
        ops = self._view.graph.ops
        labels = [_REGION.search(value) for value in ops.module.values]
        regions = [
            label.group(1) if compiled and label else value
            for label, value in zip(labels, ops.module.values, strict=True)
        ]
        names, classes = ops.name.codes.tolist(), ops.op_class.codes.tolist()
        fusible = {
            (name, which): compilable(ops.name.values[name], ops.op_class.values[which])
            if compiled
            else ops.op_class.values[which] in _POINTWISE
            for name, which in set(zip(names, classes, strict=True))
        }
        modules = ops.module.codes.tolist()
        for rows in self._runs:
            start = 0
            while start < len(rows):
                label = labels[modules[rows[start]]]
                stop = start
                while (
                    label is not None
                    and stop < len(rows)
                    and regions[modules[rows[stop]]] == regions[modules[rows[start]]]
                    and self._phase[rows[stop]] == self._phase[rows[start]]
                    and self._letter_of[rows[stop]] != _BARRIER
                    and fusible[names[rows[stop]], classes[rows[stop]]]
                    # What is issued in between, on another stream, may need what was computed before it.
                    and (not compiled or stop == start or rows[stop] == rows[stop - 1] + 1)
                ):
                    stop += 1
                members = tuple(rows[start:stop])
                if label is not None and len(members) >= _MIN_OPS:
                    self._take(members)
                    name = f"{label.group(1)}_{'bwd' if ops.phase[members[0]] == 'bwd' else 'fwd'}"
                    found = {ops.op_class.values[classes[row]] for row in members}
                    op_class = next((one for one in _ROWWISE if one in found), "elementwise")
                    kernel = FusedKernel(name, op_class, "", (), "a jit-compiled region")
                    yield Match(kernel, members, members[-1])
                start = max(stop, start + 1)

    def _can_wait_later(self, row: int) -> bool:
        """Whether waits of an op can pass to the next one on its stream, or there are none."""
        return row not in self._view.waiting or self._view.has_successor[row]

    def _has_phase(self, phase: str) -> bool:
        return phase in self._view.graph.ops.phase.values

    def _alike(self, members: Sequence[int]) -> bool:
        """One phase, and one layer where a layer is known."""
        layers = {self._layer[row] for row in members} - {-1}
        return len(layers) <= 1 and len({self._phase[row] for row in members}) == 1

    def _same_stream(self, members: Sequence[int]) -> bool:
        codes = self._view.graph.ops.stream.codes
        return len({int(codes[row]) for row in members}) == 1

    def _take(self, members: Sequence[int]) -> None:
        for row in members:
            self._letter_of[row] = _BARRIER
