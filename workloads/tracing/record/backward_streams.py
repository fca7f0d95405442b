"""Streams of a backward pass.

Note [Streams of a backward pass]
    Autograd's engine runs what belongs to a forward op on the stream of that op, lets it wait for the nodes
    that made the gradients that it is given (for all that these issued), and at the end the stream that was
    current waits for all others.  Several gradients of a result are added up on the stream of the op that
    made it.  The engine is C++ and knows no streams that are not there, so whoever asks for the current
    stream is told: the one of the forward op whose node runs.

    A custom function's is the one that was current when its forward pass had returned.  A sum into a gradient
    has the stream on which its parameter was first used, which is the one of the node before, but where DDP's
    reducer keeps it: there it is the one on which that was made.  Other nodes of which no forward op is known
    follow the one before.  Programs that stay on one stream do not come here.
"""

from __future__ import annotations

import bisect
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from workloads.tracing.fake import parallel_patches, streams
from workloads.tracing.record import passes

if TYPE_CHECKING:
    from workloads.tracing.record.op_log import OpLog

#: What sums into gradients have for a number (``UINT64_MAX``).
_OF_SUMS = 2**64 - 1
#: Where a column of an op says its stream.
_STREAM = 3
#: Whose frames stand between an operator and who called it.
_BETWEEN = ("/workloads/tracing/", "/torch/utils/_python_dispatch.py")


class BackwardStreams:
    """Follows the nodes of a backward pass."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        #: By the number of a forward op's node, if it ran on a stream of its own.
        self._of: dict[int, streams.Stream] = {}
        #: Backward passes under way, one in another, and the stream on which the outermost was asked for.
        self._depth = 0
        self._asked_on: streams.Stream | None = None
        #: Of the pass that runs: the stream that was current, those that were used, the node and the thread.
        self._outer: streams.Stream | None = None
        self._used: dict[int, streams.Stream] = {}
        self._node: tuple[int, int] | None = None
        self._thread = 0
        #: The first op of each of its nodes, and whether what is issued now adds up what the last gave.
        self._begins: list[int] = []
        self._adds = False

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

    def pass_begins(self) -> None:
        """A backward pass is asked for, maybe inside another."""
        beside = streams.beside()
        if not self._depth:
            self._asked_on = beside or streams.default_stream()
        if beside is not None:
            streams.on_ask = self._follow
        self._depth += 1

    def pass_ends(self) -> None:
        """It is over."""
        self._depth -= 1
        if not self._depth:
            self._end()

    def adds_up(self, name: str, outputs: Sequence[torch.Tensor]) -> int | None:
        """The stream of an op that adds up gradients, where a node is given several; None for others."""
        if not self.running or name.partition(".")[0] not in ("aten::add", "aten::add_"):
            return None
        node: Any = torch._C._current_autograd_node()
        if node is None or not outputs or not _by_engine():
            return None
        for taker, place in node.next_functions:
            if taker is not None and tuple(taker._input_metadata[place].shape) == tuple(outputs[0].shape):
                stream = self._stream_of(taker)
                if stream is not None:
                    self._adds = True
                    return stream.stream_id
        return None

    def behind(self, ops: Iterable[int]) -> list[int]:
        """What waits for ``ops`` waits for all that their nodes issued; the one that runs syncs by itself."""
        adds, self._adds = self._adds, False
        issued, begins = self._log.result.ops, self._begins
        found = []
        for op in ops:
            node = bisect.bisect_right(begins, op)
            last = op
            if node and (node < len(begins) or adds):
                stream = issued[op].columns[_STREAM]
                last = (begins[node] if node < len(begins) else len(issued)) - 1
                while last > op and issued[last].columns[_STREAM] != stream:
                    last -= 1
            found.append(last)
        return found

    def _keep(self, node: int, stream: streams.Stream) -> None:
        self._of.setdefault(node, stream)
        if streams.on_ask is None:
            streams.on_ask = self._follow
            within: Any = torch._C._current_autograd_node()
            if within is not None:  # computes again, and has chosen its stream
                self._enter(_key(within))

    def _stream_of(self, node: Any) -> streams.Stream | None:
        """Of a node; None where it is not known."""
        number = node._sequence_nr()
        if number == _OF_SUMS:
            kept: streams.Stream | None = parallel_patches.stream_of_sum.get(node.variable)
            return kept
        of_forward = self._log.labels.knows(number) or isinstance(node, BackwardCFunction)
        return self._of.get(number) or (streams.default_stream() if of_forward else None)

    def _follow(self, current: streams.Stream) -> None:
        """Somebody asks which stream is ``current``."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            self._end()
            return
        key = _key(node)
        if key == self._node:
            return
        self._enter(key)
        wanted = self._stream_of(node) or current
        if wanted != current:
            self._used[wanted.stream_id] = wanted
            streams.set_stream(wanted)

    def _enter(self, node: tuple[int, int]) -> None:
        if self._outer is None:
            self._outer = self._asked_on or streams.default_stream()
            self._thread = threading.get_ident()
        self._node = node
        self._begins.append(len(self._log.result.ops))

    def _end(self) -> None:
        if self._outer is None or self._thread != threading.get_ident():
            return
        outer, self._outer, self._node = self._outer, None, None
        for number in self._used:
            if number != outer.stream_id:
                self._log.stream_waits(outer.stream_id, self._log.stream_frontier(number))
        self._used.clear()
        self._begins.clear()
        streams.set_stream(outer)


def _key(node: Any) -> tuple[int, int]:
    """Tells a node from the others of a pass."""
    number = node._sequence_nr()
    return number, id(node.variable) if number == _OF_SUMS else 0


def _by_engine() -> bool:
    """Whether the engine itself calls the operator, and no code of Python's that a node runs."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != passes.__file__:
        if not any(one in frame.f_code.co_filename for one in _BETWEEN):
            return False
        frame = frame.f_back
    return frame is not None
