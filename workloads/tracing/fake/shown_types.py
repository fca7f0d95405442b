"""``type(x) is torch.Tensor`` in a program's code holds for tensors of the device, as it does for real.

Tensors without data are of a class of their own, which ``isinstance`` hides and ``type`` shows.  Comparisons
of ``type(...)`` are compiled to ask for the class that a real tensor has; code that has none is compiled, and
cached, as it is.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import re
import runpy
from types import CodeType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing.sites import owner

_NAME = "__simcore_type__"
_COMPARED = re.compile(rb"\btype\([^\n]*\)[^\n]*(?:==|!=|\bis\b|\bin\b)|(?:==|!=|\bis\b)[^\n]*\btype\(")
_WITH_EACH_OTHER = re.compile(rb"\btype\([^\n]*(?:==|!=|\bis|\bis not)\s*type\(")


def shown_type(value: Any) -> type:
    """What ``type`` would say of ``value`` in a real run."""
    kind = type(value)
    if kind is not FakeTensor:
        return kind
    return torch.nn.Parameter if getattr(value, "_is_param", False) else torch.Tensor


class _Asking(ast.NodeTransformer):
    """Compared calls of ``type`` with one argument, also of their names, ask :func:`shown_type`."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for operand in (node.left, *node.comparators):
            call = operand.value if isinstance(operand, ast.Attribute) else operand
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "type":
                call.func.id = _NAME if len(call.args) == 1 and not call.keywords else "type"
        return node


def _compares(source: bytes) -> bool:
    """Whether code may compare types of tensors, with each other or with one that it names; most files are
    told by their words alone.
    """
    return (
        b"type(" in source
        and _COMPARED.search(source) is not None
        and (b"torch" in source or b"Tensor" in source or _WITH_EACH_OTHER.search(source) is not None)
    )


def _compiled(source: Any, path: Any, *how: Any, **named: Any) -> Any:
    """As ``compile``, of a whole file."""
    if isinstance(source, bytes) and _compares(source):
        source = _Asking().visit(ast.parse(source, path))
    return compile(source, path, *how, **named)


def install() -> None:
    """For scripts and modules that are read from now on, but torch, Python's library and the tracer."""
    vars(builtins)[_NAME] = shown_type
    vars(runpy)["compile"] = _compiled
    loader: Any = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def of_program(self: Any, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if owner(path) not in ("torch", "python", "simcore"):
            source = self.get_data(path)
            if _compares(source):
                code: CodeType = _compiled(source, path, "exec", dont_inherit=True)
                return code
        found: CodeType | None = get_code(self, fullname)
        return found

    loader.get_code = of_program
