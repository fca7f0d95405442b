"""Layers of Transformer Engine: parameters as its modules hold them, products and collectives as they issue.

Norms are one kernel each way.  The gradient of a weight is one product that also sums that of the bias, and
adds to ``main_grad`` where gradients are accumulated there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel
from workloads.tracing.stand_ins.refusal import NotStoodInError
from workloads.tracing.stand_ins.transformer_engine import quantisation
from workloads.tracing.stand_ins.transformer_engine.products import (
    GroupedProduct,
    LinearCall,
    LinearProduct,
)
from workloads.tracing.stand_ins.transformer_engine.quantised import QuantisedProduct
from workloads.tracing.stand_ins.transformer_engine.quantised_groups import QuantisedGroups
from workloads.tracing.stand_ins.transformer_engine.quantised_parameters import QuantizedTensor, quantised

Init = Callable[[torch.Tensor], Any]


class TransformerEngineBaseModule(torch.nn.Module):
    """What all layers with products share: types, tensor parallelism, how parameters are made."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        _refuse_overlap(options)
        self.params_dtype: torch.dtype = options.get("params_dtype") or torch.get_default_dtype()
        self.device = options.get("device", "cuda")
        self.parallel_mode: str | None = options.get("parallel_mode")
        self.fuse_wgrad_accumulation = bool(options.get("fuse_wgrad_accumulation"))
        self.use_bias = options.get("bias", True)
        self.return_bias = options.get("return_bias", False)
        self.apply_bias = self.use_bias and not self.return_bias
        self.ub_name = options.get("ub_name")
        self.rng_tracker_name = options.get("rng_tracker_name")
        self.get_rng_state_tracker = options.get("get_rng_state_tracker")
        self.tp_size = int(options.get("tp_size", 1))
        self.set_tensor_parallel_group(options.get("tp_group"))
        self.sequence_parallel = self.tp_size > 1 and bool(options.get("sequence_parallel"))
        self.save_original_input = bool(options.get("save_original_input"))
        self.fp8_meta: dict[str, Any] = {}
        self.fp8 = self.fp8_calibration = self.fp8_initialized = False

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Communicate in ``tp_group``; None: not at all."""
        self.tp_group = tp_group
        if tp_group is not None:
            self.tp_size = torch.distributed.get_world_size(tp_group)

    def get_extra_state(self) -> torch.Tensor:
        """Nothing: there are no scales of fp8."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Nothing is kept of it."""

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Nothing: there are no scales of fp8."""

    def add_parameter(self, name: str, shape: Sequence[int], init: Init | None) -> torch.nn.Parameter:
        """Make and register a parameter; without ``init`` it starts at 0."""
        tensor = torch.empty(*shape, dtype=self.params_dtype, device=self.device)
        parameter = torch.nn.Parameter(tensor)
        narrow = quantised(tensor) if len(shape) == 2 else None
        self.register_parameter(name, parameter if narrow is None else narrow)
        if parameter.device.type == "meta":
            return parameter
        tracker = self.get_rng_state_tracker
        names = (self.rng_tracker_name,) if self.rng_tracker_name else ()
        with torch.no_grad(), tracker().fork(*names) if tracker and init else nullcontext():
            (init or torch.nn.init.zeros_)(parameter)
        return parameter if narrow is None else narrow

    def call(self, is_first_microbatch: bool | None, products: int = 1) -> LinearCall:
        """What the ``products`` of this layer communicate and accumulate."""
        mode = self.parallel_mode if self.tp_size > 1 and self.tp_group is not None else None
        return LinearCall(
            self.tp_group if mode else None,
            mode or "",
            sequence_parallel=self.sequence_parallel,
            into_main_grad=self.fuse_wgrad_accumulation,
            accumulate=not is_first_microbatch,
            recipe=quantisation.recipe_in_force(products),
            is_first=is_first_microbatch,
        )

    def add_weight_and_bias(self, init: Init | None, names: tuple[str, str] = ("weight", "bias")) -> None:
        """This rank's part of a weight, and its bias."""
        weight = self.add_parameter(names[0], (self.out_features, self.in_features), init or _normal)
        row = self.parallel_mode == "row"
        _mark(weight, dim=1 if row else 0)
        if not self.use_bias:
            self.register_buffer(
                names[1],
                torch.empty(0, dtype=self.params_dtype, device=self.device),
                persistent=False,
            )
            return
        bias = self.add_parameter(names[1], (self.out_features,), None)
        if row:
            bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        elif self.parallel_mode == "column":
            _mark(bias, dim=0)

    def split_features(self, in_features: int, out_features: int) -> None:
        """Set this rank's part of both."""
        self.in_features = in_features // (self.tp_size if self.parallel_mode == "row" else 1)
        self.out_features = out_features // (self.tp_size if self.parallel_mode == "column" else 1)

    def product(self, inp: torch.Tensor, is_first_microbatch: bool | None) -> Any:
        """``inp`` times the weight; with the bias beside it where it is not added here."""
        dtype = _activation_dtype(inp)
        weight, bias = (one if one.dtype == dtype else one.to(dtype) for one in (self.weight, self.bias))
        call = self.call(is_first_microbatch)
        if not call.recipe and isinstance(weight, QuantizedTensor):
            raise NotStoodInError("products in 16 bits of parameters in fp8")
        product = QuantisedProduct if call.recipe else LinearProduct
        found = product.apply(  # type: ignore[no-untyped-call]
            inp.to(dtype),
            weight,
            bias if self.apply_bias else None,
            call,
            self.weight,
        )
        return (found, bias) if self.return_bias else found


class EngineLinear(TransformerEngineBaseModule):
    """``transformer_engine.pytorch.Linear``."""

    def __init__(
        self, in_features: int, out_features: int, *, init_method: Init | None = None, **options: Any
    ) -> None:
        super().__init__(options)
        self.split_features(in_features, out_features)
        self.add_weight_and_bias(init_method)

    def forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None = None, fp8_output: bool = False
    ) -> Any:
        """(..., out_features)."""
        if fp8_output:
            raise NotStoodInError("results in fp8")
        return self.product(inp, is_first_microbatch)


class LayerNormLinear(TransformerEngineBaseModule):
    """``transformer_engine.pytorch.LayerNormLinear``: a norm and a product."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        eps: float = 1e-5,
        init_method: Init | None = None,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(options)
        if return_layernorm_output_gathered:
            raise NotStoodInError("return_layernorm_output_gathered")
        self.eps, self.normalization = eps, normalization
        self.zero_centered_gamma = zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.split_features(in_features, out_features)
        start = torch.nn.init.zeros_ if zero_centered_gamma else torch.nn.init.ones_
        norm_weight = self.add_parameter("layer_norm_weight", (in_features,), start)
        norm_weight.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        if normalization == "LayerNorm":
            norm_bias = self.add_parameter("layer_norm_bias", (in_features,), None)
            norm_bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        else:
            self.register_parameter("layer_norm_bias", None)
        self.add_weight_and_bias(init_method)

    def forward(
        self, inp: torch.Tensor, is_first_microbatch: bool | None = None, fp8_output: bool = False
    ) -> Any:
        """(..., out_features)."""
        if fp8_output:
            raise NotStoodInError("results in fp8")
        weight, bias = self._parameters["layer_norm_weight"], self._parameters["layer_norm_bias"]
        normal = normalise(self.normalization, inp, weight, bias)
        found = self.product(normal, is_first_microbatch)
        if not self.return_layernorm_output:
            return found
        return (*found, normal) if isinstance(found, tuple) else (found, normal)


class GroupedLinear(TransformerEngineBaseModule):
    """``transformer_engine.pytorch.GroupedLinear``: rows of each expert times its own weight."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        init_method: Init | None = None,
        **options: Any,
    ) -> None:
        super().__init__(options)
        self.num_gemms = num_gemms
        self.split_features(in_features, out_features)
        for index in range(num_gemms):
            self.add_weight_and_bias(init_method, (f"weight{index}", f"bias{index}"))

    def forward(
        self,
        inp: torch.Tensor,
        m_splits: Sequence[int] | torch.Tensor,
        is_first_microbatch: bool | None = None,
    ) -> Any:
        """(rows, out_features); ``m_splits``: rows of each expert."""
        rows = m_splits.tolist() if isinstance(m_splits, torch.Tensor) else [*m_splits]
        weights = [getattr(self, f"weight{index}") for index in range(self.num_gemms)]
        biases = [getattr(self, f"bias{index}") for index in range(self.num_gemms)]
        added = biases if self.apply_bias else []
        call = self.call(is_first_microbatch, self.num_gemms)
        product = QuantisedGroups if call.recipe else GroupedProduct
        found = product.apply(  # type: ignore[no-untyped-call]
            inp.reshape(-1, self.in_features), rows, call, *weights, *added
        )
        found = found.view(*inp.shape[:-1], self.out_features)
        return (found, biases) if self.return_bias else found


class _Norm(torch.nn.Module):
    """A norm over the last dimension."""

    kind = ""

    def __init__(
        self,
        normalized_shape: int | Sequence[int] | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        dtype: torch.dtype | None = None,
        hidden_size: int | None = None,  # the name of old
        **_: Any,
    ) -> None:
        super().__init__()
        last = normalized_shape if normalized_shape is not None else hidden_size
        if last is None:
            raise TypeError(f"{self.kind} needs normalized_shape")
        shape = (last,) if isinstance(last, int) else tuple(last)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        kind = dtype or params_dtype or torch.get_default_dtype()
        start = torch.zeros if zero_centered_gamma else torch.ones
        self.weight = torch.nn.Parameter(start(shape, dtype=kind, device=device))
        self.weight.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]
        self.bias: torch.nn.Parameter | None = None
        if self.kind == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.zeros(shape, dtype=kind, device=device))
            self.bias.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inp: torch.Tensor) -> Any:
        """As ``inp``."""
        return normalise(self.kind, inp, self.weight, self.bias)


class LayerNorm(_Norm):
    """``transformer_engine.pytorch.LayerNorm``."""

    kind = "LayerNorm"


class RMSNorm(_Norm):
    """``transformer_engine.pytorch.RMSNorm``."""

    kind = "RMSNorm"


_NORMS = {
    "LayerNorm": ExtensionKernel("ln_fwd_kernel", "ln_bwd_kernel", "norm_fwd", "norm_bwd"),
    "RMSNorm": ExtensionKernel("rmsnorm_fwd_kernel", "rmsnorm_bwd_kernel", "norm_fwd", "norm_bwd"),
}


def normalise(kind: str, inp: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> Any:
    """``inp`` normalised by one kernel of ``kind`` ("LayerNorm" or "RMSNorm")."""
    return _NORMS[kind]([inp, weight, bias], torch.empty_like(inp, dtype=_activation_dtype(inp)))


def _activation_dtype(inp: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else inp.dtype


def _normal(weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.init.normal_(weight, mean=0.0, std=0.023)


def _mark(parameter: Any, *, dim: int) -> None:
    """Say that ``parameter`` is a rank's part along ``dim``."""
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1


def _refuse_overlap(options: dict[str, Any]) -> None:
    for name, what in (
        ("delay_wgrad_compute", "weight gradients that are computed later"),
        ("parameters_split", "weights in several parameters"),
        ("symmetric_ar_type", "all-reduce in symmetric memory"),
        ("single_grouped_weight", "weights of all experts in one tensor"),
    ):
        if options.get(name):
            raise NotStoodInError(what)
    if any(value for name, value in options.items() if name.startswith("ub_") and name != "ub_name"):
        raise NotStoodInError("tensor-parallel communication overlapped by user buffers")
