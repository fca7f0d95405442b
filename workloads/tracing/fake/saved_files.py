"""What a program saves: kept in memory, so that a traced run never overwrites the files of a real one.

And trained weights that it would download: they decide no shape, so a model keeps its initial ones.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dist_checkpoint
import torch.hub
from torch.nn.modules.module import _IncompatibleKeys

from workloads.tracing.fake.host_values import without_modes
from workloads.tracing.fake.outside_world import NetworkCallError

#: What was saved under each path.
_saved: dict[str, bytes] = {}

#: Told of each address from which weights would be downloaded.
on_missing_weights: Callable[[str], None] | None = None


class MissingWeights(dict[str, Any]):
    """The weights at an address that is not reached, for ``load_state_dict``."""


def install() -> None:
    """Patch ``torch.save``, ``torch.load`` and what downloads weights, once per process."""
    torch.hub.load_state_dict_from_url = _downloading(torch.hub.load_state_dict_from_url)
    module: Any = torch.nn.Module
    module.load_state_dict = _without_missing(module.load_state_dict)
    # Under a fake mode torch leaves values out.
    torch.save = _saving(without_modes(torch.save))
    torch.load = _loading(without_modes(torch.load))
    for name in ("save", "load", "async_save"):  # whole checkpoints of weights, which have no values
        setattr(dist_checkpoint, name, lambda *_args, **_kwargs: None)


def _downloading(original: Callable[..., Any]) -> Callable[..., Any]:
    """What was downloaded before is loaded."""

    @functools.wraps(original)
    def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(url, *args, **kwargs)
        except OSError as error:
            if not isinstance(getattr(error, "reason", error), NetworkCallError):
                raise
            if on_missing_weights is not None:
                on_missing_weights(url)
            return MissingWeights()

    return load_state_dict_from_url


def _without_missing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state_dict, MissingWeights):
            return _IncompatibleKeys([], [])
        return original(self, state_dict, *args, **kwargs)

    return load_state_dict


def _saving(original: Callable[..., None]) -> Callable[..., None]:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        path = _path(f)
        if path is None:
            original(obj, f, *args, **kwargs)
            return
        written = io.BytesIO()
        original(obj, written, *args, **kwargs)
        _saved[path] = written.getvalue()

    return save


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Memory is the host's; where tensors are to go is asked afterwards."""
        path = _path(f)
        source = io.BytesIO(_saved[path]) if path in _saved else f
        loaded = original(source, lambda storage, _location: storage, *args, **kwargs)
        where = map_location if isinstance(map_location, str | torch.device) else None
        return loaded if where is None else _moved(loaded, torch.device(where))

    return load


def _path(file: Any) -> str | None:
    return str(Path(os.fspath(file)).resolve()) if isinstance(file, str | os.PathLike) else None


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        for key, one in value.items():
            value[key] = _moved(one, device)
    elif isinstance(value, list):
        value[:] = [_moved(one, device) for one in value]
    return value
