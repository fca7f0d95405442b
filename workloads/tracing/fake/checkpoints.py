"""``torch.distributed.checkpoint``: weights, which have no values, are neither written nor read.

That there is one shows by its file ``.metadata``, which is empty.  What a program keeps beside weights (its
step, a schedule, tensors of the host) is held in memory and comes back;
objects that give and take their own state are asked and told as they really are.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as package
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

#: What was saved in each place, without weights.
_held: dict[str, Any] = {}
_WEIGHTS = object()
#: Puts a file into memory.
_hold: Callable[[str, bytes], None]


def install(hold: Callable[[str, bytes], None]) -> None:
    """Patch the package, once per process; it has an older name for two of them.  ``hold`` keeps a file."""
    global _hold
    _hold = hold
    for module, function in (
        (state_dict_saver, save),
        (state_dict_saver, async_save),
        (state_dict_loader, load),
        (state_dict_saver, save_state_dict),
        (state_dict_loader, load_state_dict),
    ):
        for holder in (package, module):
            setattr(holder, function.__name__, function)


def save(
    state_dict: dict[str, Any], *, checkpoint_id: Any = None, storage_writer: Any = None, **_: object
) -> Metadata:
    """``torch.distributed.checkpoint.save``."""
    place, said = _place(checkpoint_id, storage_writer), Metadata({})
    _held[place] = _beside_weights(_asked(state_dict))
    if not dist.is_initialized() or dist.get_rank() == 0:
        _hold(f"{place}{os.sep}.metadata", pickle.dumps(said))
    return said


def async_save(state_dict: dict[str, Any], **options: Any) -> Future[Metadata]:
    """``torch.distributed.checkpoint.async_save``: it is done at once."""
    done: Future[Metadata] = Future()
    done.set_result(save(state_dict, **options))
    return done


def load(
    state_dict: dict[str, Any], *, checkpoint_id: Any = None, storage_reader: Any = None, **_: object
) -> None:
    """``torch.distributed.checkpoint.load``; what was not saved in this run stays as it is."""
    loaded = _back(_asked(state_dict), _held.get(_place(checkpoint_id, storage_reader), _WEIGHTS))
    for key, value in list(state_dict.items()):
        if isinstance(value, Stateful):
            value.load_state_dict(loaded[key])
        else:
            state_dict[key] = loaded[key]


def save_state_dict(state_dict: dict[str, Any], storage_writer: Any, *_: object, **__: object) -> Metadata:
    """``torch.distributed.checkpoint.save_state_dict``, the older :func:`save`."""
    return save(state_dict, storage_writer=storage_writer)


def load_state_dict(state_dict: dict[str, Any], storage_reader: Any, *_: object, **__: object) -> None:
    """``torch.distributed.checkpoint.load_state_dict``, the older :func:`load`."""
    load(state_dict, storage_reader=storage_reader)


def _place(checkpoint_id: Any, storage: Any) -> str:
    """Where a checkpoint is: as it is called, or where what writes or reads it says."""
    said = checkpoint_id or getattr(storage, "path", None) or getattr(storage, "checkpoint_id", "")
    return os.path.realpath(str(said))


def _asked(state_dict: dict[str, Any]) -> dict[str, Any]:
    states: dict[str, Callable[[], Any]] = {
        key: one.state_dict for key, one in state_dict.items() if isinstance(one, Stateful)
    }
    return {key: states[key]() if key in states else one for key, one in state_dict.items()}


def _beside_weights(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _beside_weights(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_beside_weights(one) for one in value]
    if isinstance(value, FakeTensor | DTensor):
        return _WEIGHTS
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _back(now: Any, held: Any) -> Any:
    """``now`` with what was ``held``; tensors of the host are filled where they are."""
    if held is _WEIGHTS:
        return now
    if isinstance(now, dict) and isinstance(held, dict):
        return {key: _back(one, held.get(key, _WEIGHTS)) for key, one in now.items()}
    if isinstance(now, list | tuple) and isinstance(held, list) and len(now) == len(held):
        return type(now)(map(_back, now, held))
    if isinstance(now, torch.Tensor):
        if isinstance(held, torch.Tensor) and not isinstance(now, FakeTensor | DTensor):
            with torch.no_grad():
                now.copy_(held)
        return now
    return copy.deepcopy(held)
