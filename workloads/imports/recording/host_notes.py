"""What the host was doing when it launched an op: phase, module, calls that issue communication.

PyTorch's profiler notes every node that the autograd engine evaluates
(``autograd::engine::evaluate_function: AddmmBackward0``; recomputed forwards are inside) and every optimizer
step (``Optimizer.step#Adam.step``).  Frameworks annotate backwards themselves
("backward_step", "Backward 3").  Nothing marks a forward: it is the rest.

With ``with_stack`` or ``with_modules`` it records each call of a module
("nn.Module: Linear_3", the instance's number behind its class).  A backward runs outside of them; its nodes
carry the sequence number of the forward op that they belong to, and so belong to that op's module.
Frameworks also name modules in annotations ("FSDP::all_gather (layers.3)").
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.imports.op_columns import append_renumbered, codes_of, columns_of
from workloads.imports.recording.intervals import innermost, inside

#: Phases told, as the graph names them; the first is what nothing else is said of.
PHASES = ("fwd", "bwd", "optimizer")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|backward", re.IGNORECASE)
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#")
_MODULE = "nn.Module: "
_NAMED = re.compile(r"FSDP::\w+ \((?P<module>[\w.]+)\)$")
_NODE = "autograd::engine::evaluate_function"
_NUMBERED = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d{1,6})(?:\.|$)")  # "model.layers.3.mlp"
_INSTANCE = re.compile(r"(.+)_(\d{1,6})$")


class PhaseSpans:
    """Intervals of backwards and optimizer steps on the host, ps after the recording's origin."""

    def __init__(self) -> None:
        self._found: tuple[array[int], array[int]] = array("q"), array("q")
        self._known: dict[str, int] = {}

    def phase(self, name: str) -> int:
        """The phase of a host event of this name, as number in :data:`PHASES`; 0 also: of none."""
        phase = self._known.get(name)
        if phase is None:
            phase = 1 if _BACKWARD.search(name) else 2 if _OPTIMIZER.match(name) else 0
            self._known[name] = phase
        return phase

    def add(self, phase: int, start_ps: int, end_ps: int) -> None:
        """Note an interval of a phase other than 0."""
        self._found[phase - 1].extend((start_ps, end_ps))

    def append(self, other: PhaseSpans) -> None:
        """Note what ``other`` has."""
        for mine, more in zip(self._found, other._found, strict=True):
            mine.extend(more)

    def backwards(self) -> IntArray:
        """Starts and ends (columns) of all backwards."""
        return columns_of(self._found[0], 2).T

    def of(self, launched_ps: IntArray) -> npt.NDArray[np.int32]:
        """By op, launched when: its phase, as number in :data:`PHASES`."""
        phase = np.zeros(len(launched_ps), dtype=np.int32)
        for number, found in reversed(list(enumerate(self._found, start=1))):
            phase[inside(launched_ps, *columns_of(found, 2))] = number
        return phase


class CommunicationCalls:
    """Calls of the framework that issue communication; ps after the recording's origin.

    What encloses a wait tells on which side of the communication it stands.  A wait inside such a call makes
    the communication stream wait for what the call reads; a wait outside (``Work.wait``, ``wait_tensor``, a
    wait between streams of FSDP) makes a stream wait for what was issued before.
    """

    def __init__(self) -> None:
        self._found: array[int] = array("q")  # start, end, thread

    def add(self, start_ps: int, end_ps: int, thread: int) -> None:
        """Note a call."""
        self._found.extend((start_ps, end_ps, thread))

    def append(self, other: CommunicationCalls, threads: IntArray) -> None:
        """Note what ``other`` has, whose threads have these numbers here."""
        append_renumbered(self._found, other._found, 3, {2: threads})

    def __len__(self) -> int:
        return len(self._found) // 3

    def enclose(self, time_ps: IntArray, thread: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these moments of these threads lie in a call."""
        found = np.zeros(len(time_ps), dtype=np.bool_)
        start, end, of_thread = columns_of(self._found, 3)
        for number in np.unique(of_thread).tolist():
            asked, mine = thread == number, of_thread == number
            found[asked] = inside(time_ps[asked], start[mine], end[mine])
        return found


class P2pCalls:
    """Sends and receives that the host issued, in the order of the file; times in ps after the origin."""

    def __init__(self) -> None:
        self._times: array[int] = array("q")  # start, thread, peer, whether it is sent, number of the group
        self._groups: dict[str, int] = {}

    def add(self, start_ps: int, thread: int, group: str, peer: int, *, sends: bool) -> None:
        """Note a call."""
        number = self._groups.setdefault(group, len(self._groups))
        self._times.extend((start_ps, thread, peer, int(sends), number))

    def append(self, other: P2pCalls, threads: IntArray) -> None:
        """Note what ``other`` has, whose threads have these numbers here."""
        groups = np.array(codes_of(list(other._groups), self._groups), dtype=np.int64)
        append_renumbered(self._times, other._times, 5, {1: threads, 4: groups})

    def by_thread(self) -> dict[int, list[tuple[int, str, int, bool]]]:
        """Start, group, peer, and whether it is sent, of each thread's calls by start."""
        groups = list(self._groups)
        found: dict[int, list[tuple[int, str, int, bool]]] = defaultdict(list)
        rows = columns_of(self._times, 5).T
        for start, thread, peer, sends, group in rows[np.argsort(rows[:, 0], kind="stable")].tolist():
            found[thread].append((start, groups[group], peer, bool(sends)))
        return found


class ModuleCalls:
    """Calls of modules, and the ops and autograd nodes with sequence numbers; ps after the origin."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._calls: array[int] = array("q")  # start, end, thread, name
        self._forward: array[int] = array("q")  # start, thread, sequence number
        self._backward: array[int] = array("q")  # start, end, thread, sequence number

    @staticmethod
    def module(name: str) -> str:
        """The module that an event of this name is a call of, or names; "" if none."""
        if name.startswith(_MODULE):
            return name[len(_MODULE) :]
        found = _NAMED.match(name)
        return found["module"] if found is not None else ""

    def add_call(self, module: str, start_ps: int, end_ps: int, thread: int) -> None:
        """Note a call of a module."""
        self._calls.extend((start_ps, end_ps, thread, self._names.setdefault(module, len(self._names))))

    def add_ops(self, names: Sequence[str], columns: IntArray) -> None:
        """Note ops of the framework, in rows start, end, thread and sequence number (negative: none)."""
        node = np.array([name.startswith(_NODE) for name in names], dtype=np.bool_)
        numbered = columns[3] >= 0
        self._backward.frombytes(columns[:, numbered & node].T.tobytes())
        self._forward.frombytes(columns[np.ix_((0, 2, 3), numbered & ~node)].T.tobytes())

    def append(self, other: ModuleCalls, threads: IntArray) -> None:
        """Note what ``other`` has, whose threads have these numbers here."""
        names = np.array(codes_of(list(other._names), self._names), dtype=np.int64)
        append_renumbered(self._calls, other._calls, 4, {2: threads, 3: names})
        append_renumbered(self._forward, other._forward, 3, {1: threads})
        append_renumbered(self._backward, other._backward, 4, {2: threads})

    def of(self, launched_ps: IntArray, thread: IntArray) -> tuple[npt.NDArray[np.int32], list[str]]:
        """By op, launched when on which thread: the number of its module in the list; 0 is none."""
        if not len(self._calls):
            return np.zeros(len(launched_ps), dtype=np.int32), [""]
        calls = columns_of(self._calls, 4).T
        path, paths = self._paths(calls)
        around = innermost(launched_ps, thread, *calls.T[:3])
        found = np.where(around >= 0, path[around], 0)
        nodes, forward = columns_of(self._backward, 4).T, columns_of(self._forward, 3).T
        if len(nodes) and len(forward):
            around_it = innermost(forward[:, 0], forward[:, 1], *calls.T[:3])
            module = np.where(around_it >= 0, path[around_it], 0)
            of_number = dict(zip(forward[::-1, 2].tolist(), module[::-1].tolist(), strict=True))
            node = innermost(launched_ps, thread, *nodes.T[:3])
            told = np.array([of_number.get(number, 0) for number in nodes[:, 3].tolist()], dtype=np.int64)
            found = np.where((found == 0) & (node >= 0), told[node], found)
        return found.astype(np.int32), paths

    def _paths(self, calls: IntArray) -> tuple[IntArray, list[str]]:
        """By call the number of its path of modules from the outermost, and the paths; 0 is none."""
        names = list(self._names)
        numbers: dict[str, int] = {"": 0}
        path = np.zeros(len(calls), dtype=np.int64)
        text = [""] * len(calls)
        open_calls: dict[int, list[int]] = defaultdict(list)
        for at in np.lexsort((-calls[:, 1], calls[:, 0])).tolist():
            start, _, thread, name = calls[at].tolist()
            stack = open_calls[thread]
            while stack and calls[stack[-1], 1] <= start:
                stack.pop()
            text[at] = f"{text[stack[-1]]}.{names[name]}" if stack else names[name]
            path[at] = numbers.setdefault(text[at], len(numbers))
            stack.append(at)
        return path, list(numbers)


@dataclass(frozen=True)
class HostNotes:
    """All of them; each is empty where nothing is recorded."""

    phases: PhaseSpans = field(default_factory=PhaseSpans)
    communication: CommunicationCalls = field(default_factory=CommunicationCalls)
    p2p: P2pCalls = field(default_factory=P2pCalls)
    modules: ModuleCalls = field(default_factory=ModuleCalls)

    def append(self, other: HostNotes, threads: IntArray) -> None:
        """Note what ``other`` has, whose threads have these numbers here."""
        self.phases.append(other.phases)
        self.communication.append(other.communication, threads)
        self.p2p.append(other.p2p, threads)
        self.modules.append(other.modules, threads)


def layers(paths: list[str]) -> IntArray:
    """The layer that each path of modules lies in; -1 outside of layers.

    "layers.3" says so; of class names with an instance's number ("Block_3") the outermost class of which
    there are several instances.
    """
    instances: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for part in path.split("."):
            found = _INSTANCE.match(part)
            if found is not None:
                instances[found.group(1)].add(found.group(2))
    layer = np.full(len(paths), -1, dtype=np.int64)
    for number, path in enumerate(paths):
        named = _NUMBERED.search(path)
        if named is not None:
            layer[number] = int(named.group(1))
            continue
        for part in path.split("."):
            found = _INSTANCE.match(part)
            if found is not None and len(instances[found.group(1)]) > 1:
                layer[number] = int(found.group(2))
                break
    return layer
