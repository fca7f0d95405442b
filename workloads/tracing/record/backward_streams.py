"""Streams of a backward pass.

Note [Streams of a backward pass]
    Autograd's engine runs what belongs to a forward op on the stream of that op, lets it wait for the
    gradients that it is given, and at the end the stream that was current waits for all others.  The engine
    is C++ and knows no streams that are not there, so whoever asks for the current stream is told: the one of
    the forward op whose node runs.  Nodes of which no forward op is known (sums into gradients) follow the
    one before.  Programs whose forward passes stay on one stream do not come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from workloads.tracing.fake import streams

if TYPE_CHECKING:
    from workloads.tracing.record.op_log import OpLog


class BackwardStreams:
    """Follows the nodes of a backward pass."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        #: By the number of a forward op's node, if it ran on a stream of its own.
        self._of: dict[int, streams.Stream] = {}
        #: Of the pass that runs: the stream that was current, those that were used, and the node.
        self._outer: streams.Stream | None = None
        self._used: dict[int, streams.Stream] = {}
        self._node = -1

    @property
    def running(self) -> bool:
        """Whether a backward pass runs that may change streams."""
        return self._outer is not None

    def note(self, stream: streams.Stream) -> None:
        """A forward op that gradients flow through has been issued on ``stream``, not the default one."""
        latest = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        self._of.setdefault(latest, stream)
        streams.on_ask = self._follow

    def _follow(self, current: streams.Stream) -> None:
        """Somebody asks which stream is ``current``."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            self._end()
            return
        number = node._sequence_nr()
        if number == self._node:
            return
        self._node = number
        if self._outer is None:
            self._outer = current
        known = self._of.get(number)
        wanted = known or (self._outer if self._log.labels.knows(number) else current)
        if wanted != current:
            self._used[wanted.stream_id] = wanted
            streams.set_stream(wanted)

    def _end(self) -> None:
        outer, self._outer, self._node = self._outer, None, -1
        if outer is None:
            return
        for number in self._used:
            if number != outer.stream_id:
                self._log.stream_waits(outer.stream_id, self._log.stream_frontier(number))
        self._used.clear()
        streams.set_stream(outer)
