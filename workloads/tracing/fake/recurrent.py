"""Recurrent layers as a GPU build runs them: cuDNN's, a layer and a direction at a time.

Note [Recurrent layers]
    The inputs of all steps are multiplied at once; each step is the product of its hidden state and one
    pointwise kernel.  Back, each step is one pointwise kernel and a product; gradients of inputs, weights and
    biases are summed over all steps at once (Appleyard, Kocisky, Blunsom, "Optimizing Performance of
    Recurrent Neural Networks on GPUs", arXiv 1604.01946, which cuDNN follows).  Layers of one direction that
    cuDNN lets overlap, and steps that its persistent kernels run in one launch (torch asks for these for
    hidden states of up to 192, and in fp16 of up to 1,024: aten/src/ATen/native/cudnn/RNN.cpp, get_algo), are
    written down one after the other: they wait for each other all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simcore.records import dataclass
from workloads.tracing import kernels
from workloads.tracing.fake.known_values import values_of
from workloads.tracing.kernels import KernelCost

_library: torch.library.Library | None = None
#: Kind of layer -> gates of a hidden unit.
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def install() -> None:
    """Replace what a CPU build runs, once per process."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for kind in _GATES:
        for key in ("AutogradCUDA", "CUDA"):
            _library.impl(f"{kind}.input", _of_steps(kind), key)  # type: ignore[no-untyped-call]
            _library.impl(f"{kind}.data", _of_packed(kind), key)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Layer:
    """One layer in one direction: ``steps`` sequences that have each step, ``gates`` of a hidden unit."""

    kind: str
    steps: tuple[int, ...]
    reverse: bool

    @property
    def gates(self) -> int:
        """Of a hidden unit."""
        return _GATES[self.kind]


class _Recurrence(torch.autograd.Function):
    """Rows of all steps, first states, weights and biases -> rows of all steps, last states."""

    @staticmethod
    def forward(
        ctx: Any,
        layer: _Layer,
        rows: torch.Tensor,
        hidden: torch.Tensor,
        cell: torch.Tensor | None,
        *weights: torch.Tensor | None,
    ) -> Any:
        of_input, of_hidden, bias, _, projection = weights
        assert of_input is not None and of_hidden is not None
        gates = torch.mm(rows, of_input.t())
        units = of_input.shape[0] // layer.gates
        found = rows.new_empty(rows.shape[0], of_hidden.shape[1])
        kept = rows.new_empty(rows.shape[0], (layer.gates + (layer.kind == "lstm")) * units)
        biases = [] if bias is None else [bias]
        state, memory = hidden, cell
        parts = [torch.split(one, [*layer.steps]) for one in (gates, found, kept)]
        for step in _order(layer):
            given, out, saved = (part[step] for part in parts)
            rows_now = out.shape[0]  # backward in time, shorter sequences join
            before = (state if state.shape[0] >= rows_now else hidden)[:rows_now]
            summed = torch.mm(before, of_hidden.t())
            made = out if projection is None else out.new_empty(rows_now, units)
            older = [memory] if memory is not None else [before] if layer.kind == "gru" else []
            _pointwise(layer, "fwd", [given, summed, *biases, *older], [made, saved])
            state = out if projection is None else torch.mm(made, projection.t(), out=out)
            memory = None if memory is None else saved[:, -units:]
        ctx.layer, ctx.has_cell = layer, cell is not None
        ctx.states = (hidden.shape, () if cell is None else cell.shape)
        ctx.save_for_backward(rows, found, kept, *weights)
        last = torch.empty_like(hidden)
        return found, last, None if cell is None else torch.empty_like(cell)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_of_last: Any) -> Any:
        layer = ctx.layer
        rows, found, kept, of_input, of_hidden, bias, other_bias, projection = ctx.saved_tensors
        gates = rows.new_empty(rows.shape[0], of_input.shape[0])
        # The new state of a GRU's unit resets what it takes of the old one: its gradient is another there.
        inner = torch.empty_like(gates) if layer.kind == "gru" else gates
        projected = None if projection is None else found.new_empty(found.shape[0], projection.shape[1])
        parts = [torch.split(one, [*layer.steps]) for one in (grad, kept, gates, inner)]
        state: Any = None
        memory: Any = None
        units = of_input.shape[0] // layer.gates
        for step in reversed(_order(layer)):
            given, saved, made, turned = (part[step] for part in parts)
            reads = [given, saved, *(one for one in (state, memory) if one is not None)]
            if projected is not None:
                reads[0] = torch.split(projected, [*layer.steps])[step]
                torch.mm(given, projection, out=reads[0])
            memory = made.new_empty(made.shape[0], units) if ctx.has_cell else None
            also = [turned] if layer.kind == "gru" else [] if memory is None else [memory]
            _pointwise(layer, "bwd", reads, [made, *also])
            state = torch.mm(turned, of_hidden)
        wanted = ctx.needs_input_grad
        grads: list[Any] = [None, torch.mm(gates, of_input) if wanted[1] else None]
        grads += [
            one.new_empty(like) if needed else None
            for one, like, needed in zip((gates, gates), ctx.states, wanted[2:4], strict=True)
        ]
        grads.append(torch.mm(gates.t(), rows) if wanted[4] else None)
        grads.append(torch.mm(inner.t(), found) if wanted[5] else None)
        for place, one in ((6, bias), (7, other_bias)):
            grads.append(None if one is None or not wanted[place] else (gates, inner)[place - 6].sum(0))
        grads.append(torch.mm(grad.t(), kept[:, : projection.shape[1]]) if wanted[8] else None)
        return tuple(grads)


def _order(layer: _Layer) -> Sequence[int]:
    count = len(layer.steps)
    return range(count - 1, -1, -1) if layer.reverse else range(count)


def _pointwise(layer: _Layer, way: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
    cost = KernelCost(op_class="elementwise")
    kernels.launch(f"cudnn::{layer.kind}_pointwise_{way}", reads=reads, writes=writes, cost=cost)


def _all_layers(
    kind: str,
    steps: tuple[int, ...],
    rows: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    """Rows of all steps from the last layer, and the last states of all."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        rows = rows.to(dtype)
        states, params = [one.to(dtype) for one in states], [one.to(dtype) for one in params]
    ways = 1 + bidirectional
    each = len(params) // (num_layers * ways)
    last: list[list[torch.Tensor]] = [[] for _ in states]
    for number in range(num_layers):
        outputs = []
        for way in range(ways):
            at = number * ways + way
            own = list(params[at * each : (at + 1) * each])
            biases = [own.pop(2), own.pop(2)] if has_biases else [None, None]
            weights = [*own[:2], *biases, own[2] if len(own) > 2 else None]
            first = [one[at] for one in states]
            layer = _Layer(kind, steps, reverse=bool(way))
            found = _Recurrence.apply(  # type: ignore[no-untyped-call]
                layer, rows, first[0], first[1] if len(first) > 1 else None, *weights
            )
            outputs.append(found[0])
            for place in range(len(states)):
                last[place].append(found[1 + place])
        with kernels.unrecorded():  # both directions write into one tensor
            rows = outputs[0] if ways == 1 else torch.cat(outputs, -1)
        if train and dropout and number + 1 < num_layers:
            rows = torch.nn.functional.dropout(rows, dropout)
    with kernels.unrecorded():  # so do all layers
        return rows, *(torch.stack(one) for one in last)


def _of_steps(kind: str) -> Any:
    def run(
        input: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        given = input.transpose(0, 1).contiguous() if batch_first else input
        count, batch = given.shape[:2]
        states = hx if kind == "lstm" else [hx]
        rows, *last = _all_layers(
            kind, (batch,) * count, given.reshape(count * batch, -1), states, params,
            has_biases, num_layers, dropout, train, bidirectional,
        )  # fmt: skip
        found = rows.view(count, batch, -1)
        return (found.transpose(0, 1) if batch_first else found, *last)

    return run


def _of_packed(kind: str) -> Any:
    def run(
        data: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        known = values_of(batch_sizes)
        states = hx if kind == "lstm" else [hx]
        steps = tuple((batch_sizes if known is None else known).tolist())
        return _all_layers(
            kind, steps, data, states, params, has_biases, num_layers, dropout, train, bidirectional
        )

    return run
