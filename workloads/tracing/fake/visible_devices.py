"""Which GPUs the process believes to see, and which of them is current."""

from __future__ import annotations

from typing import Any

import torch

#: torch's stand-in for a device that is not there knows indices below 8.
MAX_INDEX = 8

_set_in_cpp = torch._C._accelerator_setDeviceIndex

count = MAX_INDEX
_current = 0
_in_use = False


class NoSuchDeviceError(RuntimeError):
    """The program asked for a GPU that its node does not have."""


def enter_node(num_devices: int) -> None:
    """A node with ``num_devices`` GPUs; the first one is current."""
    global count, _in_use
    count = num_devices
    _make_current(0)
    _in_use = False  # torch's own call of _lazy_init


def use(*_args: object) -> None:
    """The program touches a device: CUDA is initialised from now on."""
    global _in_use
    _in_use = True


def in_use() -> bool:
    """Whether the program has touched a device.  A device mesh chooses the rank's device only before that."""
    return _in_use


def current(*_args: object) -> int:
    """Index of the current device."""
    return _current


def device_count(*_args: object) -> int:
    """GPUs of the node."""
    return count


def select(device: Any = None) -> None:
    """Make ``device`` (index, name or ``torch.device``) current.  NoSuchDeviceError beyond the node's."""
    index = _index(device)
    if index is not None:
        use()
        _make_current(index)


def _make_current(index: int) -> None:
    global _current
    _current = index
    _set_in_cpp(index)  # an unindexed "cuda" is resolved in C++ here and there


def exchange(device: Any = None) -> int:
    """As :func:`select`; returns the index that was current before."""
    before = _current
    select(device)
    return before


def _index(device: Any) -> int | None:
    if isinstance(device, DeviceScope):  # torch takes one for a device
        device = device.idx
    if device is None:
        return None
    index: int | None = device if isinstance(device, int) else torch.device(device).index
    if index is None or index < 0:
        return None
    if index >= count:
        raise NoSuchDeviceError(f"device cuda:{index} of a node with {count} GPUs")
    return index


class DeviceScope:
    """``torch.cuda.device``: another current device inside ``with``."""

    def __init__(self, device: Any = None) -> None:
        self.idx = _index(device)
        self.prev_idx = _current

    def __enter__(self) -> None:
        self.prev_idx = exchange(self.idx)

    def __exit__(self, *_: object) -> None:
        select(self.prev_idx)
