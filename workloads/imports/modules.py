"""Which module of the model launched an op: from a profiler's notes of module calls and autograd's numbers.

With ``with_stack`` or ``with_modules`` PyTorch's profiler records each call of a module
("nn.Module: Linear_3", the instance's number behind its class).  A backward runs outside of them; its nodes
carry the sequence number of the forward op that they belong to, and so belong to that op's module.
Frameworks also name modules in annotations ("FSDP::all_gather (layers.3)").
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from workloads.imports.innermost import innermost

_MODULE = "nn.Module: "
_NAMED = re.compile(r"FSDP::\w+ \((?P<module>[\w.]+)\)$")
_NODE = "autograd::engine::evaluate_function"
_NUMBERED = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d{1,6})(?:\.|$)")  # "model.layers.3.mlp"
_INSTANCE = re.compile(r"(.+)_(\d{1,6})$")


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

    def add_op(self, name: str, sequence: int, start_ps: int, end_ps: int, thread: int) -> None:
        """Note an op of the framework that has a sequence number."""
        if name.startswith(_NODE):
            self._backward.extend((start_ps, end_ps, thread, sequence))
        else:
            self._forward.extend((start_ps, thread, sequence))

    def of(self, launched_ps: IntArray, thread: IntArray) -> tuple[npt.NDArray[np.int32], list[str]]:
        """By op, launched when on which thread: the number of its module in the list; 0 is none."""
        if not len(self._calls):
            return np.zeros(len(launched_ps), dtype=np.int32), [""]
        calls = _rows(self._calls, 4)
        path, paths = self._paths(calls)
        around = _around(launched_ps, thread, calls)
        found = np.where(around >= 0, path[around], 0)
        nodes, forward = _rows(self._backward, 4), _rows(self._forward, 3)
        if len(nodes) and len(forward):
            inside = _around(forward[:, 0], forward[:, 1], calls)
            module = np.where(inside >= 0, path[inside], 0)
            of_number = dict(zip(forward[::-1, 2].tolist(), module[::-1].tolist(), strict=True))
            node = _around(launched_ps, thread, nodes)
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


def _rows(values: array[int], width: int) -> IntArray:
    return np.frombuffer(values, dtype=np.int64).reshape(-1, width)


def _around(times: IntArray, thread: IntArray, spans: IntArray) -> IntArray:
    """The innermost of ``spans`` (start, end, thread) around each time of a thread; -1: none."""
    found = np.full(len(times), -1, dtype=np.int64)
    for number in np.unique(spans[:, 2]).tolist():
        mine = np.flatnonzero(spans[:, 2] == number)
        mine = mine[np.lexsort((-spans[mine, 1], spans[mine, 0]))]
        asked = np.flatnonzero(thread == number)
        asked = asked[np.argsort(times[asked], kind="stable")]
        innermost(
            times[asked].tolist(), asked.tolist(), spans[mine, 0].tolist(), spans[mine, 1].tolist(),
            mine.tolist(), found,
        )  # fmt: skip
    return found
