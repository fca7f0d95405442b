"""Safetensors: a library that writes and maps files below Python, by addresses that weights do not have.

What it saves is held as :func:`torch.save` holds it, values of weights left out; files of real runs it reads.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

#: First bytes of a file that is held.
_MARK = b"held safetensors"


def install(hold: Callable[[str, bytes], None], held: Callable[[str], bytes | None]) -> None:
    """Patch the library where it is installed; ``hold`` keeps a file, ``held`` finds one that was kept."""
    if importlib.util.find_spec("safetensors") is None:
        return
    package, of_torch = (importlib.import_module(name) for name in ("safetensors", "safetensors.torch"))
    find, read = package.safe_open, of_torch.load

    def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
        of_torch._evaluate_tensors_for_save(tensors)
        for name, tensor in tensors.items():
            if not tensor.is_contiguous():
                raise ValueError(f"You are trying to save a non contiguous tensor: `{name}`")
        written = io.BytesIO(_MARK)
        written.seek(len(_MARK))
        torch.save(({name: tensor.detach().cpu() for name, tensor in tensors.items()}, metadata), written)
        return written.getvalue()

    def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        hold(filename, save(tensors, metadata))

    def load(data: bytes) -> dict[str, torch.Tensor]:
        return _read(data)[0] if data.startswith(_MARK) else read(data)

    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **options: Any) -> Any:
        content = held(filename)
        if content is None:
            return find(filename, framework, device, **options)
        tensors, metadata = _read(content)
        return _Held({name: tensor.to(device) for name, tensor in tensors.items()}, metadata)

    for module in (package, of_torch):
        vars(module).update(safe_open=safe_open)
    vars(of_torch).update(save=save, save_file=save_file, load=load)


def _read(content: bytes) -> tuple[dict[str, torch.Tensor], dict[str, str] | None]:
    read: Any = torch.load(io.BytesIO(content.removeprefix(_MARK)))
    return read[0], read[1]


class _Held:
    """What the library's ``safe_open`` gives."""

    def __init__(self, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None) -> None:
        self._tensors, self._metadata = tensors, metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def keys(self) -> list[str]:
        return sorted(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._tensors)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name])


class _Slice:
    """A tensor of which a part is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The library's name of the type: F32, BF16, I64, BOOL."""
        kind, name = self._tensor.dtype, str(self._tensor.dtype).removeprefix("torch.").upper()
        return (
            name
            if kind is torch.bool or "FLOAT8" in name
            else name.replace("FLOAT", "F").replace("UINT", "U").replace("INT", "I")
        )

    def __getitem__(self, where: Any) -> torch.Tensor:
        return self._tensor[where]
