"""What a script does beside training, kept from getting in the way: loading data, saving, the network."""

from __future__ import annotations

import functools
import inspect
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data as data
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from workloads.tracing.fake import loader_shares, loader_workers, visible_devices
from workloads.tracing.fake.cuda import DEVICE_PROPERTIES
from workloads.tracing.fake.host_values import without_modes
from workloads.tracing.fake.key_store import KeyStore
from workloads.tracing.fake.loader_workers import LoaderWorkers
from workloads.tracing.sites import call_site

_LOCAL = ("localhost", "127.0.0.1", "::1")


class NetworkCallError(OSError):
    """The script wants the network; names the host and who asked."""


def install() -> None:
    """Patch, once per process and before the script is run."""
    _load_in_this_process(data.DataLoader)
    loader_workers.install()
    iterator = dataloader._BaseDataLoaderIter
    iterator._next_index = _told(iterator._next_index)  # type: ignore[method-assign]
    iterator.__next__ = _noted(_on_host_or_device(iterator.__next__))  # type: ignore[method-assign]
    distributed: Any = dist
    for name in ("TCPStore", "FileStore", "HashStore"):
        setattr(distributed, name, KeyStore)
    subprocess.Popen.__init__ = _with_answers(subprocess.Popen.__init__)  # type: ignore[method-assign]
    socket.getaddrinfo = _refusing_names(socket.getaddrinfo)
    socket.socket.connect = _refusing(socket.socket.connect)  # type: ignore[method-assign]
    socket.socket.connect_ex = _refusing(socket.socket.connect_ex)  # type: ignore[method-assign]


def load_stateful(module: Any) -> None:
    """Torchdata's loaders, which remember how far they have come."""
    _load_in_this_process(module.StatefulDataLoader)


def _load_in_this_process(loader: Any) -> None:
    """Data are loaded for real, but by this process: see Note [Workers in turn].

    ``loader``: torch's class of loaders, or one that does not call its ``__init__``.
    """
    original = loader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)  # frameworks read the signature to make a loader like another
    def init(*args: Any, **kwargs: Any) -> None:
        given = dict(signature.bind(*args, **kwargs).arguments)
        workers = given.get("num_workers", 0)
        if not isinstance(workers, LoaderWorkers) and isinstance(workers, int) and workers >= 0:
            persistent = bool(given.get("persistent_workers"))
            workers = LoaderWorkers.of(workers, given.get("worker_init_fn"), persistent=persistent)
        alone = {"num_workers": workers, "pin_memory": False, "persistent_workers": False}
        given |= {name: value for name, value in alone.items() if name in signature.parameters}
        for name in ("prefetch_factor", "multiprocessing_context", "worker_init_fn", "timeout"):
            given.pop(name, None)
        original(**given)

    loader.__init__ = init
    loader.__iter__ = without_modes(loader.__iter__)


def _told(original: Callable[..., Any]) -> Callable[..., Any]:
    """Samplers are asked for every batch: see Note [Batches of other ranks]."""

    def next_index(self: Any) -> Any:
        if not hasattr(self, "_simcore_index"):
            loader_shares.begin(self)
        self._simcore_index = original(self)
        return self._simcore_index

    return next_index


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    def following(self: Any) -> Any:
        batch = original(self)
        loader_shares.give(self, getattr(self, "_simcore_index", None), batch)
        return batch

    return following


def _on_host_or_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Samples are made of real memory, unless they turn out to be made on the device (a batch is lost); what
    lies on the device is put together there.
    """

    def following(self: Any) -> Any:
        if getattr(self, "_simcore_on_device", False):
            return original(self)
        fetcher = self._dataset_fetcher
        collate = fetcher.collate_fn
        try:
            with _disable_current_modes() as modes:
                fetcher.collate_fn = lambda samples: _collated(collate, samples, modes)
                return original(self)
        except NotImplementedError as error:
            if "'CUDA' backend" not in str(error):
                raise
            self._simcore_on_device = True
        finally:
            fetcher.collate_fn = collate
        return original(self)

    return following


def _collated(collate: Callable[[Any], Any], samples: Any, modes: Sequence[Any]) -> Any:
    """A batch, made under ``modes`` where samples lie on the device."""
    if not any(isinstance(one, torch.Tensor) and one.is_cuda for one in tree_leaves(samples)):
        return collate(samples)
    for mode in reversed(modes):
        _push_mode(mode)
    try:
        return collate(samples)
    finally:
        for _ in modes:
            _pop_mode()


def _with_answers(original: Callable[..., None]) -> Callable[..., None]:
    """Where there is no ``nvidia-smi``, it tells what programs ask for in their logs: the node's GPUs.  A
    rank has no terminal; ``stty size`` is that of a usual one.  ``nvcc`` is of torch's version of CUDA,
    whichever is installed: what it would compile is not compiled.
    """

    def init(self: Any, args: Any, *others: Any, **options: Any) -> None:
        words = args.split() if isinstance(args, str) else [os.fspath(one) for one in args]
        text = "24 80" if words == ["stty", "size"] else ""
        if words[:1] == ["nvidia-smi"] and shutil.which("nvidia-smi") is None:
            text = _smi(words)
        if words and Path(words[0]).name == "nvcc" and {"-V", "--version"} & {*words}:
            text = f"Cuda compilation tools, release {torch.version.cuda}, V{torch.version.cuda}.0"
        if text:
            args, options = [sys.executable, "-S", "-c", f"print({text!r})"], {**options, "shell": False}
        original(self, args, *others, **options)

    return init


def _smi(words: list[str]) -> str:
    known = {"name": DEVICE_PROPERTIES["name"], "memory.total": DEVICE_PROPERTIES["total_memory"] >> 20}
    if "-L" in words or "--list-gpus" in words:
        each = (f"GPU {index}: {known['name']} (UUID: GPU-{index})" for index in range(visible_devices.count))
        return "\n".join(each)
    asked = next((one.partition("=")[2] for one in words if one.startswith("--query-gpu=")), "")
    if not asked:
        return f"NVIDIA-SMI: {visible_devices.count} x {known['name']}"
    lines = (", ".join(str(known.get(field.strip(), 0)) for field in asked.split(",")),)
    return "\n".join(lines * visible_devices.count)


def _refusing_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looking up a name may take minutes to fail; addresses are refused when they are connected to."""

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not name or name in (*_LOCAL, socket.gethostname()) or _is_address(name):
            return original(host, *args, **kwargs)
        raise NetworkCallError(f"{call_site()} looks up {name}: nothing answers while tracing")

    return getaddrinfo


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    def connect(self: socket.socket, address: Any) -> Any:
        host = address[0] if isinstance(address, tuple) else None
        if host is None or host in _LOCAL:
            return original(self, address)
        raise NetworkCallError(f"{call_site()} connects to {host}: nothing answers while tracing")

    return connect
