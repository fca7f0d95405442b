"""Shapes of operators for which torch has no rule: the host's kernel is run, on zeros, for what it returns.

torch does so itself, but on the tensors' own device, which is not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import empty_strided, zeros
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

from workloads.tracing.fake.known_values import remember, values_of
from workloads.tracing.fake.shape_cache import fake_of

#: Elements up to which an operator is run.
_MOST_ELEMENTS = 1 << 26

_by_torch = fake_tensor.run_fallback_kernel


def install() -> None:
    """Patch torch's own way, once per process."""
    fake_tensor.run_fallback_kernel = _run  # type: ignore[assignment]
    # Recurrent cells have a kernel for GPUs alone; what is packed is as long as the host says.
    shapes_of = {
        "_thnn_fused_gru_cell": lambda _gates, _hidden, hx, *_: (
            torch.empty_like(hx),
            hx.new_empty(hx.shape[0], 5 * hx.shape[1]),
        ),
        "_thnn_fused_gru_cell_backward": _gru_gradients,
    }
    for name, shapes in shapes_of.items():
        torch.library.register_fake(f"aten::{name}", shapes)
    implementations, aten = fake_impls.op_implementations_dict, torch.ops.aten
    implementations[aten._pack_padded_sequence.default] = _packed
    _never_cached(aten._pack_padded_sequence.default)
    implementations[aten.linalg_lstsq.default] = _least_squares
    torch.ctc_loss = _with_numbers(torch.ctc_loss)
    for overload in ("default", "Tensor"):
        rules: tuple[tuple[str, Any], ...] = (
            ("_use_cudnn_ctc_loss", lambda *_, **__: False),  # they ask for values; torch's kernel serves all
            ("_use_miopen_ctc_loss", lambda *_, **__: False),
            ("_ctc_loss", _ctc),
            ("_ctc_loss_backward", _ctc_gradient),
        )
        for name, rule in rules:
            implementations[getattr(getattr(aten, name), overload)] = rule


def _never_cached(operator: Any) -> None:
    """Results are kept by torch, by shapes; those of ``operator`` have values as well."""
    modes: Any = FakeTensorMode
    validate = modes._validate_cache_key

    def validated(self: FakeTensorMode, func: Any, *args: Any) -> None:
        if func is operator:
            raise fake_tensor._BypassDispatchCache("its results have values")
        validate(self, func, *args)

    modes._validate_cache_key = validated


def _gru_gradients(grad: torch.Tensor, _workspace: torch.Tensor, has_bias: bool) -> tuple[Any, ...]:
    batch, width = grad.shape
    gates = [grad.new_empty(batch, 3 * width) for _ in range(2)]
    biases = [grad.new_empty(3 * width) if has_bias else grad.new_empty(0) for _ in range(2)]
    return (*gates, torch.empty_like(grad), *biases)


def _with_numbers(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Lengths on the host are numbers to torch, unless one of them has no data, or is of the device."""

    @functools.wraps(original)
    def ctc_loss(log_probs: Any, targets: Any, *others: Any, **named: Any) -> torch.Tensor:
        numbers = [*map(_numbers, others)]
        if any(isinstance(one, torch.Tensor) for one in numbers):  # torch takes both lengths to one place
            lengths = [one for one in others if isinstance(one, torch.Tensor)]
            devices = {one.device for one in lengths}
            numbers = list(others)
            if len(devices) > 1:
                numbers[: len(lengths)] = [one.to(log_probs.device) for one in lengths]
        return original(log_probs, targets, *numbers, **named)

    return ctc_loss


def _numbers(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    known = values_of(value)
    return value if known is None else known.tolist()


def _least_squares(
    mode: FakeTensorMode, _func: Any, a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, ...]:
    """What the only driver of GPUs gives (gels): solutions, and residuals of more equations than unknowns."""
    equations, unknowns = a.shape[-2:]
    vector = b.dim() == 1 or b.shape == a.shape[:-1]
    batch, right = (b.shape[:-1], ()) if vector else (b.shape[:-2], b.shape[-1:])
    with mode:
        residuals = a.new_empty(*batch, *right) if equations > unknowns else a.new_empty(0)
        ranks = torch.empty(0, dtype=torch.int64, device=a.device)
        return a.new_empty(*batch, unknowns, *right), residuals, ranks, a.new_empty(0)


def _ctc(
    mode: FakeTensorMode,
    _func: Any,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    _input_lengths: Any,
    target_lengths: Any,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss for each sequence, and sums over paths through its symbols with blanks between them."""
    given = isinstance(target_lengths, torch.Tensor)
    known = values_of(target_lengths) if given else torch.Tensor(target_lengths)
    longest = targets.shape[-1] if targets.dim() == 2 or known is None else int(max(known.tolist()))
    steps, batch = log_probs.shape[:2]
    with mode:
        return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * longest + 1)


def _ctc_gradient(
    mode: FakeTensorMode, _func: Any, _grad: torch.Tensor, log_probs: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    with mode:
        return torch.empty_like(log_probs)


def _packed(
    mode: FakeTensorMode, _func: Any, given: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps of all sequences, longest first, and how many sequences have each step."""
    known = values_of(lengths)
    steps = given.shape[1 if batch_first else 0]
    each = [steps] * lengths.numel() if known is None else known.tolist()
    sizes = [sum(length > step for length in each) for step in range(max(each))]
    with mode:
        packed = given.new_empty(sum(sizes), *given.shape[2:])
        counts = torch.empty(len(sizes), dtype=torch.int64, device="cpu")
    with torch._C._DisableTorchDispatch():
        remember(counts, torch.tensor(sizes, device="cpu"))
    return packed, counts


def _run(mode: FakeTensorMode, func: Any, flat_args: Any, args_spec: Any, refused: RuntimeError) -> Any:
    """As torch's: what ``func`` returns for arguments without data."""
    given = [one for one in flat_args if mode.is_our_fake(one)]
    device = next((one.fake_device for one in given if one.fake_device.type != "cpu"), None)
    if device is None:
        return _by_torch(mode, func, flat_args, args_spec, refused)
    if sum(one.numel() for one in given) > _MOST_ELEMENTS or torch.Tag.inplace_view in func.tags:
        raise refused
    real_of: dict[int, Any] = {}
    with no_dispatch():

        def real(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("cpu")
            if not mode.is_our_fake(value):
                return value
            made = zeros(value.shape, dtype=value.dtype, device="cpu")
            real_of[id(made)] = (value, made)
            return made

        args, kwargs = pytree.tree_unflatten([real(one) for one in flat_args], args_spec)
        try:
            found = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            raise refused from None

    def shown(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in real_of:
            return real_of[id(value)][0]
        if value.layout is not torch.strided:
            raise refused
        with torch._C._DisableTorchDispatch():
            memory = empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        made: FakeTensor = fake_of(mode, memory, device)
        return made

    return pytree.tree_map(shown, found)
