"""``--set KEY=VALUE``: which keys there are, and what each one reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from simcore.errors import InputError, nearest
from simcore.hardware import OVERRIDE_KEYS, is_hardware_key
from simcore.hardware.quantities import Number

KERNELS: Final = ("unfused", "megatron", "flash")
FP32_MATH: Final = ("ieee", "tf32")

_CHOICES: Final = {"workload.kernels": KERNELS, "workload.fp32_math": FP32_MATH}
_NCCL_TEXTS: Final = ("algorithm", "protocol")
_NCCL_NUMBERS: Final = {
    "min_channels": Number("count", integer=True),
    "max_channels": Number("count", integer=True),
    "buffer_bytes": Number("size", integer=True),
}
KEYS: Final = (*_CHOICES, *(f"nccl.{name}" for name in (*_NCCL_TEXTS, *_NCCL_NUMBERS)), *OVERRIDE_KEYS)


@dataclass(frozen=True)
class Settings:
    """Settings by what they reach; ``given`` is what the user wrote, for the record.

    ``hardware`` are overrides for :func:`simcore.hardware.load_cluster`; ``nccl_texts`` and ``nccl_numbers``
    arguments of the planner.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    kernels: str = "megatron"
    fp32_math: str = "ieee"
    nccl_texts: Mapping[str, str] = field(default_factory=dict)
    nccl_numbers: Mapping[str, int] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)


def split_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` strings as a mapping; a later one wins.  InputError for one without a key or value."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"--set {pair!r}: expected KEY=VALUE, such as workload.kernels=flash")
        settings[key.strip()] = value.strip()
    return settings


def parse_settings(given: Mapping[str, str]) -> Settings:
    """Sort settings by what they reach.

    Errors: InputError for an unknown key (with the nearest one) or a value that the key cannot have.
    Hardware values are checked where hardware is loaded.
    """
    choices = {key: allowed[0] for key, allowed in _CHOICES.items()} | {"workload.kernels": "megatron"}
    nccl_texts: dict[str, str] = {}
    nccl_numbers: dict[str, int] = {}
    hardware: dict[str, str] = {}
    for key, value in given.items():
        name = key.removeprefix("nccl.")
        if key in _CHOICES:
            if value not in _CHOICES[key]:
                raise InputError(f"{key} cannot be {value!r}{nearest(value, _CHOICES[key])}")
            choices[key] = value
        elif key in OVERRIDE_KEYS or (is_hardware_key(key) and key.startswith("link.")):
            hardware[key] = value
        elif name != key and name in _NCCL_TEXTS:
            nccl_texts[name] = value
        elif name != key and name in _NCCL_NUMBERS:
            nccl_numbers[name] = int(_NCCL_NUMBERS[name].from_text(value, key))
        else:
            raise InputError(f"unknown setting {key!r}{nearest(key, KEYS)}")
    return Settings(
        given=dict(given),
        kernels=choices["workload.kernels"],
        fp32_math=choices["workload.fp32_math"],
        nccl_texts=nccl_texts,
        nccl_numbers=nccl_numbers,
        hardware=hardware,
    )
