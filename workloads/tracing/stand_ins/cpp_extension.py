"""Extensions that a program compiles from its own C++ and CUDA sources (``torch.utils.cpp_extension.load``).

Nothing is compiled.  A function that the sources offer is one kernel, under the extension's name and its own:
it writes what its schema says, else those of its tensors that nobody has written before (buffers that the
program has just made), else all that it does not call constant, and reads all others, each once.  What it
returns is what its sources make (:mod:`workloads.tracing.stand_ins.cpp_results`).  What it computes is not
seen: a warning names it, and ``register_launch`` describes it, results included.  Optimizers' kernels under
apex's names are apex's.  What is called with tensors of the host alone is the host's, and left out.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from simcore.records import dataclass
from workloads.tracing import kernels
from workloads.tracing.stand_ins import cpp_results
from workloads.tracing.stand_ins.apex import AMP_C

#: ``m.def("name(schema) -> ()"`` or ``m.def("name", &function``, in what registers functions.
_OFFERED = re.compile(r'\.def\(\s*((?:"[^"]*"\s*)+)(?:,\s*&?\s*(?:TORCH_FN\()?([\w:]+))?')
#: ``py::class_<Type>(m, "name").def(...).def(...);``
_CLASS = re.compile(r'py::class_\s*<[^>]*>\s*\(\s*\w+\s*,\s*"(\w+)"[^;]*;')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_RETURNS_NOTHING = re.compile(r"->\s*\(\s*\)|^\s*void\b")

#: Told of every function whose work is not seen.
on_unseen: Callable[[str], None] | None = None


@dataclass(frozen=True)
class _Declared:
    """How a function is declared: its parameters, whether it returns anything; its name in ``code``."""

    parameters: tuple[str, ...]
    returns: bool
    function: str = ""
    code: str = ""


class CompiledFunction:
    """A function of an extension, called ``name`` in warnings and in :func:`kernels.register_launch`."""

    def __init__(self, name: str, declared: _Declared | None) -> None:
        self.name, self._declared = name, declared
        self.default = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One launch; gives what a description says that it writes, where the function returns something.

        UnknownKernelError where nobody described it and its sources do not tell what it returns.
        """
        declared, given = self._declared, _tensors([*args, *kwargs.values()])
        if given and not any(one.is_cuda for one in given):
            if on_unseen is not None:
                on_unseen(f"what {self.name} does to tensors of the host is compiled code and left out")
            return None
        if kernels.is_described(self.name):
            made = kernels.launch_described(self.name, args, kwargs).writes
            if declared is not None and not declared.returns:
                return None
            return made[0] if len(made) == 1 else tuple(made)
        if (of_apex := AMP_C.get(self.name.rpartition("::")[2])) is not None:
            return of_apex(*args, **kwargs)
        if declared is None or declared.returns:
            return self._made(declared, args, kwargs)
        pairs = [*zip(declared.parameters, args, strict=False), *(("", one) for one in kwargs.values())]
        tensors = [(text, one) for text, value in pairs for one in _tensors(value)]
        writes = [one for text, one in tensors if "!" in text]
        writes = writes or [one for _, one in tensors if kernels.is_unwritten(one)]
        writes = writes or [one for text, one in tensors if "const" not in text]
        fresh = {id(one) for one in writes if kernels.is_unwritten(one)}
        kernels.launch(self.name, reads=[one for _, one in tensors if id(one) not in fresh], writes=writes)
        self._say_unseen()
        return None

    def _made(self, declared: _Declared | None, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the sources say that it makes and returns."""
        found = None
        if declared is not None and not kwargs:
            found = cpp_results.results(declared.code, declared.function, declared.parameters, args)
        if found is None:
            why = "its declaration was not found" if declared is None else "it returns what it makes"
            raise kernels.UnknownKernelError(self.name, why)
        writes = list(found) if isinstance(found, tuple) else [found]
        kernels.launch(self.name, reads=[one for value in args for one in _tensors(value)], writes=writes)
        self._say_unseen()
        return found

    def _say_unseen(self) -> None:
        if on_unseen is not None:
            on_unseen(f"what {self.name} computes is compiled code and not seen: it costs its tensors' bytes")


def install(module: Any) -> None:
    """Patch ``torch.utils.cpp_extension``, once per process."""
    module.load, module.load_inline = _load, _load_inline
    module.CUDA_HOME = module.CUDA_HOME or "/usr/local/cuda"  # as on machines that have the GPUs


def _load(name: str, sources: Any, *_: Any, **options: Any) -> Any:
    """``torch.utils.cpp_extension.load``."""
    paths = [sources] if isinstance(sources, str | Path) else sources
    code = "\n".join(Path(one).read_text(encoding="utf-8", errors="replace") for one in paths)
    return _made(name, code, (), python=options.get("is_python_module", True))


def _load_inline(
    name: str, cpp_sources: Any, cuda_sources: Any = None, *_: Any, functions: Any = None, **options: Any
) -> Any:
    """``torch.utils.cpp_extension.load_inline``."""
    texts = [[one] if isinstance(one, str) else one or [] for one in (cpp_sources, cuda_sources)]
    code = "\n".join(itertools.chain.from_iterable(texts))
    names = [functions] if isinstance(functions, str) else list(functions or ())
    return _made(name, code, names, python=options.get("is_python_module", True))


def _made(name: str, code: str, names: Sequence[str], *, python: bool) -> Any:
    code = _COMMENT.sub("", code)
    offered: dict[str, Any] = {one: CompiledFunction(f"{name}::{one}", _declared(code, one)) for one in names}
    for found in _CLASS.finditer(code):
        offered[found.group(1)] = _class(f"{name}::{found.group(1)}", found.group(0), code)
    for found in _OFFERED.finditer(_CLASS.sub("", code)):
        text = "".join(re.findall(r'"([^"]*)"', found.group(1)))
        plain = text.partition("(")[0].partition("::")[2] or text.partition("(")[0]
        if "(" in text:
            inside, _, result = text.partition("(")[2].rpartition("->")
            parameters = inside.rpartition(")")[0]
            declared = _Declared(_split(parameters), not _RETURNS_NOTHING.search(f"->{result}"))
            offered[plain] = CompiledFunction(f"{name}::{plain}", declared)
        elif plain not in offered:
            function = (found.group(2) or plain).rpartition(":")[2]
            offered[plain] = CompiledFunction(f"{name}::{plain}", _declared(code, function))
    for library in re.findall(r"TORCH_LIBRARY(?:_FRAGMENT)?\(\s*(\w+)", code):
        space = name if library == "TORCH_EXTENSION_NAME" else library
        setattr(torch.ops, space, type(space, (), offered)())
    if not python:
        return None
    module = sys.modules[name] = ModuleType(name)  # as CPython notes compiled modules
    vars(module).update(offered)
    return module


def _class(name: str, offered: str, code: str) -> type:
    """A class that the sources offer: made of whatever, its methods kernels."""
    methods: dict[str, Any] = {"__init__": lambda *_, **__: None}
    for found in _OFFERED.finditer(offered):
        method = "".join(re.findall(r'"([^"]*)"', found.group(1)))
        function = (found.group(2) or method).rpartition(":")[2]
        methods[method] = staticmethod(CompiledFunction(f"{name}::{method}", _declared(code, function)))
    return type(name.rpartition(":")[2], (), methods)


def _declared(code: str, function: str) -> _Declared | None:
    """How C++ declares ``function``; None: it does not."""
    found = re.search(rf"([\w:<>,\s*&]+?)\b{re.escape(function)}\s*\(([^()]*)\)\s*[;{{]", code)
    if found is None:
        return None
    result = found.group(1).strip().rpartition("\n")[2] or found.group(1)
    return _Declared(_split(found.group(2)), not _RETURNS_NOTHING.search(result), function, code)


def _split(parameters: str) -> tuple[str, ...]:
    """At commas that are in no brackets."""
    return tuple(one.strip() for one in re.split(r",(?![^<(\[]*[>)\]])", parameters))


def _tensors(value: Any) -> list[torch.Tensor]:
    """Those that it is or that lists in it hold, however deep (apex hands on a list of lists)."""
    if isinstance(value, list | tuple):
        return [one for inner in value for one in _tensors(inner)]
    return [value] if isinstance(value, torch.Tensor) else []
