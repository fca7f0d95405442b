"""What a C++ function returns, read from its sources: tensors that it declares, by sizes of its arguments.

Functions around a kernel begin alike: they work out sizes as whole numbers, make an empty tensor and return
it once the kernel is launched.  Such declarations, at the top level of the function, are evaluated in their
order.  A function that returns in several places, or gives a returned tensor another value later, is not
understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

_DECLARATION = re.compile(
    r"(?:static\s+|const\s+)*(?:auto|int|long|int32_t|int64_t|size_t|float|double|bool|(?:torch::|at::)?Tensor)"
    r"\s*&?\s+(\w+)\s*(?:=\s*(.+)|\((.+)\))",
    re.DOTALL,
)
_DTYPES = {
    **{"Float": torch.float32, "Float32": torch.float32, "Double": torch.float64, "Half": torch.float16},
    **{"Float16": torch.float16, "BFloat16": torch.bfloat16, "Int": torch.int32, "Int32": torch.int32},
    **{"Long": torch.int64, "Int64": torch.int64, "Byte": torch.uint8, "UInt8": torch.uint8},
    **{"Char": torch.int8, "Int8": torch.int8, "Bool": torch.bool},
}
#: What is Python's once it is replaced.
_SPELT = (
    (r"\((?:int|long|int32_t|int64_t|size_t|float|double)\)", ""),
    (r"static_cast\s*<[^<>]*>", ""),
    (r"(?:std::vector|at::IntArrayRef|torch::IntArrayRef|c10::IntArrayRef)\s*(?:<\w+>)?\s*(?=[({])", ""),
    (r"std::make_tuple|std::tie", "list_of"),
    (r"\b(?:torch|at|c10)::", "of_torch."),
    (r"->", "."),
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"!(?!=)", " not "),
    (r"(?<!/)/(?!/)", "//"),
    (r"\btrue\b", "True"),
    (r"\bfalse\b", "False"),
    (r"\{", "["),
    (r"\}", "]"),
)


class _TensorOptions:
    """``TensorOptions``, each call with one thing changed."""

    def __init__(self, dtype: torch.dtype | None = None, device: Any = None) -> None:
        self.chosen: dict[str, Any] = {"dtype": dtype, "device": device}

    def dtype(self, dtype: torch.dtype) -> _TensorOptions:
        return _TensorOptions(dtype, self.chosen["device"])

    def device(self, device: Any, _index: int = 0) -> _TensorOptions:
        return _TensorOptions(self.chosen["dtype"], device)

    def requires_grad(self, _requires: bool = False) -> _TensorOptions:
        return self

    memory_format = layout = requires_grad


class _CppTensor:
    """A tensor as C++ names what it asks of one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def options(self) -> _TensorOptions:
        return _TensorOptions(self.tensor.dtype, self.tensor.device)

    def sizes(self) -> list[int]:
        return list(self.tensor.shape)

    def scalar_type(self) -> torch.dtype:
        return self.tensor.dtype

    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    type = dtype

    def device(self) -> torch.device:
        return self.tensor.device

    def suggest_memory_format(self) -> torch.memory_format:
        dense = self.tensor.is_contiguous()
        last = not dense and self.tensor.dim() == 4
        last = last and self.tensor.is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if last else torch.contiguous_format

    def contiguous(self) -> _CppTensor:
        return _CppTensor(self.tensor.contiguous())

    def __getattr__(self, name: str) -> Any:
        if name not in ("size", "dim", "numel", "stride", "element_size"):
            raise AttributeError(name)
        return getattr(self.tensor, name)


class _TorchSpace:
    """``torch::`` and ``at::``: constants, options and what makes tensors."""

    TensorOptions = _TensorOptions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("k") and name[1:] in _DTYPES:
            return _DTYPES[name[1:]]
        if name == "kCUDA":
            return torch.device("cuda", torch.cuda.current_device())
        if name in ("empty", "zeros", "ones"):
            return lambda shape, *options: _CppTensor(torch.empty(shape, **_chosen(options)))
        if name in ("empty_like", "zeros_like", "ones_like"):
            return lambda like, *options: _CppTensor(torch.empty_like(like.tensor, **_chosen(options)))
        raise AttributeError(name)


def _chosen(options: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in options:
        if isinstance(one, _TensorOptions):
            found |= {name: value for name, value in one.chosen.items() if value is not None}
        elif isinstance(one, torch.dtype):
            found["dtype"] = one
        elif isinstance(one, torch.memory_format):
            found["memory_format"] = one
    return found


def results(code: str, function: str, parameters: Sequence[str], args: Sequence[Any]) -> Any:
    """The tensors that ``function`` of ``code`` (without comments) returns for ``args``, one or a tuple; None
    where that is not understood.
    """
    statements, body = _top_level(code, function)
    returned = re.findall(r"\breturn\b\s*([^;]*);", body)
    if len(returned) != 1 or len(args) > len(parameters):
        return None
    of_torch = _TorchSpace()
    known: dict[str, Any] = {"of_torch": of_torch, "list_of": lambda *given: list(given)}
    for text, value in zip(parameters, args, strict=False):
        name = re.findall(r"\w+", text.partition("=")[0])[-1:]
        known |= {one: _CppTensor(value) if isinstance(value, torch.Tensor) else value for one in name}
    for statement in statements:
        found = _DECLARATION.fullmatch(statement)
        if found is not None:
            known[found.group(1)] = _value(found.group(2) or found.group(3), known)
    names = re.findall(r"\b[a-z_]\w*\b", returned[0])
    if any(len(re.findall(rf"(?<![\w.>]){one}\s*=(?!=)", body)) > 1 for one in names):
        return None
    made = _value(returned[0], known)
    if isinstance(made, _CppTensor):
        return made.tensor
    if isinstance(made, list) and made and all(isinstance(one, _CppTensor) for one in made):
        return tuple(one.tensor for one in made)
    return None


def _value(text: str, known: dict[str, Any]) -> Any:
    """Of an expression; None where it is not understood."""
    for spelt, instead in _SPELT:
        text = re.sub(spelt, instead, text)
    chosen = re.fullmatch(r"(.+?)\?(.+?)(?<!:):(?!:)(.+)", text, re.DOTALL)
    if chosen:
        text = f"({chosen.group(2)}) if ({chosen.group(1)}) else ({chosen.group(3)})"
    try:
        return eval(" ".join(text.split()), {"__builtins__": {}}, known)
    except Exception:  # of C++ that is no Python
        return None


def _top_level(code: str, function: str) -> tuple[list[str], str]:
    """The statements of a function that are in none of its blocks, and all that is in its braces."""
    begin = re.search(rf"\b{re.escape(function)}\s*\([^(){{}};]*(?:\([^()]*\)[^(){{}};]*)*\)\s*\{{", code)
    if begin is None:
        return [], ""
    depth, place = 1, begin.end()
    while depth and place < len(code):
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        place += 1
    body = code[begin.end() : place - 1]
    statements, inside, last = [], 0, ""
    for sign in body:
        if sign == ";" and not inside:
            statements.append(last.strip())
            last = ""
            continue
        inside += {"{": 1, "}": -1, "(": 1, ")": -1}.get(sign, 0)
        last = "" if sign == "}" and not inside and not _opens_list(last) else last + sign
    return statements, body


def _opens_list(text: str) -> bool:
    """Whether the last brace that opened in ``text`` begins a list of values and no block."""
    return bool(re.search(r"[=(,]\s*\{[^{]*$|>\s*\{[^{]*$", text))
