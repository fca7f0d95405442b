"""Values that are known although tensors of the device have no data.

Note [Known values]
    A tensor that the host filled, or that was computed from such ones, has known values: the operators that
    make it are computed for real beside the run on shapes, as a compiler folds constants.  Values belong to
    storages, so views share them and what is written in place is seen by all.  Tensors of up to
    :data:`MOST_FLOATS` floats, :data:`MOST_INTEGERS` integers or truth values are followed; more integers
    once experts are chosen, since sizes follow from them.
    What is computed of larger ones is marked: a program that asks for it gets an answer that only looks like
    one of the model's.  A tensor that is written with what is not known forgets.
    Masks in floats, which follow from integers and single numbers alone, are followed as far as integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import empty, full
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing.fake import presumptions
from workloads.tracing.fake.aten_ops import AtenOp, is_on_device, tensors_in
from workloads.tracing.fake.constant_dims import Region, constant_dims, first_entries
from workloads.tracing.fake.storages import is_whole, storage_of

#: Elements up to which values are followed.
MOST_FLOATS, MOST_INTEGERS = 1 << 12, 1 << 16
#: Elements up to which integers are followed once experts are chosen.
_MOST_ROUTED = 1 << 24
#: And floats: maps of routes begin as zeros like the scores.
_MOST_ROUTED_FLOATS = 1 << 20

#: And what :func:`follow_up_to` says.
_most_integers = MOST_INTEGERS

_VALUES = "_simcore_values"
_CHOICES = "_simcore_choices"
#: Only for its size, or that of what it was computed from, is not known what it holds.
_TOO_LARGE = "_simcore_too_large"
#: What is known of it is the same along dimensions (``constant_dims``).
_REGION = "_simcore_region"
#: More floats than are followed otherwise, as they follow from integers.
_OF_INTEGERS = "_simcore_of_integers"
#: How many elements can be true (``true_counts``).
MOST_TRUE = "_simcore_most_true"
#: Operators whose values follow from shapes and numbers alone.
_MADE = frozenset(
    f"aten::{name}"
    for name in (
        *("arange", "zeros", "ones", "full", "eye", "scalar_tensor", "linspace"),
        *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
    )
)
#: Operators that write all of their first tensor, from the others alone.
_FILLING = frozenset({"aten::copy_", "aten::fill_", "aten::zero_"})
_UNWRITTEN = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty"})
_NEVER = frozenset({"aten::resize_", "aten::set_", "aten::record_stream"})
#: Operators of truth values that one such operand decides, whatever the other is.
_DECIDED = {
    **dict.fromkeys(("aten::logical_or", "aten::bitwise_or", "aten::__or__"), True),
    **dict.fromkeys(("aten::logical_and", "aten::bitwise_and", "aten::__and__"), False),
}

#: Operator and arguments.
_Call = tuple[Any, AtenOp, Any, dict[str, Any]]


@contextmanager
def follow_up_to(num_elements: int) -> Iterator[None]:
    """Integers and truth values are followed in tensors of up to ``num_elements`` inside."""
    global _most_integers
    outer, _most_integers = _most_integers, num_elements
    try:
        yield
    finally:
        _most_integers = outer


def values_of(tensor: Any) -> torch.Tensor | None:
    """The known values of a tensor, on the host and sharing memory with what is remembered; None: unknown.

    A tensor of the host with data is its own answer.
    """
    if not isinstance(tensor, FakeTensor):
        return tensor if tensor.device.type == "cpu" else None
    if tensor.layout is not torch.strided:
        return None
    held: torch.UntypedStorage | None = getattr(storage_of(tensor), _VALUES, None)
    if held is None:
        region: Region | None = getattr(storage_of(tensor), _REGION, None)
        if region is None or region.values.dtype != tensor.dtype:
            return None
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            return region.part(tensor)
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        found = _on_host(0, tensor.dtype)
        found.set_(held, tensor.storage_offset(), tensor.shape, tensor.stride())
        found = found.conj() if tensor.is_conj() else found
        return torch._neg_view(found) if tensor.is_neg() else found


def was_too_large(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` would be known but for the size of what it was computed from."""
    return hasattr(storage_of(tensor), _TOO_LARGE)


def chosen_by(tensor: torch.Tensor, tell: Callable[[], None]) -> None:
    """Values of ``tensor`` rest on a choice: ``tell`` is called when the program comes to rely on it."""
    setattr(storage_of(tensor), _CHOICES, {id(tell): tell})


def rely_on(tensor: Any) -> None:
    """Sizes, or what the host reads, depend on the values of ``tensor``."""
    for tell in _choices(tensor).values():
        tell()


def _choices(tensor: Any) -> dict[int, Callable[[], None]]:
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
        return {}
    found: dict[int, Callable[[], None]] = getattr(storage_of(tensor), _CHOICES, {})
    return found


def remember(tensor: torch.Tensor, values: torch.Tensor, *, shared: bool = False) -> None:
    """``tensor``, which is all of its storage, holds ``values``; ``shared``: and goes on to share them."""
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
        return
    storage = storage_of(tensor)
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        if not shared:
            held = _on_host(storage.nbytes() // tensor.element_size(), tensor.dtype)
            held.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(values)
            values = held
        setattr(storage, _VALUES, values.untyped_storage())


def remember_value(tensor: torch.Tensor, value: float) -> None:
    """Every element of ``tensor``, which is all of its storage, is ``value``."""
    with torch._C._DisableTorchDispatch():
        values = full(tensor.shape, value, dtype=tensor.dtype, device="cpu")
    remember(tensor, values)


def forget(tensors: list[torch.Tensor]) -> None:
    """These were written with what is not known."""
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) and tensor.layout is torch.strided:
            found = getattr(storage_of(tensor), "__dict__", None)
            if found:
                found.pop(_VALUES, None)
                for mark in presumptions.MARKS:
                    found.pop(mark, None)
                found.pop(MOST_TRUE, None)
                found.pop(_TOO_LARGE, None)
                found.pop(_OF_INTEGERS, None)
                found.pop(_REGION, None)
                found.pop(_CHOICES, None)


class KnownValues:
    """Follows known values through operators.  ``routed``: experts have been chosen."""

    def __init__(self) -> None:
        self.routed = False

    def sized_result(self, func: Any, operator: AtenOp, args: Any, kwargs: dict[str, Any]) -> Any:
        """What an operator gives whose result has as many elements as values say; None when not known."""
        tensors = tensors_in(list(kwargs.values()), tensors_in(args, []))
        inputs = () if operator.writes else self._all_known(tensors)
        if not inputs:
            return None
        for tensor in inputs:
            rely_on(tensor)
        return _computed(func, operator, args, kwargs)

    def follow(self, func: Any, operator: AtenOp, args: Any, kwargs: dict[str, Any], result: Any) -> bool:
        """``func`` has been run on shapes and gave ``result``: what it wrote is known, or forgotten.

        Whether the result's values are known.
        """
        outputs = operator.outputs(args, kwargs, result)
        if operator.base in _UNWRITTEN and len(outputs) == 1:
            return self._clear(outputs[0])
        if operator.base in _DECIDED and self._is_decided(_DECIDED[operator.base], args, outputs):
            return True
        drawn = operator.random and any(map(is_on_device, outputs))
        if operator.base in _NEVER or drawn:
            known = too_large = False
        else:
            tensors = tensors_in(list(kwargs.values()), tensors_in(args, []))
            known = self._fold((func, operator, args, kwargs), tensors, outputs)
            # Only sizes may be why it is not known; asked before that is forgotten.
            too_large = not known and self._is_too_large(operator, tensors, outputs)
        if not known:
            if operator.writes:
                forget(outputs)
            presumptions.of_results(operator.base, args, kwargs, outputs)
            for output in outputs if too_large else ():
                if isinstance(output, FakeTensor) and output.layout is torch.strided:
                    setattr(storage_of(output), _TOO_LARGE, True)
        return known

    def _is_too_large(
        self, operator: AtenOp, tensors: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> bool:
        """Whether only sizes are why the result of a call that is given ``tensors`` is not known."""
        if operator.base in _MADE:
            tensors = []
        elif operator.base in _FILLING and is_whole(tensors[0]):
            tensors = tensors[1:]
        elif not tensors:
            return False
        unknown = False
        for one in tensors:
            if not _is_known(one):
                unknown = isinstance(one, FakeTensor) and one.layout is torch.strided and was_too_large(one)
                if not unknown:
                    return False
        return unknown or not all(map(self.fits, tensors)) or not all(map(self.fits, outputs))

    def _is_decided(self, answer: bool, args: Any, outputs: list[torch.Tensor]) -> bool:
        """Truth values (or bits, of which none is kept), of which one operand alone decides every one: a
        generation that is as long as it may be has ended, whatever its tokens are.
        """
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if len(outputs) != 1 or not self.fits(outputs[0]):
            return False
        if answer and any(one.dtype != torch.bool for one in tensors):
            return False
        for one in tensors:
            known = values_of(one)
            with torch._C._DisableTorchDispatch():
                decides = known is not None and bool((known == int(answer)).all())
            if decides and one.shape == outputs[0].shape:
                remember_value(outputs[0], answer)
                return True
        return False

    def _clear(self, tensor: torch.Tensor) -> bool:
        """Integers that nobody has written may be any: 0.  Programs write a part of them and read that."""
        known = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and self.fits(tensor)
        if known:
            remember_value(tensor, 0)
        return known

    def _fold(self, call: _Call, tensors: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
        _, operator, _, _ = call
        if operator.base in _FILLING and outputs and self.fits(outputs[0]):
            _give_memory(outputs[0])
        inputs, of_integers = self._all_known(tensors), all(map(_is_of_integers, tensors)) and bool(tensors)
        if not inputs and operator.base not in _MADE:
            return self._fold_along(call, tensors, outputs)
        if not outputs:
            return False
        large = [one for one in outputs if not self.fits(one)]
        if large and not (of_integers and all(map(self._fits_as_integers, large))):
            return self._fold_along(call, tensors, outputs)
        if operator.writes and not all(map(_leaves_known, outputs)):
            return False
        real = _computed(*call)
        if real is None:
            return False
        if not operator.writes:
            attach(outputs, real)
        for output in large:
            setattr(storage_of(output), _OF_INTEGERS, True)
        if self.routed:
            made = {number: tell for one in inputs for number, tell in _choices(one).items()}
            for output in outputs if made else ():
                setattr(storage_of(output), _CHOICES, made)
        return True

    def _fold_along(self, call: _Call, tensors: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
        """As :meth:`_fold`, of tensors too large for it: see Note [Constant dimensions]."""
        if len(outputs) != 1 or not tensors or not all(map(_is_known, tensors)):
            return False
        func, operator, args, kwargs = call
        each = torch.Tag.pointwise in getattr(func, "tags", ()) or operator.base == "aten::_to_copy"
        if not each or operator.writes or not is_whole(outputs[0]):
            return False
        (output,) = outputs
        most = max(_most_integers, MOST_FLOATS) if all(map(_is_of_integers, tensors)) else MOST_FLOATS
        with torch._C._DisableTorchDispatch():
            given, named = _real(args), _real_named(kwargs)
            dims = constant_dims(output.shape, tensors_in(list(named.values()), tensors_in(given, [])))
            shape = [1 if at - output.dim() in dims else size for at, size in enumerate(output.shape)]
            if not dims or math.prod(shape) > most:
                return False
            given, named = first_entries(given, dims), first_entries(named, dims)
        real = _computed(func, operator, given, named)
        if not isinstance(real, torch.Tensor) or list(real.shape) != shape:
            return False
        setattr(storage_of(output), _REGION, Region.of(output, real))
        if most > MOST_FLOATS:
            setattr(storage_of(output), _OF_INTEGERS, True)
        return True

    def _all_known(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """``tensors`` when all are known and small, else none."""
        for one in tensors:
            large = not self.fits(one) and not (_is_of_integers(one) and self._fits_as_integers(one))
            if large or not _is_known(one):
                return ()
        return tensors

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is small enough for its values to be followed."""
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return tensor.numel() <= (_MOST_ROUTED_FLOATS if self.routed else MOST_FLOATS)
        return self._fits_as_integers(tensor)

    def _fits_as_integers(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() <= max(_most_integers, _MOST_ROUTED if self.routed else 0)


def attach(result: Any, real: Any) -> None:
    """The tensors of ``result``, fresh from an operator, have the values of those of ``real``; those that
    share known memory, as parts of ``unsafe_split`` do, have them already.
    """
    for tensor, values in zip(tensors_in(result, []), tensors_in(real, []), strict=False):
        if tensor.shape == values.shape and tensor.dtype == values.dtype and not _is_known(tensor):
            remember(tensor, values)


def shaped_like(real: Any, device: torch.device) -> Any:
    """Tensors without data of the shapes of ``real``; to be called where a fake mode is active."""
    if isinstance(real, torch.Tensor):
        return empty(real.shape, dtype=real.dtype, device=device)
    return type(real)(shaped_like(one, device) for one in real)


def _on_host(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Memory of the host, wherever the program makes its own by default (``torch.set_default_device``)."""
    return empty(shape, dtype=dtype, device="cpu")


def _is_known(tensor: torch.Tensor) -> bool:
    if not isinstance(tensor, FakeTensor):
        return tensor.device.type == "cpu"
    if tensor.layout is not torch.strided:
        return False
    storage = storage_of(tensor)
    return hasattr(storage, _VALUES) or (hasattr(storage, _REGION) and values_of(tensor) is not None)


def _leaves_known(written: torch.Tensor) -> bool:
    """Whether what is about to be written can be known; of a region, that alone stays so."""
    storage = storage_of(written)
    region: Region | None = getattr(storage, _REGION, None)
    with torch._C._DisableTorchDispatch():
        left = None if region is None else region.at(written)
    if left is not None:
        setattr(storage, _REGION, left)
    return region is None or left is not None or hasattr(storage, _VALUES)


def _is_of_integers(tensor: torch.Tensor) -> bool:
    """Whether values follow from integers, truth values and single numbers alone (masks, in floats, too)."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or tensor.numel() == 1:
        return True
    strided = isinstance(tensor, FakeTensor) and tensor.layout is torch.strided
    return strided and hasattr(storage_of(tensor), _OF_INTEGERS)


def _give_memory(tensor: torch.Tensor) -> None:
    """A tensor that is written whole, and is all of its storage, can be known whatever it held before."""
    if isinstance(tensor, FakeTensor) and not _is_known(tensor) and is_whole(tensor):
        with torch._C._DisableTorchDispatch():
            setattr(storage_of(tensor), _VALUES, _on_host(tensor.numel(), tensor.dtype).untyped_storage())


def _computed(func: Any, operator: AtenOp, args: Any, kwargs: dict[str, Any]) -> Any:
    """``func`` on the values themselves; None where the host cannot."""
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        try:
            real = func(*_real(args), **_real_named(kwargs))
        except (RuntimeError, NotImplementedError, TypeError, IndexError):
            if operator.base != "aten::histc":
                return None
            real = func(_real(args[0]).float(), *args[1:], **kwargs).to(args[0].dtype)
    return real if tensors_in(real, []) or operator.writes else None


def _real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        known = values_of(value)  # zeros like what is not known are zeros of its shape
        return _on_host(value.shape, value.dtype) if known is None else known
    if isinstance(value, list | tuple):
        return type(value)(map(_real, value))
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _real_named(kwargs: dict[str, Any]) -> dict[str, Any]:
    dropped = ("pin_memory", "non_blocking")
    return {name: _real(value) for name, value in kwargs.items() if name not in dropped}
