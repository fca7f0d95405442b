"""Streams of a backward pass.

Note [Streams of a backward pass]
    Autograd's engine runs what belongs to a forward op on the stream of that op, lets it wait for the
    gradients that it is given, and at the end the stream that was current waits for all others.  The engine
    is C++ and knows no streams that are not there, so whoever asks for the current stream is told: the one of
    the forward op whose node runs.  A custom function's is the one that was current when its forward pass had
    returned.  A sum into a gradient has the stream on which its parameter was first used, which is the one of
    the node before, but where DDP's reducer keeps it: there it is the one on which that was made.  Other
    nodes of which no forward op is known follow the one before.  Programs whose forward passes stay on one
    stream do not come here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from workloads.tracing.fake import parallel_patches, streams

if TYPE_CHECKING:
    from workloads.tracing.record.op_log import OpLog

#: What sums into gradients have for a number (``UINT64_MAX``).
_OF_SUMS = 2**64 - 1


class BackwardStreams:
    """Follows the nodes of a backward pass."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        #: By the number of a forward op's node, if it ran on a stream of its own.
        self._of: dict[int, streams.Stream] = {}
        #: Of the pass that runs: the stream that was current, those that were used, the node and the thread.
        self._outer: streams.Stream | None = None
        self._used: dict[int, streams.Stream] = {}
        self._node = -1
        self._thread = 0

    @property
    def running(self) -> bool:
        """Whether a backward pass runs that may change streams."""
        return self._outer is not None

    def note(self, inputs: Iterable[torch.Tensor]) -> None:
        """A forward op of ``inputs`` is issued, or a view taken of them."""
        stream = streams.beside()
        if stream is None or not torch.is_grad_enabled() or not any(one.requires_grad for one in inputs):
            return
        latest = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        if not self._log.labels.knows(latest):  # else it has no node of its own
            self._keep(latest, stream)

    def note_function(self, result: Any) -> None:
        """A custom function has returned ``result``."""
        stream = streams.beside()
        if stream is None:
            return
        for one in result if isinstance(result, tuple) else (result,):
            if isinstance(one, torch.Tensor) and one.grad_fn is not None:
                self._keep(one.grad_fn._sequence_nr(), stream)

    def _keep(self, node: int, stream: streams.Stream) -> None:
        self._of.setdefault(node, stream)
        streams.on_ask = self._follow

    def _follow(self, current: streams.Stream) -> None:
        """Somebody asks which stream is ``current``."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            self._end()
            return
        number = node._sequence_nr()
        is_sum = number == _OF_SUMS
        if number == self._node and not is_sum:
            return
        self._node = number
        if self._outer is None:
            self._outer, self._thread = current, threading.get_ident()
        known = parallel_patches.stream_of_sum.get(node.variable) if is_sum else self._of.get(number)
        wanted = known or (self._outer if self._log.labels.knows(number) else current)
        if wanted != current:
            self._used[wanted.stream_id] = wanted
            streams.set_stream(wanted)

    def _end(self) -> None:
        if self._outer is None or self._thread != threading.get_ident():
            return
        outer, self._outer, self._node = self._outer, None, -1
        for number in self._used:
            if number != outer.stream_id:
                self._log.stream_waits(outer.stream_id, self._log.stream_frontier(number))
        self._used.clear()
        streams.set_stream(outer)
