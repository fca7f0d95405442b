"""What a program saves: kept in memory, so that a traced run never overwrites the files of a real one.

Other ranks find what rank 0 had saved when they last met it at a barrier; one that loads what is not there
waits for rank 0 to save it.

And trained weights that it would download: they decide no shape, so a model keeps its initial ones.  A
repository of models that would only be listed offers none.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.hub
from torch.nn.modules.module import _IncompatibleKeys

from workloads.tracing.fake import checkpoints, gone_files, late_files, safe_tensors
from workloads.tracing.fake.host_values import without_modes
from workloads.tracing.fake.outside_world import NetworkCallError


class _Shelf(Protocol):
    def put_saved(self, path: str, version: int, content: bytes) -> None: ...

    def saved(self, path: str, version: int = 0) -> bytes | None: ...


#: Where rank 0 puts what it saves for other ranks; None: nowhere.
shelf: _Shelf | None = None


class _SavedFiles(dict[str, bytes]):
    """What was saved under each path, by this rank or by rank 0 (``seen``)."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self._count = 0

    def __setitem__(self, path: str, content: bytes) -> None:
        super().__setitem__(path, content)
        self._count += 1
        self.versions[path] = self._count
        self.seen.pop(path, None)
        if shelf is not None:
            shelf.put_saved(path, self._count, content)

    def see(self, versions: dict[str, int]) -> None:
        """Rank 0 has these files now."""
        for path in [one for one in self.seen if one not in versions]:
            del self.seen[path]
            self.pop(path, None)
        for path, version in versions.items():
            if shelf is None or self.seen.get(path) == version or (path in self and path not in self.seen):
                continue
            content = shelf.saved(path, version)
            if content is not None:
                super().__setitem__(path, content)
                self.seen[path] = version


_saved = _SavedFiles()
#: Lengths and hashes of what was saved into memory of the program's own.
_in_memory: set[tuple[int, int]] = set()

#: Told of what would be downloaded and of what is done without it.
on_missing: Callable[[str], None] | None = None


def versions() -> dict[str, int]:
    """The files that this rank has saved, and which of its saves each is."""
    return {path: _saved.versions[path] for path in _saved if path in _saved.versions}


def see(those: dict[str, int]) -> None:
    """This rank has met rank 0, which has saved ``those`` (:func:`versions`)."""
    _saved.see(those)


class MissingWeights(dict[str, Any]):
    """The weights at an address that is not reached, and any part of them, for ``load_state_dict``."""

    #: Whether there was one.
    met = False

    def __missing__(self, _key: str) -> MissingWeights:
        return MissingWeights()

    def __delitem__(self, _key: str) -> None:
        pass

    def pop(self, _key: str, default: Any = None) -> Any:
        """As much as a part of it."""
        return MissingWeights() if default is None else default


def install() -> None:
    """Patch ``torch.save``, ``torch.load`` and what downloads weights, once per process."""
    torch.hub.load_state_dict_from_url = _downloading(torch.hub.load_state_dict_from_url)
    torch.hub.list = _listing(torch.hub.list)
    module: Any = torch.nn.Module
    module.load_state_dict = _without_missing(module.load_state_dict)
    # Under a fake mode torch leaves values out.
    torch.save = _saving(without_modes(torch.save))
    torch.load = _loading(without_modes(torch.load))
    os.stat = _stat(gone_files.looking(os.stat))
    os.replace = _moving(gone_files.removing(os.replace))
    os.rename = _moving(gone_files.removing(os.rename))
    os.remove = os.unlink = _removing(gone_files.removing(os.remove))
    os.rmdir = gone_files.removing(os.rmdir)
    os.chmod, os.utime = _unless_held(os.chmod), _unless_held(os.utime)
    builtins.open = io.open = _opening(builtins.open)
    shutil.copyfile = _copying(shutil.copyfile)
    shutil.copymode = _unless_held(shutil.copymode)
    shutil.copystat = _unless_held(shutil.copystat)
    safe_tensors.install(
        lambda file, content: _saved.__setitem__(os.path.realpath(file), content),
        lambda file: _found(os.path.realpath(file)),
    )
    checkpoints.install(_saved.__setitem__)


def _downloading(original: Callable[..., Any]) -> Callable[..., Any]:
    """What was downloaded before is loaded."""

    @functools.wraps(original)
    def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(url, *args, **kwargs)
        except OSError as error:
            if not isinstance(getattr(error, "reason", error), NetworkCallError):
                raise
            if on_missing is not None:
                on_missing(f"{url} is not at hand: the model keeps its initial weights")
            MissingWeights.met = True
            return MissingWeights()

    return load_state_dict_from_url


def _listing(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """What a hub's repository offers, where it was fetched before."""

    @functools.wraps(original)
    def list_models(github: str, *args: Any, **kwargs: Any) -> list[str]:
        try:
            return original(github, *args, **kwargs)
        except OSError as error:
            if not isinstance(getattr(error, "reason", error), NetworkCallError):
                raise
            if on_missing is not None:
                on_missing(f"{github} is not at hand: it is taken to offer no models")
            return []

    return list_models


def _without_missing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if not state_dict and MissingWeights.met:  # what programs make of its items is as empty
            return _IncompatibleKeys([], [])
        return original(self, state_dict, *args, **kwargs)

    return load_state_dict


def _saving(original: Callable[..., None]) -> Callable[..., None]:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        path, late = _path(f), isinstance(f, late_files.LateFile)
        if path is None and not late:
            original(obj, f, *args, **kwargs)
            if isinstance(f, io.BytesIO):
                _in_memory.add(_mark(f.getvalue()))
            return
        written = io.BytesIO()
        original(obj, written, *args, **kwargs)
        if path is not None:
            _saved[path] = written.getvalue()
        elif not f.hold(written.getvalue()):
            f.write(written.getvalue())

    return save


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Memory is the host's; where tensors are to go is asked afterwards."""
        path = _path(f)
        content = None if path is None else _found(path)
        source = f if content is None else io.BytesIO(content)
        loaded = original(source, lambda storage, _location: storage, *args, **kwargs)
        where = map_location if isinstance(map_location, str | torch.device) else None
        return loaded if where is None else _moved(loaded, torch.device(where))

    return load


def _found(path: str) -> bytes | None:
    """What was saved as a file, or what rank 0 saves as one that is not there."""
    if path in _saved:
        return _saved[path]
    return None if shelf is None or Path(path).exists() else shelf.saved(path)


def _held(file: Any) -> str | None:
    """Under which path what was saved as ``file`` is held; None: it is none of that."""
    path = _path(file) if _saved else None
    return path if path in _saved else None


def _stat(original: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    """What was saved is there: programs look before they load, and for its size."""

    @functools.wraps(original)
    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        held = _held(path)
        if held is None:
            return original(path, *args, **kwargs)
        now = int(time.time())
        return os.stat_result((0o100644, 0, 0, 1, os.getuid(), os.getgid(), len(_saved[held]), now, now, now))

    return stat


def _moving(original: Callable[..., None]) -> Callable[..., None]:
    """Saved beside, then put in its place, alone or with its folder."""

    @functools.wraps(original)
    def move(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        held, source, target = _held(src), _path(src), _path(dst)
        if held is not None and target is not None:
            _saved[target] = _saved.pop(held)
            return
        original(src, dst, *args, **kwargs)
        for path in [one for one in _saved if one.startswith(f"{source}{os.sep}")]:
            _saved[f"{target}{path.removeprefix(str(source))}"] = _saved.pop(path)

    return move


def _removing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def remove(path: Any, *args: Any, **kwargs: Any) -> None:
        held = _held(path)
        if held is None:
            original(path, *args, **kwargs)
        else:
            del _saved[held]

    return remove


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        held = _held(file) if mode == "rb" else None
        if held is not None:
            return io.BytesIO(_saved[held])
        path = _path(file) if mode in late_files.WRITING else None
        if path is None or not late_files.is_late(path):
            return original(file, mode, *args, **kwargs)
        return late_files.LateFile(
            lambda: original(file, mode, *args, **kwargs),
            lambda written: _saved.__setitem__(path, written),
            lambda data: _mark(data) in _in_memory,
        )

    return open_file


def _copying(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        held, target = _held(src), _path(dst)
        if held is None or target is None:
            return original(src, dst, *args, **kwargs)
        _saved[target] = _saved[held]
        return dst

    return copy


def _unless_held(original: Callable[..., None]) -> Callable[..., None]:
    """Rights and times of what is held are those of any file."""

    @functools.wraps(original)
    def change(path: Any, *args: Any, **kwargs: Any) -> None:
        if _held(path) is None:
            original(path, *args, **kwargs)

    return change


def _mark(data: Any) -> tuple[int, int]:
    whole = bytes(data)
    return len(whole), hash(whole)


def _path(file: Any) -> str | None:
    return os.path.realpath(file) if isinstance(file, str | os.PathLike) else None


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        for key, one in value.items():
            value[key] = _moved(one, device)
    elif isinstance(value, list):
        value[:] = [_moved(one, device) for one in value]
    return value
