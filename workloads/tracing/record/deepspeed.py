"""DeepSpeed (0.19): what it asks of other ranks and of its CUDA extensions, and where its steps end.

Note [DeepSpeed]
    ``deepspeed.initialize`` runs as it is.  Three things do not: it compares lists among ranks by reading
    what rank 0 broadcasts; its fused optimizers compile code for GPU or host; and a step does not end with
    ``optimizer.step()``, since ZeRO-1 and 2 gather parameters behind it and ZeRO-3 calls it once for every
    sub-group.  Comparisons are left out (they are made in the first steps only), a fused optimizer is one
    kernel per call that reads gradients, parameters and states and writes the last two, and a step ends
    with ``engine.step()`` at the boundary of accumulation.  An optimizer of the host (offloaded states) is a
    pass over its memory, as is all else that the host computes in ``engine.step()``.  What reduces gradients
    runs behind the backward pass or in hooks of it; its ops are labelled here.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.fake.aten_ops import num_bytes
from workloads.tracing.record import step_marks
from workloads.tracing.stand_ins import deepspeed_quantizer
from workloads.tracing.stand_ins.apex_optimizers import FusedAdam

_STAGE3 = "_DeepSpeedZeroOptimizer_Stage3"  # as Python spells private methods of that class
#: (module, class, method) of what reduces gradients: without ZeRO, stages 1 and 2, stage 3.
_REDUCING = (
    ("runtime.engine", "DeepSpeedEngine", "buffered_allreduce_fallback"),
    ("runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", "average_tensor"),
    ("runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", f"{_STAGE3}__avg_scatter_grads"),
)
_COMPARISONS = ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks")


def install(deepspeed: ModuleType) -> None:
    """Patch DeepSpeed, right after it has been imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("deepspeed"):
            for comparison in _COMPARISONS:  # copied by value
                if comparison in vars(module):
                    setattr(module, comparison, lambda *_args, **_kwargs: None)
    builders: Any = deepspeed.ops.op_builder
    builders.FusedAdamBuilder.load = lambda *_args, **_kwargs: SimpleNamespace(
        multi_tensor_adam=_multi_tensor("multi_tensor_adam", num_read_only=1)
    )
    builders.FusedLambBuilder.load = lambda *_args, **_kwargs: SimpleNamespace(lamb=_lamb)
    builders.QuantizerBuilder.load = lambda *_args, **_kwargs: deepspeed_quantizer.LIBRARY
    for builder in (builders.AsyncIOBuilder, builders.GDSBuilder):
        builder.load = _no_files
    for name in ("Adam", "Lion", "Adagrad"):
        lower = name.lower()
        library = {
            f"create_{lower}": lambda *_: None,
            f"destroy_{lower}": lambda *_: None,
            f"{lower}_update": _host_update(lower),
        }
        getattr(builders, f"CPU{name}Builder").load = lambda *_, _made=library: SimpleNamespace(**_made)
    _end_steps(deepspeed.runtime.engine.DeepSpeedEngine)
    supported = importlib.import_module("deepspeed.runtime.zero.utils").ZERO_SUPPORTED_OPTIMIZERS
    supported.append(FusedAdam)  # where apex is not installed it had none to name
    for module_name, class_name, method in _REDUCING:
        owner = getattr(importlib.import_module(f"deepspeed.{module_name}"), class_name)
        setattr(owner, method, step_marks.in_phase("grad_sync", getattr(owner, method)))


def _no_files(*_args: object, **_kwargs: object) -> None:
    raise NotImplementedError(
        "DeepSpeed's offload to NVMe (`offload_optimizer` or `offload_param` on `nvme`) is not known to the "
        "tracer: what goes to files and back has no price; on `cpu` it is traced"
    )


def _multi_tensor(name: str, num_read_only: int) -> Any:
    """One kernel over lists of tensors, of which the first ``num_read_only`` are not written."""

    def launch(_chunk: int, _overflow: Any, lists: list[list[torch.Tensor]], *_: object) -> None:
        flat = [tensor for tensors in lists for tensor in tensors]
        kept = [tensor for tensors in lists[num_read_only:] for tensor in tensors]
        kernels.launch(name, reads=flat, writes=kept)

    return launch


def _lamb(
    param: torch.Tensor,
    copy: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    gradient: torch.Tensor,
    *_: object,
) -> torch.Tensor:
    kernels.launch("fused_lamb", reads=[param, mean, square, gradient], writes=[param, mean, square, copy])
    return param.new_ones(())  # the trust ratio, kept for reports


def _host_update(name: str) -> Any:
    """Gradient, parameter and states are read, the last two written; gradients come last but for states."""

    def update(*args: Any) -> None:
        parameter, gradient, *states = (one for one in args if isinstance(one, torch.Tensor))
        kept = sum(map(num_bytes, (parameter, *states)))
        if kernels.listener is not None:
            kernels.listener.host_passes(name, num_bytes(gradient) + 2 * kept)

    return update


def _end_steps(engine_class: Any) -> None:
    original = engine_class.step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with step_marks.current().update(ends_step=bool(self.is_gradient_accumulation_boundary())):
            return original(self, *args, **kwargs)

    engine_class.step = step
