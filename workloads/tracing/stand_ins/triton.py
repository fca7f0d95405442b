"""Triton kernels, installed or not: a launch becomes the kernel that the user described, else what its code
says (Note [Counting a Triton kernel]).

Nothing is compiled.  With Triton installed its own launches are taken over; without it, a stand-in module
serves scripts that only define and launch kernels.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.fake import visible_devices
from workloads.tracing.fake.cuda import DEVICE_PROPERTIES
from workloads.tracing.stand_ins.triton_code import CannotCountError, TritonLaunch, counted


def take_over(triton: ModuleType) -> None:
    """Make the launches of an installed Triton go to :func:`workloads.tracing.kernels.launch_described`."""
    runtime: Any = triton.runtime
    for name in ("JITFunction", "Autotuner", "Heuristics"):
        owner: Any = getattr(runtime, name, None) or getattr(
            sys.modules.get("triton.runtime.jit"), name, None
        )
        if owner is not None:
            owner.run = _run
    with suppress(AttributeError):
        runtime.driver.set_active(_DRIVER)


#: Configurations of a tuned kernel that are compared.
_MOST_CONFIGURATIONS = 8

#: ``triton.runtime.driver.active``: programs ask it what GPU there is.
_DRIVER = SimpleNamespace(
    get_current_target=lambda: SimpleNamespace(
        backend="cuda",
        arch=10 * DEVICE_PROPERTIES["major"] + DEVICE_PROPERTIES["minor"],
        warp_size=DEVICE_PROPERTIES["warp_size"],
    ),
    get_current_device=visible_devices.current,
    set_current_device=visible_devices.select,
    get_current_stream=lambda *_: 0,
    get_device_interface=lambda: torch.cuda,
    get_active_torch_device=lambda: torch.device("cuda", visible_devices.current()),
    is_active=lambda: True,
    utils=SimpleNamespace(
        get_device_properties=lambda *_: {
            "multiprocessor_count": DEVICE_PROPERTIES["multi_processor_count"],
            "max_shared_mem": DEVICE_PROPERTIES["shared_memory_per_block_optin"],
            "max_num_regs": DEVICE_PROPERTIES["regs_per_multiprocessor"],
            "warpSize": DEVICE_PROPERTIES["warp_size"],
        }
    ),
)


def _run(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:  # noqa: ARG001
    rules: dict[str, Callable[..., Any]] = {}
    tuner: Any = None
    while hasattr(self, "fn"):  # tuners wrap the kernel, the kernel wraps the Python function
        if tuner is None and getattr(self, "configs", None):
            tuner = self
        rules |= getattr(self, "values", None) or {}
        self = self.fn
    launch = partial(_launched, self, args, kwargs, rules, grid)
    if kernels.is_described(self.__name__):
        configs = [] if tuner is None else tuner.configs[:1]
        given = {name: one for config in configs for name, one in config.kwargs.items()}
        kernels.launch_described(self.__name__, args, {**given, **kwargs})
        return
    try:
        launched = launch({}) if tuner is None else _tuned(tuner, self, args, kwargs, launch)
    except CannotCountError as error:
        raise kernels.UnknownKernelError(self.__name__, str(error)) from error
    kernels.counted.add(self.__name__)
    kernels.launch(self.__name__, reads=launched.reads, writes=launched.writes, cost=launched.cost)


def _launched(
    function: Any,
    args: Any,
    kwargs: dict[str, Any],
    rules: dict[str, Callable[..., Any]],
    grid: Any,
    configuration: dict[str, Any],
) -> kernels.LaunchedKernel:
    given = _arguments(function, args, {**configuration, **kwargs}, rules)
    return counted(TritonLaunch(function, given, grid))


def _tuned(
    tuner: Any, function: Any, args: Any, kwargs: dict[str, Any], launch: Callable[..., Any]
) -> kernels.LaunchedKernel:
    """The launch of the configuration that computes least, then moves least, as tuning would find it: others
    multiply what lies outside of tensors.  Chosen once for what the program says that tuning depends on.
    """
    named = {**dict(zip(inspect.signature(function).parameters, args, strict=False)), **kwargs}
    chosen: dict[Any, Any] = vars(tuner).setdefault("_simcore_chosen", {})
    key = tuple(str(named.get(name)) for name in getattr(tuner, "keys", None) or ())
    if key in chosen:
        tuner.best_config = chosen[key]
        launched: kernels.LaunchedKernel = launch(chosen[key].kwargs)
        return launched
    distinct = {str(one.kwargs): one for one in reversed(tuner.configs)}
    candidates = [one for one in tuner.configs if distinct[str(one.kwargs)] is one][:_MOST_CONFIGURATIONS]
    found: list[Any] = []
    failed = CannotCountError("it has no configuration")
    for config in candidates:
        try:
            one = launch(config.kwargs)
        except CannotCountError as error:
            failed = error
            continue
        found.append((one.cost.flops, one.cost.bytes_read + one.cost.bytes_written, len(found), one, config))
    if not found:
        raise failed
    *_, launched, tuner.best_config = min(found, key=lambda one: one[:3])
    chosen[key] = tuner.best_config
    return launched


def _arguments(
    function: Any, args: Any, kwargs: dict[str, Any], rules: dict[str, Callable[..., Any]]
) -> dict[str, Any]:
    """Arguments by name, without those of the launch (``num_warps``, ...); heuristics are applied."""
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    given = dict(zip(names, args, strict=False))
    given |= {name: one for name, one in kwargs.items() if name in parameters}
    for name, rule in rules.items():
        given[name] = rule({**kwargs, **given})
    for name, parameter in parameters.items():
        if name not in given and parameter.default is not inspect.Parameter.empty:
            given[name] = parameter.default
    missing = [name for name in names if name not in given]
    if missing:
        raise CannotCountError(f"it is launched without {missing[0]!r}")
    return given


class _Kernel:
    """What ``triton.jit`` makes of a function (``triton.runtime.JITFunction``)."""

    def __init__(self, function: Any, *_: Any, **__: Any) -> None:
        self.fn = function
        self.__name__, self.__doc__, self.__module__ = (
            function.__name__,
            function.__doc__,
            function.__module__,
        )
        self.arg_names = list(getattr(function, "arg_names", None) or inspect.signature(function).parameters)

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> None:
        """A launch."""
        _run(self, *args, **kwargs)


class _Autotuner(_Kernel):
    """What ``triton.autotune`` makes of a kernel (``triton.runtime.Autotuner``)."""

    def __init__(
        self, kernel: Any, arg_names: Any = (), configs: Sequence[Any] = (), key: Any = (), *_: Any, **__: Any
    ) -> None:
        super().__init__(kernel)
        self.arg_names = list(arg_names) or self.arg_names
        self.configs, self.keys = list(configs or ()), list(key or ())
        self.cache: dict[Any, Any] = {}
        self.early_config_prune = self.perf_model = self.pre_hook = self.post_hook = None
        self.user_defined_pre_hook = self.user_defined_post_hook = False
        self.reset_to_zero: list[str] = []
        self.restore_value: list[str] = []


class _Heuristics(_Kernel):
    """What ``triton.heuristics`` makes of a kernel (``triton.runtime.autotuner.Heuristics``)."""

    def __init__(self, kernel: Any, _arg_names: Any = (), values: Any = None) -> None:
        super().__init__(kernel)
        self.values = values


class _Config:
    """``triton.Config``."""

    def __init__(self, kwargs: dict[str, Any], *_: Any, **options: Any) -> None:
        self.kwargs = kwargs
        vars(self).update(options)


class _Descriptor:
    """``TensorDescriptor``: a tensor that is read and written in blocks."""

    def __init__(self, base: Any, shape: Any, strides: Any, block_shape: Any, *_: Any) -> None:
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, block_shape

    @classmethod
    def from_tensor(cls, tensor: Any, block_shape: Any, *_: Any) -> _Descriptor:
        """One of all of ``tensor``."""
        return cls(tensor, tensor.shape, tensor.stride(), block_shape)


class constexpr:  # noqa: N801  kernels' annotations say this name
    """``triton.language.constexpr``: a constant is itself, and has a ``value``."""

    def __new__(cls, value: Any) -> Any:
        """The value; of truth values and None there is no kind that has one."""
        kind = type(value)
        if kind not in (int, float, str):
            return value
        return type("constexpr", (kind,), {"value": property(kind)})(value)


class _AnyClass(Exception):  # noqa: N818  some are caught
    """Stands for every class outside of ``triton.language``: torch's compiler inherits from them."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()


class _Anything(ModuleType):
    """Stands for every name of ``triton.language``, which only compiled code uses, and other functions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper() and not self.__name__.startswith("triton.language"):
            made: Any = type(name, (_AnyClass,), {"__module__": self.__name__})
        else:
            made = _Anything(f"{self.__name__}.{name}")
            vars(made).update(members(made.__name__) or {})
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getitem__(self, _index: object) -> Any:
        return self


def _autotune(configs: Any = (), key: Any = (), *_: Any, **__: Any) -> Any:
    """``triton.autotune``."""
    return partial(_Autotuner, configs=configs, key=key)


_RUNTIME = {
    "JITFunction": _Kernel,
    "Autotuner": _Autotuner,
    "Heuristics": _Heuristics,
    "autotune": _autotune,
}

#: Programs compare it with much older ones.
_VERSION = "3.7.1"


def make_module(name: str) -> ModuleType:
    """Any module of Triton."""
    return _Anything(name)


def members(name: str) -> dict[str, Any] | None:
    """What is in a module of Triton beside what compiled code uses."""
    if name.startswith("triton.experimental"):  # other languages, which programs do without
        return None
    if name == "triton.runtime.driver":
        return {"active": _DRIVER}
    if name.startswith("triton.runtime"):
        found: dict[str, Any] = dict(_RUNTIME)
        if name == "triton.runtime":
            found["driver"] = make_module("triton.runtime.driver")
            found["driver"].active = _DRIVER
        return found
    if name == "triton.language":
        return {"constexpr": constexpr}
    if name == "triton.tools.tensor_descriptor":
        return {"TensorDescriptor": _Descriptor}
    if name != "triton":
        return {}
    return {
        "__version__": _VERSION,
        "jit": lambda function=None, **_: _Kernel(function) if function is not None else _Kernel,
        "autotune": _autotune,
        "heuristics": lambda values: partial(_Heuristics, values=values),
        "Config": _Config,
        "cdiv": lambda count, block: -(-count // block),
        "next_power_of_2": lambda count: 1 << max(0, count - 1).bit_length(),
    }
