"""What torch's own parallelism asks of a device or of tensor values, answered for a run on shapes.

DDP's reducer, device meshes and DTensor's random states live in C++ or read small tensors on the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
import torch.distributed.fsdp._flat_param as fsdp1_parameters
import torch.distributed.fsdp._fully_shard._fsdp_init as fsdp2_init
import torch.distributed.tensor._random as dtensor_random
import torch.distributed.utils as dist_utils
import torch.nn.parallel.distributed as ddp
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from workloads.tracing.fake import object_exchange, streams
from workloads.tracing.fake.host_values import without_modes
from workloads.tracing.fake.parameters import move

_EMPTY = torch.ops.aten.empty.memory_format
_ZEROS = torch.ops.aten.zeros.default
_COPY = torch.ops.aten.copy_.default


def install() -> None:
    """Patch, once per process and before the script is run."""
    modules: tuple[Any, ...] = (dist_utils, ddp)
    for module in modules:  # compares values among ranks in C++
        module._verify_param_shape_across_processes = lambda *_args, **_kwargs: None
    _patch_reducer()
    _patch_device_mesh()
    fsdp2_init._move_states_to_device = _move_states
    # FSDP1 asks for an address whether a parameter is gathered; memory that is not here has a size alone.
    flat: Any = fsdp1_parameters
    flat._data_ptr_allocated = flat._storage_size_allocated
    dtensor_random.is_rng_supported_mesh = lambda _mesh: False  # type: ignore[assignment]


#: Parameters whose sums into gradients a reducer keeps -> the stream that was current when it was made: there
#: they run, and what is hooked to them.
stream_of_sum: Any = WeakIdKeyDictionary()


def _move_states(params: list[Any], buffers: list[Any], device: torch.device) -> None:
    """FSDP2 moves a model that is still on the host."""
    for tensor in (*params, *buffers):
        if tensor.device != device and tensor.device.type != "meta":
            move(tensor, lambda old: old.to(device))


#: Marks integers of the device that lie in memory of the host.
_OF_DEVICE = "_simcore_of_device"


def of_device(tensor: Any) -> bool:
    """Whether DDP's reducer made ``tensor`` on the device, though it is memory of the host."""
    return hasattr(tensor, _OF_DEVICE)


class _HostIntegers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The reducer fills small int32 tensors through raw pointers: they must be real memory of the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (_EMPTY, _ZEROS) and kwargs.get("dtype") == torch.int32:
            with _disable_current_modes():
                made = func(*args, **{**kwargs, "device": "cpu", "pin_memory": False})
            if torch.device(kwargs.get("device") or "cpu").type == "cuda":
                setattr(made, _OF_DEVICE, True)
            return made
        if func is _COPY and not isinstance(args[0], FakeTensor):
            with _disable_current_modes():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _patch_reducer() -> None:
    bindings: Any = torch._C._distributed_c10d
    reducer = bindings.Reducer
    # The logger asserts a timer, and a CUDA build's timer records real CUDA events.
    bindings.Logger.set_runtime_stats_and_log = lambda _self: None
    if torch.version.cuda or torch.version.hip:
        reducer.prepare_for_forward = lambda _self: None

    def on_host(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _HostIntegers():  # type: ignore[no-untyped-call]
                return original(*args, **kwargs)

        return call

    reducer._rebuild_buckets = _without_mail(on_host(reducer._rebuild_buckets))
    reducer._set_static_graph = on_host(reducer._set_static_graph)
    distributed: Any = dist
    make = on_host(reducer)

    def made(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        for param in params:
            stream_of_sum[param] = streams.current_stream()
        return make(params, *args, **kwargs)

    distributed.Reducer = made


def _without_mail(original: Callable[..., Any]) -> Callable[..., Any]:
    """The first rank of a group tells the others in which order its gradients came, as theirs do.  Where that
    one is not run, the first of another group would answer, whose stage may have other parameters.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        box, object_exchange.mailbox = object_exchange.mailbox, None
        try:
            return original(*args, **kwargs)
        finally:
            object_exchange.mailbox = box

    return call


#: What DTensor asks a mesh at every operation and that reads no tensor.
_MESH_ATTRIBUTES = (
    *("__enter__", "__exit__", "__repr__", "__hash__", "__eq__", "__getattribute__"),
    *("size", "ndim", "device_type", "mesh_dim_names", "get_coordinate", "_is_current_rank_part_of_mesh"),
)


def _patch_device_mesh() -> None:
    """A mesh keeps its ranks in a CPU tensor and reads it all the time."""
    for name in ("new_group", "init_process_group", "get_backend"):  # copied by value
        setattr(device_mesh, name, getattr(dist, name))
    mesh = device_mesh.DeviceMesh
    for name, value in list(vars(mesh).items()):
        if name in _MESH_ATTRIBUTES:
            continue
        if isinstance(value, staticmethod | classmethod):
            setattr(mesh, name, type(value)(without_modes(value.__func__)))
        elif isinstance(value, property):
            setattr(mesh, name, property(without_modes(value.fget), value.fset))  # type: ignore[arg-type]
        elif callable(value) and not isinstance(value, type):
            setattr(mesh, name, without_modes(value))
    original = device_mesh.init_device_mesh
    plain = without_modes(original)
    for module in list(sys.modules.values()):  # FSDP2 has a copy for meshes that it makes itself
        if getattr(module, "init_device_mesh", None) is original:
            module.init_device_mesh = plain  # type: ignore[attr-defined]
