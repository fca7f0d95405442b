"""``torch.cuda`` without a GPU: every call that a training framework makes, answered in Python.

Install before the framework is imported, because frameworks copy functions by value.  The shape-only
run goes through :class:`torch._subclasses.fake_tensor.FakeTensorMode`; what needs tensor *values*
is answered in :mod:`workloads.tracing.fake.host_values`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._device import _device_constructors

from workloads.tracing.fake import cuda_graphs, legacy_types, streams, visible_devices

#: What the program is told about its GPU.  Frameworks branch on the compute capability only.
DEVICE_PROPERTIES: dict[str, Any] = {
    "name": "NVIDIA H800",
    "major": 9,
    "minor": 0,
    "total_memory": 80 << 30,
    "multi_processor_count": 132,
    "warp_size": 32,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "L2_cache_size": 50 << 20,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "gcnArchName": "",
    "uuid": "GPU-0",
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "pci_bus_id": 0,
    "pci_device_id": 0,
    "pci_domain_id": 0,
}

#: Opens a named region that a compiler would fuse; set by the recorder.
fused_region: Callable[[str], contextlib.AbstractContextManager[None]] | None = None
#: Told of what a compiler is asked for and does not do here.
on_left_out: Callable[[str], None] | None = None

#: 2.28.9 as torch packs it; programs ask whether it is 2.10 or newer (bf16).
_CUDA_VERSION = "12.8"
_NCCL_VERSION = 2 << 32 | 28 << 16 | 9


def install() -> None:
    """Patch ``torch.cuda``, ``torch.accelerator`` and the entry points below them, once per process."""
    # Otherwise autograd starts a thread per CUDA device, which aborts when the process ends.
    torch.autograd.set_multithreading_enabled(False)
    torch.version.cuda = _CUDA_VERSION
    _patch_streams()
    _patch_queries()
    _patch_memory()
    _patch_bindings()
    _patch_accelerator()
    _patch_tensor_methods()
    _patch_compilers()
    _patch_profiler()
    torch.backends.mha.set_fastpath_enabled(False)  # of evaluation: padded sequences as nested tensors
    legacy_types.install()


def _set(module: Any, **functions: object) -> None:
    for name, function in functions.items():
        setattr(module, name, function)


def _always(value: object) -> Callable[..., object]:
    return lambda *_args, **_kwargs: value


def _using(function: Callable[..., object]) -> Callable[..., object]:
    """``function``, which initialises CUDA where the program has not done so yet."""

    def call(*args: object, **kwargs: object) -> object:
        visible_devices.use()
        return function(*args, **kwargs)

    return call


def _synchronize(*_args: object, **_kwargs: object) -> None:
    if streams.listener is not None:
        streams.listener.host_waits("cudaDeviceSynchronize", None)


def _patch_streams() -> None:
    for module in (torch.cuda, torch.cuda.streams):
        _set(module, Stream=streams.Stream, Event=streams.Event)
    _set(
        torch.cuda,
        ExternalStream=streams.ExternalStream,
        get_stream_from_external=streams.ExternalStream,
        StreamContext=streams.StreamContext,
        stream=streams.StreamContext,
        current_stream=_using(streams.current_stream),
        default_stream=_using(streams.default_stream),
        set_stream=streams.set_stream,
        synchronize=_using(_synchronize),
        CUDAGraph=cuda_graphs.FakeCUDAGraph,
        graph_pool_handle=_always((0, 0)),
        is_current_stream_capturing=cuda_graphs.is_capturing,
    )
    _set(torch._C, _host_emptyCache=_always(None))
    _set(
        torch.cuda.graphs,
        CUDAGraph=cuda_graphs.FakeCUDAGraph,
        graph_pool_handle=_always((0, 0)),
        is_current_stream_capturing=cuda_graphs.is_capturing,
    )
    _set(torch, Stream=streams.Stream, Event=streams.Event)


def _patch_queries() -> None:
    properties = types.SimpleNamespace(**DEVICE_PROPERTIES)
    _set(
        torch.cuda,
        is_available=_always(True),
        is_initialized=visible_devices.in_use,
        device_count=visible_devices.device_count,
        current_device=_using(visible_devices.current),
        set_device=visible_devices.select,
        init=visible_devices.use,
        _lazy_init=visible_devices.use,
        _lazy_call=_always(None),
        _is_compiled=_always(True),
        device=visible_devices.DeviceScope,
        device_of=contextlib.nullcontext,
        _DeviceGuard=visible_devices.DeviceScope,
        get_device_properties=_using(_always(properties)),
        get_device_name=_using(_always(properties.name)),
        get_device_capability=_using(_always((properties.major, properties.minor))),
        get_arch_list=_always(["sm_90"]),
        is_bf16_supported=_always(True),
        can_device_access_peer=_always(True),
        ipc_collect=_always(None),
        # Of a busy GPU, for logs: percent, degrees Celsius, milliwatts, MHz.
        utilization=_always(100),
        memory_usage=_always(100),
        temperature=_always(60),
        power_draw=_always(700_000),
        clock_rate=_always(1980),
    )
    total = DEVICE_PROPERTIES["total_memory"]
    runtime = types.SimpleNamespace(
        cudaError=types.SimpleNamespace(success=0),
        cudaGetErrorString=_always("no error"),
        cudaMemGetInfo=_always((total, total)),
        **dict.fromkeys(
            ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"), _always(0)
        ),
    )
    _set(torch.cuda, _cudart=runtime, cudart=_always(runtime))
    nvtx = torch.cuda.nvtx
    _set(nvtx, range_push=_always(0), range_pop=_always(0), mark=_always(None), range=_nvtx_range)
    _set(nvtx, range_start=_always(0), range_end=_always(None))


@contextlib.contextmanager
def _nvtx_range(*_args: object, **_kwargs: object) -> Iterator[None]:
    yield


def _patch_memory() -> None:
    total = DEVICE_PROPERTIES["total_memory"]
    answers: dict[str, object] = dict.fromkeys(
        ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), _always(0)
    )
    answers |= dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"), _always(None))
    answers |= dict.fromkeys(("empty_cache", "set_per_process_memory_fraction"), _always(None))
    answers["memory_stats"] = lambda *_args, **_kwargs: collections.defaultdict(int)
    answers["mem_get_info"] = _always((total, total))
    answers["memory_summary"] = _always("")
    for module in (torch.cuda, torch.cuda.memory):
        _set(module, **answers)


#: C functions that change what a trace does not see.
_WITHOUT_ANSWER = tuple(
    f"_cuda_{name}"
    for name in (
        *(
            "clearCublasWorkspaces",
            "record_memory_history",
            "record_memory_history_legacy",
            "setMemoryFraction",
        ),
        *("resetAccumulatedMemoryStats", "resetAccumulatedHostMemoryStats", "resetPeakHostMemoryStats"),
        *("set_sync_debug_mode", "sleep", "setMemoryMetadata", "tunableop_enable", "tunableop_tuning_enable"),
        *("record_untuned_enable", "tunableop_set_filename", "cudaCachingAllocator_enable"),
    )
)


def _patch_bindings() -> None:
    """C functions that exist only in CUDA builds, or fail there without a driver."""
    _set(
        torch._C,
        _cuda_getCurrentRawStream=lambda _device=0: streams.current_stream().stream_id,
        _cuda_setDevice=visible_devices.select,
        _cuda_getDevice=visible_devices.current,
        _cuda_exchangeDevice=visible_devices.exchange,
        _cuda_maybeExchangeDevice=visible_devices.exchange,
        _cuda_getDeviceCount=visible_devices.device_count,
        _cuda_getDefaultStream=_always((0, 0, 1)),
        _cuda_getCurrentStream=_always((0, 0, 1)),
        _cuda_isCurrentStreamCapturing=_always(False),
        _cuda_attach_out_of_memory_observer=_always(None),
        _cuda_resetPeakMemoryStats=_always(None),
        **dict.fromkeys(_WITHOUT_ANSWER, _always(None)),
        _cuda_getAllocatorBackend=_always("native"),
        _cuda_getMemoryFraction=_always(1.0),
        _cuda_getCurrentBlasHandle=_always(0),
        _cuda_get_sync_debug_mode=_always(0),
        _cuda_memorySnapshot=_always({"segments": [], "device_traces": [], "allocator_settings": {}}),
        _cuda_hostMemoryStats=_always({}),
        _cuda_tunableop_is_enabled=_always(False),
        _cuda_tunableop_tuning_is_enabled=_always(False),
        _cuda_record_untuned_is_enabled=_always(False),
        _scatter=_to_one_device,
        _nccl_version=_always(_NCCL_VERSION),
        _nccl_version_suffix=_always(b""),
    )


def _to_one_device(tensor: torch.Tensor, devices: list[int], *_: object) -> list[torch.Tensor]:
    """What ``DataParallel`` splits among the GPUs of its process, of which a traced one has one."""
    if len(devices) != 1:
        raise visible_devices.NoSuchDeviceError(
            f"one process drives {len(devices)} GPUs (DataParallel): a process of one GPU can be traced"
        )
    return [tensor.to(torch.device("cuda", devices[0]))]


def _patch_accelerator() -> None:
    total = DEVICE_PROPERTIES["total_memory"]
    _set(
        torch.accelerator,
        is_available=_always(True),
        device_count=visible_devices.device_count,
        current_device_index=_using(visible_devices.current),
        current_device_idx=_using(visible_devices.current),
        set_device_index=visible_devices.select,
        synchronize=_using(_synchronize),
        current_stream=_using(streams.current_stream),
        set_stream=streams.set_stream,
        empty_cache=_always(None),
        memory_stats=lambda *_args, **_kwargs: collections.defaultdict(int),
        memory_allocated=_always(0),
        max_memory_allocated=_always(0),
        reset_peak_memory_stats=_always(None),
        get_memory_info=_always((total, total)),
    )


def _patch_tensor_methods() -> None:
    """``record_stream`` parses a C stream object, ``pin_memory`` asks the driver."""
    torch.Tensor.record_stream = _always(None)  # type: ignore[method-assign,assignment]
    torch.Tensor.pin_memory = lambda self, *_args: self  # type: ignore[method-assign]
    torch.UntypedStorage.pin_memory = lambda self, *_args: self  # type: ignore[method-assign]
    _device_constructors()  # as `with torch.device("cuda"):` knows them, remembered before one is replaced
    _set(torch, tensor=_not_pinned(torch.tensor))
    _set(torch.Tensor, new_tensor=_not_pinned(torch.Tensor.new_tensor))


def _not_pinned(make: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors of lists are made before any operator is dispatched, in memory of the host like any other."""

    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:  # noqa: ARG001
        return make(*args, **kwargs)

    return made


def _spare_missing_gradients() -> None:
    """A compiler does not count the gradients that a backward function returns: those left out are None."""
    backward: Any = torch.autograd.function.BackwardCFunction
    original = backward.apply

    def apply(self: Any, *args: Any) -> Any:
        found = original(self, *args)
        missing = len(self.needs_input_grad) - len(found) if isinstance(found, tuple) else 0
        return (*found, *(None,) * missing) if missing > 0 else found

    backward.apply = apply


def _patch_profiler() -> None:
    """A profiler sees the host alone: for every op it would fail to record an event of a GPU, and say so."""
    profile: Any = torch.autograd.profiler.profile
    original = profile.__init__

    @functools.wraps(original)
    def begin(self: Any, *args: Any, **options: Any) -> None:
        of_host = {name: one for name, one in options.items() if name not in ("use_cuda", "use_device")}
        original(self, *args, **{**of_host, "use_cpu": True})

    profile.__init__ = begin


#: What the compiler is asked to do with communication -> what it is when it is not.
_OF_COMMUNICATION = {
    "_micro_pipeline_tp": False,
    "reorder_for_compute_comm_overlap": False,
    "_fuse_ddp_communication": False,
    "bucket_all_gathers_fx": "none",
    "bucket_reduce_scatters_fx": "none",
    "bucket_all_reduces_fx": "none",
}


def _say_what_is_left_out() -> None:
    config = sys.modules.get("torch._inductor.config")
    asked = [name for name, value in _OF_COMMUNICATION.items() if getattr(config, name, value) != value]
    if asked and on_left_out is not None:
        on_left_out(
            f"the compiler is asked to move, join or cut communication ({', '.join(asked)}), which is not "
            "done: collectives stand where the program issues them"
        )


def _patch_compilers() -> None:
    """``torch.compile`` and ``torch.jit`` run eagerly; the region is named, so that passes can fuse it.  A
    compiled module is the module itself, its forward pass a region.
    """
    spared = said = False

    def compiled(model: Any = None, **options: object) -> Any:
        nonlocal spared
        if not spared:
            _spare_missing_gradients()
            spared = True
        if model is None:
            return functools.partial(compiled, **options)
        if isinstance(model, type):
            return model
        if isinstance(model, torch.nn.Module):
            model.forward = region_of(model.forward, type(model).__name__)
            return model
        owner = getattr(model, "__self__", None)  # Module.compile() compiles the bound call
        return region_of(model, type(owner).__name__ if owner is not None else model.__name__)

    def region_of(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def region(*args: object, **kwargs: object) -> object:
            nonlocal said
            if not said:
                said = True
                _say_what_is_left_out()
            if fused_region is None:
                return function(*args, **kwargs)
            with fused_region(name):
                return function(*args, **kwargs)

        return region

    _set(torch, compile=compiled)

    script: Any = torch.jit.script

    def scripted(model: Any = None, *_args: object, **_kwargs: object) -> Any:
        if getattr(model, "__module__", "").startswith("torch._"):  # rules of derivatives that torch keeps
            return script(model)
        return model if isinstance(model, torch.nn.Module) else compiled(model)

    class ScriptModule(torch.nn.Module):
        """``torch.jit.ScriptModule``: its methods are compiled each by itself (``script_method``)."""

    def traced(model: Any, *_args: object, **_kwargs: object) -> Any:
        return model

    _set(torch.jit, script=scripted, script_method=compiled, ScriptModule=ScriptModule, trace=traced)
