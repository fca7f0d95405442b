"""Answers for code that asks a tensor without data for its values.

What is known (:mod:`workloads.tracing.fake.known_values`) is the answer.  A host branch on another value of
the device (a loss, a gradient norm) must go somewhere: floats read as 1.0, integers as 0 or what a program
clamps them to at least, booleans of the device as False (they are overflow flags), of the host as True, in an
assertion as it passes.  Of a mask every element counts as true: an upper bound on what is selected.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch._dynamo  # its table of torch functions must be filled before they are patched
from torch import full, zeros
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributions import constraints
from torch.utils._python_dispatch import _disable_current_modes

from workloads.tracing.fake import gpu_kernels, recurrent, shapes_by_running, visible_devices
from workloads.tracing.fake.known_values import (
    forget,
    rely_on,
    remember_value,
    values_of,
    was_too_large,
)
from workloads.tracing.fake.presumptions import least, presume, presumed
from workloads.tracing.fake.true_counts import most_true
from workloads.tracing.sites import asserted, is_asked_by

_INITIALISERS = (
    "uniform_",
    "normal_",
    "trunc_normal_",
    "constant_",
    "ones_",
    "zeros_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "orthogonal_",
)

#: The rules by which an integer that is not known is answered, and what would be known if it were smaller.
UNKNOWN_INTEGER = "an unknown integer"
TOO_LARGE = "computed of more elements than are followed"

#: Told of a tensor that the host reads as a whole, and of the name of what reads it.
on_host_read: Callable[[torch.Tensor, str], None] | None = None

#: Asked with (kind, tensor, default answer) for every value that a run on shapes cannot know.  Kinds: "item"
#: (the value), "share" (the part of a mask's elements that are true, or of entries that are unique), "size"
#: (how many elements a result has), "routing" (how unevenly tokens choose experts), "order" (places of
#: what is sorted; said, not asked), "groups" (how rows are spread; said, not asked).
ask: Callable[[str, torch.Tensor, Any], Any] | None = None

#: Likewise; gives the answer and what is to be called once the program makes use of it.
ask_later: Callable[[str, torch.Tensor, Any], tuple[Any, Callable[[], None]]] | None = None


_RULES = {
    "share": "every element counts as true, every entry as different",
    "size": "as many as without values",
    "routing": "the largest by the load of experts",
    "order": "as they stand, the largest spread evenly",
    "overflow": "gradients do not overflow",
    "groups": "rows are spread evenly over the groups of a product",
}


def rule_of(kind: str, tensor: torch.Tensor) -> str:
    """How a value of ``kind`` that is not known is answered."""
    if kind == "share" and tensor.dtype == torch.bool and most_true(tensor) < tensor.numel():
        return "as many elements count as true as were set"
    if kind != "item":
        return _RULES.get(kind, "")
    if presumed(tensor) is not None:
        return "values are finite, and valid where distributions check them"
    if tensor.dtype == torch.bool and asserted() is not None:
        return "what a program asserts, or raises otherwise, is so"
    if was_too_large(tensor):
        return TOO_LARGE
    if tensor.dtype == torch.bool:
        where = "host, true" if tensor.device.type == "cpu" else "device, false"
        return f"an unknown truth value of the {where}"
    return "an unknown float" if tensor.dtype.is_floating_point else UNKNOWN_INTEGER


def _answer(kind: str, tensor: torch.Tensor, default: Any) -> Any:
    return default if ask is None else ask(kind, tensor, default)


def read_scalar(tensor: torch.Tensor) -> bool | int | float:
    """The value that ``item()`` returns for a tensor without data (see the module's docstring)."""
    known = values_of(tensor)
    rely_on(tensor)
    if known is not None:
        with torch._C._DisableTorchDispatch():
            found: bool | int | float = known.reshape(-1)[0].item()
        return found
    default: bool | int | float = 1.0 if tensor.dtype.is_floating_point else max(0, least(tensor))
    if tensor.dtype == torch.bool:
        taken = asserted() if presumed(tensor) is None else presumed(tensor)
        default = tensor.device.type == "cpu" if taken is None else taken
    return type(default)(_answer("item", tensor, default))


def read_values(tensor: torch.Tensor) -> torch.Tensor:
    """All values of a tensor without data, on the host: known, or the one that :func:`read_scalar` gives."""
    known = values_of(tensor)
    rely_on(tensor)
    if known is not None:
        return known
    answer = read_scalar(tensor) if tensor.numel() else 0
    with torch._C._DisableTorchDispatch():
        return full(tensor.shape, answer, dtype=tensor.dtype, device="cpu")


def routing_exponent(scores: torch.Tensor, default: float) -> tuple[float, Callable[[], None]]:
    """Exponent of the Zipf load with which tokens choose experts by ``scores``, and what is to be called when
    sizes, or what the host reads, come to depend on the choice.
    """
    exponent, tell = (default, lambda: None) if ask_later is None else ask_later("routing", scores, default)
    return float(exponent), tell


def num_selected(mask: torch.Tensor) -> int:
    """How many elements of a mask count as true: all that can be, unless they are known or :data:`ask` says
    otherwise.
    """
    known = values_of(mask)
    rely_on(mask)
    if known is not None:
        with torch._C._DisableTorchDispatch():
            return int(known.count_nonzero())
    if is_asked_by("torch/nn/modules/_functions.py"):  # which ranks have samples to normalise over: all do
        return mask.numel()
    share = most_true(mask) / max(1, mask.numel())
    return round(float(_answer("share", mask, share)) * mask.numel())


def _equal(_mode: FakeTensorMode, _func: Any, left: torch.Tensor, right: torch.Tensor) -> bool:
    values = values_of(left), values_of(right)
    if left.dim() == 0 and left.dtype == right.dtype == torch.bool:
        return read_scalar(left) == read_scalar(right)  # C++ asks so whether something is true
    if left.shape != right.shape or values[0] is None or values[1] is None:
        return left.shape == right.shape and bool(_answer("item", left, True))
    with torch._C._DisableTorchDispatch():
        return torch.equal(values[0], values[1])


def _allclose(
    _mode: FakeTensorMode, _func: Any, left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any
) -> bool:
    values = values_of(left), values_of(right)
    if values[0] is None or values[1] is None:
        return bool(_answer("item", left, True))
    with torch._C._DisableTorchDispatch():
        return torch.allclose(values[0], values[1], *args, **kwargs)


def _nonzero(mode: FakeTensorMode, _func: Any, mask: torch.Tensor) -> torch.Tensor:
    with mode:
        return mask.new_empty((num_selected(mask), mask.dim()), dtype=torch.int64)


def _masked_select(
    mode: FakeTensorMode, _func: Any, tensor: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    spread = math.prod(np.broadcast_shapes(tensor.shape, mask.shape)) // max(1, mask.numel())
    with mode:
        return tensor.new_empty((num_selected(mask) * spread,))


def _unique(
    mode: FakeTensorMode, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_unique2`` and ``unique_consecutive`` of all elements; with ``dim``, of slices along it."""
    names = [argument.name for argument in func._schema.arguments[1:]]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    dim = given.get("dim")
    entries = tensor.numel() if dim is None else tensor.shape[dim]
    num = round(float(_answer("share", tensor, 1.0)) * entries)
    shape = list(tensor.shape)
    if dim is not None:
        shape[dim] = num
    with mode:
        found = tensor.new_empty((num,) if dim is None else shape)
        places = tensor.shape if dim is None else (entries,)
        inverse = tensor.new_empty(places if given.get("return_inverse") else (0,), dtype=torch.int64)
        counts = tensor.new_empty((num if given.get("return_counts") else 0,), dtype=torch.int64)
    return found, inverse, counts


def _bincount(
    mode: FakeTensorMode, _func: Any, tensor: torch.Tensor, weights: Any = None, minlength: int = 0
) -> torch.Tensor:
    bins = minlength or int(_answer("size", tensor, 1))
    with mode:
        dtype = torch.int64 if weights is None else torch.float64
        return tensor.new_empty((bins,), dtype=dtype)


def _repeat_interleave(
    mode: FakeTensorMode, _func: Any, repeats: torch.Tensor, output_size: int | None = None
) -> torch.Tensor:
    size = int(_answer("size", repeats, repeats.numel())) if output_size is None else output_size
    with mode:
        return repeats.new_empty((size,))


def _patch_readers() -> None:
    """What reads memory that is not there: one copy to the host, then the answers."""
    tensor_type: Any = torch.Tensor
    make_tensor: Any = torch.tensor

    def tensor(data: Any, **options: Any) -> torch.Tensor:
        if isinstance(data, list | tuple) and any(isinstance(one, FakeTensor) for one in data):
            data = [one.item() if isinstance(one, FakeTensor) else one for one in data]
        made: torch.Tensor = make_tensor(data, **options)
        return made

    torch.tensor = functools.wraps(make_tensor)(tensor)  # type: ignore[assignment]

    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: torch.Tensor, **options: Any) -> Any:
            if not isinstance(self, FakeTensor):
                return original(self, **options)
            if on_host_read is not None:
                on_host_read(self, "aten::tolist")
            with torch._C._DisableTorchDispatch():
                return original(read_values(self), **options)

        return read

    def written(self: torch.Tensor, spec: str) -> str:
        if isinstance(self, FakeTensor) and self.dim() == 0:
            return format(self.item(), spec)
        text: str = formatted(self, spec)
        return text

    formatted = tensor_type.__format__
    tensor_type.__format__ = written

    tensor_type.tolist = FakeTensor.tolist = reading(tensor_type.tolist)  # type: ignore[method-assign]
    tensor_type.numpy = reading(tensor_type.numpy)


def make_fake_mode() -> FakeTensorMode:
    """A mode that never starts a real device: torch derives that from ``is_available()``, which is
    patched.
    """
    FakeTensorMode.avoid_device_init = property(lambda _self: True)  # type: ignore[assignment,method-assign]
    dispatch: Any = FakeTensorMode.__torch_dispatch__
    # Nothing is compiled while tracing: spares a wrapper around every dispatch.
    FakeTensorMode.__torch_dispatch__ = getattr(dispatch, "__wrapped__", dispatch)  # type: ignore[method-assign]
    return FakeTensorMode(allow_non_fake_inputs=True)


def install() -> None:
    """Patch value-reading operators, random state, initialisers, attention choice and module moves."""
    implementations = fake_impls.op_implementations_dict
    aten = torch.ops.aten
    implementations[aten._local_scalar_dense.default] = lambda _mode, _func, tensor: read_scalar(tensor)
    implementations[aten.equal.default] = _equal
    implementations[aten.allclose.default] = _allclose
    implementations[aten.nonzero.default] = _nonzero
    implementations[aten.masked_select.default] = _masked_select
    uniques = (aten._unique2, aten.unique_consecutive, aten.unique_dim, aten.unique_dim_consecutive)
    for operator in (one.default for one in uniques):
        implementations[operator] = _unique
    implementations[aten.bincount.default] = _bincount
    implementations[aten.repeat_interleave.Tensor] = _repeat_interleave
    implementations[aten.is_pinned.default] = lambda _mode, _func, tensor, **_kwargs: (
        tensor.device.type == "cpu"
    )
    # Would allocate a real CUDA tensor as soon as is_available() says yes.
    fake_tensor.init_gpu_context = visible_devices.use  # type: ignore[assignment]
    for name in _INITIALISERS:
        setattr(torch.nn.init, name, _of_known(getattr(torch.nn.init, name)))
    _patch_readers()
    _patch_random_state()
    _patch_distributions()
    gpu_kernels.install()
    recurrent.install()
    shapes_by_running.install()


def _patch_distributions() -> None:
    """What is drawn and parameters of distributions are taken to lie where they have to."""

    def checking(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def check(self: Any, value: Any) -> Any:
            valid = original(self, value)
            if isinstance(valid, FakeTensor) and values_of(valid) is None:
                presume(valid, True)
            return valid

        return check

    waiting = [constraints.Constraint]
    while waiting:
        kind: Any = waiting.pop()
        waiting += kind.__subclasses__()
        if "check" in vars(kind):
            kind.check = checking(kind.check)


def not_compiling(transformers: Any) -> None:
    """Transformers take a tensor without data for one that a compiler follows, of which they ask no values:
    they would make a causal mask that a real run does without.
    """
    if hasattr(transformers, "is_fake_tensor"):
        transformers.is_fake_tensor = lambda _tensor: False


def _of_known(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """Initial values of a small tensor of the host; others are no part of a training step."""

    @functools.wraps(initialise)
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        on_device = isinstance(tensor, FakeTensor) and tensor.fake_device.type != "cpu"
        known = values_of(tensor) if type(tensor) in (torch.Tensor, FakeTensor) and not on_device else None
        if known is None:
            forget([tensor])
        elif known is tensor:
            initialise(tensor, *args, **kwargs)
        else:  # on the values themselves: more may be known of a parameter than is followed through operators
            with torch._C._DisableTorchDispatch():
                initialise(known, *args, **kwargs)
        return tensor

    return call


def without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` on real tensors, whatever mode is active."""

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return plain


def _random_state(*_args: object, **_kwargs: object) -> torch.Tensor:
    return zeros(16, dtype=torch.uint8, device="cpu")


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


class _DeviceGenerator(torch.Generator):
    """``torch.Generator``, of which only the host's draws numbers."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator of the host, whatever ``device`` is."""
        made: Any = super().__new__(cls)
        made.shown = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """As ``torch.Generator``."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """What the program asked for."""
        shown: torch.device = self.__dict__["shown"]
        return shown


def _patch_random_state() -> None:
    """The device's random states are byte tensors that C++ reads and writes; it draws no number."""
    state = without_modes(_random_state)
    generators = tuple(_DeviceGenerator(f"cuda:{index}") for index in range(visible_devices.MAX_INDEX))
    for module in (torch.cuda, torch.cuda.random):
        for name in ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all", "seed"):
            setattr(module, name, _nothing)
        module.get_rng_state = state  # type: ignore[attr-defined]
        module.get_rng_state_all = lambda: [state()]  # type: ignore[attr-defined]
        module.initial_seed = lambda: 0  # type: ignore[attr-defined]
    torch.cuda.default_generators = generators  # type: ignore[assignment]
    torch.Generator = _DeviceGenerator  # type: ignore[misc]


def assume_no_overflow(found: torch.Tensor) -> None:
    """``found`` says from now on whether gradients have overflowed: 0, unless :data:`ask` says otherwise."""
    remember_value(found, float(_answer("overflow", found, 0.0)))
