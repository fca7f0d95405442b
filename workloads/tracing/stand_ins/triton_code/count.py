"""A launch of a Triton kernel as what it reads, writes and computes.

Note [Counting a Triton kernel]
    The kernel's own code is run, as a few of the programs of its grid, evenly spread, on blocks of which only
    shapes are known.  Numbers that follow from arguments (offsets, masks, lengths of loops) are computed;
    what is loaded is known where the tensor's integers are.  What these programs load, store and multiply
    stands for all.  A tensor is read and written once at most: what is loaded again comes from a cache.  Of
    conditions on what is not known, equality is taken to fail and all else to hold; a loop of unknown length
    runs once.  Of a tuned kernel's configurations the one counts that computes least.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from simcore.records import dataclass
from workloads.tracing.fake.known_values import rely_on, values_of
from workloads.tracing.kernels import KernelCost, LaunchedKernel
from workloads.tracing.stand_ins.triton_code.blocks import Dtype, Pointer, TritonBlock, as_block, as_literal
from workloads.tracing.stand_ins.triton_code.language import Language, TooLongError

#: Programs of a grid that are run.
MOST_PROGRAMS = 32


class CannotCountError(Exception):
    """The kernel's code does what cannot be run on shapes; says what."""


@dataclass(frozen=True)
class TritonLaunch:
    """One launch: the kernel's Python ``function``, ``arguments`` by name, and the grid or what gives it."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    grid: Any


#: What was counted before, by what it depends on.
_known: dict[Any, tuple[dict[str, float], dict[str, float], float]] = {}


def counted(launch: TritonLaunch) -> LaunchedKernel:
    """What ``launch`` reads, writes and computes.  CannotCountError when its code cannot be followed."""
    tensors = {name: _tensor(one) for name, one in launch.arguments.items()}
    places = {name: one for name, one in tensors.items() if one is not None}
    grid = launch.grid(dict(launch.arguments)) if callable(launch.grid) else launch.grid
    sizes = tuple(int(one) for one in (grid if isinstance(grid, tuple | list) else (grid,)))
    key = _key(launch, places, sizes)
    found = _known.get(key)
    if found is None:
        width, height, depth = (*sizes, 1, 1, 1)[:3]
        found = _run(launch, places, (width, height, depth))
        if key is not None:
            _known[key] = found
    read, written, flops = found
    return LaunchedKernel(
        [places[name] for name in read],
        [places[name] for name in written],
        KernelCost(
            flops=round(flops),
            bytes_read=round(sum(_bytes(places[name], elements) for name, elements in read.items())),
            bytes_written=round(sum(_bytes(places[name], elements) for name, elements in written.items())),
        ),
    )


def _bytes(tensor: torch.Tensor, elements: float) -> float:
    return min(elements, tensor.numel()) * tensor.element_size()


def _tensor(one: Any) -> torch.Tensor | None:
    if isinstance(one, torch.Tensor):
        return one
    base = getattr(one, "base", None)  # a descriptor made by the host
    return base if isinstance(base, torch.Tensor) else None


def _key(launch: TritonLaunch, tensors: Mapping[str, torch.Tensor], sizes: tuple[int, ...]) -> Any:
    """None where values of tensors may matter."""
    shapes = []
    for name, tensor in tensors.items():
        if not tensor.dtype.is_floating_point and values_of(tensor) is not None:
            return None
        shapes.append((name, tuple(tensor.shape), tensor.dtype))
    plain = tuple((name, str(one)) for name, one in launch.arguments.items() if name not in tensors)
    return launch.function, sizes, tuple(shapes), plain


def _run(
    launch: TritonLaunch, tensors: Mapping[str, torch.Tensor], grid: tuple[int, int, int]
) -> tuple[dict[str, float], dict[str, float], float]:
    names = list(tensors)
    language = Language(lambda number, at: _known_integers(tensors[names[number]], at))
    language.grid = grid
    TritonBlock.language = language
    program = _Program(launch.function, language)
    arguments = {
        name: _argument(one, name, names, launch.function, language) for name, one in launch.arguments.items()
    }
    total = grid[0] * grid[1] * grid[2]
    wanted = min(total, MOST_PROGRAMS)
    done = 0
    before: tuple[Any, Any, float] = ({}, {}, 0.0)
    for number in range(wanted):
        place = (2 * number + 1) * total // (2 * wanted)
        language.place = place % grid[0], place // grid[0] % grid[1], place // (grid[0] * grid[1])
        try:
            program(**arguments)
        except TooLongError:
            if done:  # what a part of a program did is left out
                language.read, language.written, language.flops = before
                break
            done = 1
            break
        except Exception as error:
            raise CannotCountError(f"{type(error).__name__}: {error}") from error
        done += 1
        before = language.read.copy(), language.written.copy(), language.flops
    scale = total / max(1, done)
    return (
        {names[number]: count * scale for number, count in language.read.items()},
        {names[number]: count * scale for number, count in language.written.items()},
        language.flops * scale,
    )


def _known_integers(tensor: torch.Tensor, at: Any) -> Any:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return None
    values = values_of(tensor)
    if values is None:
        return None
    rely_on(tensor)
    flat = values.reshape(-1).numpy()
    return flat[np.clip(at, 0, flat.size - 1).astype(np.int64)] if flat.size else None


def _argument(one: Any, name: str, names: list[str], function: Any, language: Language) -> Any:
    """An argument as the kernel sees it: constants as they are, numbers and pointers as blocks."""
    annotation = inspect.signature(function).parameters[name].annotation
    if isinstance(one, torch.Tensor):
        kind = Dtype(str(one.dtype).removeprefix("torch."))
        return Pointer(names.index(name), as_block(0), kind)
    if _tensor(one) is not None:
        base = _argument(one.base, name, names, function, language)
        return language.make_tensor_descriptor(base, one.shape, one.strides, one.block_shape)
    if "constexpr" not in (getattr(annotation, "__name__", ""), str(annotation).rpartition(".")[2]) and (
        isinstance(one, int | float) and not isinstance(one, bool)
    ):
        return as_block(one)
    return _seen_inside(one, language)


class _Program:
    """A kernel, or a function that kernels call, whose globals are those of the stand-in language."""

    def __init__(self, function: Any, language: Language, made: dict[Any, _Program] | None = None) -> None:
        self._language = language
        self._made = {} if made is None else made
        self._made[function] = self
        seen = {
            name: self._inside(function.__globals__[name])
            for name in function.__code__.co_names
            if name in function.__globals__
        }
        seen["__builtins__"] = _BUILTINS | {
            "range": language.range,
            "min": language.minimum,
            "max": language.maximum,
            "print": lambda *_, **__: None,
        }
        cells = tuple(types.CellType(self._inside(cell.cell_contents)) for cell in function.__closure__ or ())
        code = function.__code__
        self._function = types.FunctionType(
            code.replace(co_consts=tuple(map(as_literal, code.co_consts))),
            seen,
            function.__name__,
            function.__defaults__,
            cells,
        )
        self._function.__kwdefaults__ = function.__kwdefaults__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def _inside(self, value: Any) -> Any:
        function = value
        while hasattr(function, "fn") and not isinstance(function, types.ModuleType):
            function = function.fn
        if function is not value and isinstance(function, types.FunctionType):
            return self._made.get(function) or _Program(function, self._language, self._made)
        return _seen_inside(value, self._language)


_BUILTINS = dict(vars(builtins))
#: Short names of types of elements.
_LONG = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def _seen_inside(value: Any, language: Language) -> Any:
    """What stands for a name of Triton's inside a kernel; anything else as it is."""
    if type(value).__name__ == "constexpr":
        return _seen_inside(value.value, language)
    is_module = isinstance(value, types.ModuleType)
    where = value.__name__ if is_module else getattr(value, "__module__", None) or type(value).__module__
    if not str(where).startswith("triton"):
        return value
    name = str(getattr(value, "__name__", None) or getattr(value, "name", "")).rpartition(".")[2]
    if is_module and name in ("triton", "language", "math", "libdevice", "extra"):
        return language
    return getattr(language, _LONG.get(name, name))
