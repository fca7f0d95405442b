"""What an aten operator is to the recorder: a kernel or not, what it writes, how many bytes it moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry

from workloads.tracing.fake.shape_cache import fits
from workloads.tracing.fake.storages import touched_bytes
from workloads.tracing.kernels import CostFormula, registered_cost

#: Operators that only allocate.
_ALLOCATE = frozenset(
    {"aten::empty", "aten::empty_strided", "aten::new_empty", "aten::empty_like", "aten::new_empty_strided"}
)

#: Operators without a kernel: bookkeeping, views that the schema does not mark as such, host queries.
_NO_KERNEL = frozenset(
    {
        "aten::detach",
        "aten::detach_",
        "aten::lift_fresh",
        "aten::alias",
        "aten::is_pinned",
        "aten::record_stream",
        "aten::resize_",
        "aten::set_",
        "aten::_unsafe_view",
        "aten::_reshape_alias",
        "aten::_has_compatible_shallow_copy_type",
        "prim::device",
    }
)

#: Operators that overwrite their output without reading it.
_OVERWRITE = frozenset(
    f"aten::{name}"
    for name in (
        *("zero_", "fill_", "_foreach_zero_"),
        *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
    )
)

#: Operators that pick entries of their first tensor: they read as much of it as they write.
_GATHER = frozenset({"aten::embedding", "aten::index", "aten::gather", "aten::index_select"})

#: Operators that add up rows of their first tensor, one for each entry of the second.
_BAGS = frozenset({"aten::_embedding_bag", "aten::_embedding_bag_forward_only"})

#: Operators that look up an entry per row of the argument at this place, and read no more of it.
_LOOKED_UP = {"aten::nll_loss_forward": 0, "aten::nll_loss_backward": 1}

#: In-place operators that change a few entries of their first tensor.
_SCATTER = frozenset({"aten::index_put_", "aten::_index_put_impl_", "aten::scatter_", "aten::index_add_"})

#: Arguments that the schema calls written, but that are not, or only when unscaling gradients.
_NOT_WRITTEN = frozenset(
    {
        *((f"aten::_fused_{name}_", "grads") for name in ("adam", "adamw")),
        *((f"bitsandbytes::optimizer_update_{kind}", "g") for kind in ("32bit", "8bit_blockwise")),
        *(("bitsandbytes::optimizer_update_8bit_blockwise", f"qmap{number}") for number in (1, 2)),
    }
)

#: Matrix products that add to their first tensor, unless ``beta`` is 0.
_ADD_PRODUCT = frozenset({"aten::addmm", "aten::baddbmm"})

#: In-place operators that return their first argument and leave its shape alone.
_IN_PLACE = frozenset(
    f"aten::{name}_"
    for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "copy", "zero", "fill")
)

_COPY = frozenset({"aten::copy_", "aten::_foreach_copy_"})


def _grouped_product_flops(one: torch.Tensor, other: torch.Tensor, *_: Any, **__: Any) -> int:
    """Of the products of all groups: of rows (2D x 3D), of columns (3D x 2D), of what is summed (2D x 2D),
    or one for each pair of matrices (3D x 3D).
    """
    if one.dim() == 3 and other.dim() == 2:
        return 2 * one.shape[-2] * other.numel()
    return 2 * one.numel() * other.shape[-1]


def _convolution_backward_flops(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: Any, **_: Any
) -> int:
    """What the forward pass computes, for each of the gradients of input and weight that is wanted; torch's
    formula takes the weight's of a grouped convolution for that of a dense one.
    """
    transposed, wanted = args[4], args[7]
    places = math.prod((x if transposed else grad).shape[2:])
    return 2 * x.shape[0] * places * weight.numel() * int(sum(wanted[:2]))


def _product_flops(place: int) -> Callable[..., int]:
    """Of ``args[place] @ args[place + 1]``, the latter a matrix or a vector."""

    def flops(*args: Any, **_: Any) -> int:
        other = args[place + 1]
        return 2 * int(args[place].numel()) * (int(other.shape[-1]) if other.dim() > 1 else 1)

    return flops


#: Products for which torch's counter has no formula, or a wrong one.
_FLOPS: dict[str, Callable[..., Any]] = {
    **{
        f"aten::{name}": _grouped_product_flops
        for name in ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
    },
    **{f"aten::{name}": _product_flops(0) for name in ("dot", "mv", "_int_mm", "_scaled_mm_v2")},
    **{f"aten::{name}": _product_flops(1) for name in ("addmv", "_addmm_activation")},
    "aten::convolution_backward": _convolution_backward_flops,
}


class AtenOp:
    """One operator overload, looked up once.

    ``name`` is the qualified name with overload, ``base`` without; ``writes`` gives (argument index, name)
    of what it changes in place; ``flops`` is torch's formula, or None.
    """

    __slots__ = (
        *("allocates", "base", "chooses", "cost", "filled", "finds_overflow", "flops", "has_kernel"),
        *("in_group", "is_view"),
        *("made_of", "masked_at", "name", "random"),
        *("result_is_known", "shapes_decide", "sized_by_values", "writes"),
    )

    def __init__(self, func: Any) -> None:
        self.name = func.name() if hasattr(func, "name") else str(func)
        self.base = self.name.partition(".")[0]
        schema = func._schema
        self.writes = tuple(
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and (self.base, argument.name) not in _NOT_WRITTEN
        )
        #: Names of arguments (``out=``) that the call fills and does not read.
        self.filled = frozenset(
            argument.name
            for argument in schema.arguments
            if argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
        )
        self.made_of = _made_of(func, self.base)
        is_view = not self.writes and any(result.alias_info is not None for result in schema.returns)
        self.allocates = self.base in _ALLOCATE
        #: Nothing comes back but the argument that is written, as it was: no need to work out shapes.
        self.result_is_known = bool(self.writes) and (not schema.returns or self.base in _IN_PLACE)
        #: The result shares the argument's storage, by schema or because torch says so elsewhere.
        self.is_view = self.base.startswith("aten::") and (is_view or self.base == "aten::_unsafe_view")
        #: Where attention is told whether it is causal; None: it is no attention.
        self.masked_at = next(
            (
                (index, argument.name)
                for index, argument in enumerate(schema.arguments)
                if argument.name in ("is_causal", "custom_mask_type")
            ),
            None,
        )
        #: May choose experts for tokens, or puts in order.
        self.chooses = self.base.removeprefix("aten::") in ("topk", "argmax", "max", "sort", "randperm")
        #: Its second argument says afterwards whether gradients have overflowed.
        self.finds_overflow = self.base == "aten::_amp_foreach_non_finite_check_and_unscale_"
        #: The values of arguments say how many elements come back.
        self.sized_by_values = torch.Tag.dynamic_output_shape in getattr(func, "tags", ())
        #: Is told a process group by torch's name of it.
        self.in_group = any(argument.name == "group_name" for argument in schema.arguments)
        #: Draws random numbers.
        self.random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        #: Shapes and plain arguments say what comes back.
        self.shapes_decide = fits(func, self.base)
        self.has_kernel = not (is_view or self.allocates or self.base in _NO_KERNEL)
        packet = getattr(func, "_overloadpacket", None)
        self.flops: Callable[..., Any] | None = _FLOPS.get(self.base, flop_registry.get(packet))
        #: What the user says of it.
        self.cost: CostFormula | None = registered_cost(self.name)

    def inputs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Tensors that the call is given, but for those that it only fills."""
        given = [value for name, value in kwargs.items() if name not in self.filled]
        return tensors_in(given, tensors_in(args, []))

    def outputs(self, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
        """Tensors that the call writes: in-place and ``out=`` arguments, else its results."""
        found: list[torch.Tensor] = []
        for index, name in self.writes:
            tensors_in(args[index] if index < len(args) else kwargs.get(name), found)
        return found if self.writes else tensors_in(result, found)

    def kernel(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Its name as a kernel: attention that computes every score is "full", which a price goes by."""
        if self.masked_at is None:
            return self.name
        index, name = self.masked_at
        causal = args[index] if index < len(args) else kwargs.get(name, False)
        head, backward, _ = self.name.partition("_backward")
        return self.name if causal else f"{head}_full{backward}"

    def num_flops(self, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
        """By torch's formula, which knows of no type that a product is to have; 0 without one."""
        if self.flops is None:
            return 0
        shapes = [one for one in args if not isinstance(one, torch.dtype)]
        return int(self.flops(*shapes, **kwargs, out_val=result))

    def traffic(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], kwargs: dict[str, Any]
    ) -> tuple[int, int]:
        """(bytes read, bytes written): every tensor once, except where an operator skips most of one."""
        written = sum(map(touched_bytes, outputs))
        if self.base in _ADD_PRODUCT and kwargs.get("beta", 1) == 0:
            inputs = inputs[1:]
        if self.base in _OVERWRITE:
            return 0, written
        if self.base in _COPY:
            return written if len(inputs) < 2 else sum(
                map(touched_bytes, inputs[len(inputs) // 2 :])
            ), written
        if self.base in _GATHER:
            return written + sum(map(touched_bytes, inputs[1:])), written
        if self.base in _BAGS:
            table, entries = inputs[:2]
            row = touched_bytes(table) // max(1, table.shape[0])
            return entries.numel() * row + sum(map(touched_bytes, inputs[1:])), written
        if self.base in _LOOKED_UP:
            skipped = _LOOKED_UP[self.base]
            inputs = [tensor for place, tensor in enumerate(inputs) if place != skipped]
        if self.base in _SCATTER:
            return sum(map(touched_bytes, inputs[1:])), touched_bytes(inputs[-1])
        return sum(map(touched_bytes, inputs)), written


def _made_of(func: Any, base: str) -> Callable[..., Any] | None:
    """What runs an operator that is made of others; None for one that is not.

    torch takes composite operators apart before a mode sees them, but not below autograd, where DTensor's own
    handlers run (its attention over a ring, for one), nor in inference mode.  A custom operator whose code is
    Python is what that launches, unless its cost is said or it is a step of torch's own collectives.
    """
    custom = None if base.startswith("_c10d_functional::") else OPDEFS.get(base)
    if custom is not None and registered_cost(base) is None:
        written: Callable[..., Any] = custom._backend_fns.get("cuda") or custom._init_fn
        return written
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if (
        base.startswith("aten::")
        and has_kernel(func.name(), "CompositeImplicitAutograd")
        and not has_kernel(func.name(), "CUDA")
    ):
        parts: Callable[..., Any] = func.decompose
        return parts
    return None


def tensors_in(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Append the tensors in (nested lists of) ``value`` to ``found``, in order."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            tensors_in(item, found)
    return found


def is_on_device(tensor: Any) -> bool:
    """Whether a tensor lives on the GPU.  Asking a fake tensor's ``device`` would be one more dispatch."""
    device: torch.device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return device.type == "cuda"


def all_on_device(value: Any) -> bool:
    """Whether ``value`` is a fake tensor of the GPU, or a list of nothing else."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(all_on_device, value))
    return isinstance(value, FakeTensor) and is_on_device(value)


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a dense tensor."""
    return tensor.numel() * tensor.element_size()


def dtype_name(tensor: torch.Tensor) -> str:
    """``"float32"``, ``"bfloat16"``, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def shapes_json(tensors: list[torch.Tensor]) -> str:
    """``[[2048,1,12288],[12288,4608]]``."""
    return "[" + ",".join("[" + ",".join(map(str, tensor.shape)) + "]" for tensor in tensors) + "]"
