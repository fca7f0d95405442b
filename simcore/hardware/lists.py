"""Lists of whole numbers that describe wiring, from files and overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from simcore.errors import InputError


def checked_list(key: str, value: object, where: str) -> Sequence[Any]:
    """A wiring list as a file or override has it.  InputError if it is no list of what ``key`` lists."""
    shape = {"nvlinks": "[GPU, GPU, links]", "nic_of_gpu": "NICs, or lists of NICs"}.get(key, "whole numbers")
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: expected a list of {shape}, got {value!r}")
    for item in value:
        inner = item if isinstance(item, list) else [item]
        if (
            not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in inner)
            or (isinstance(item, list) != (key == "nvlinks") and key != "nic_of_gpu")
            or (key == "nvlinks" and len(inner) != 3)
        ):
            raise InputError(f"{where}: expected a list of {shape}, but it has {item!r}")
    return value


def list_from_text(key: str, text: str, where: str) -> Sequence[Any]:
    """A list of an override: ``0,0,1,1`` or ``[[0, 1, 2]]``.  InputError as :func:`checked_list`."""
    bare = text if text.lstrip().startswith("[") else f"[{text}]"
    try:
        value = tomllib.loads(f"value = {bare}")["value"]
    except tomllib.TOMLDecodeError:
        raise InputError(f"{where}: expected a list such as 0,0,1,1, got {text!r}") from None
    return checked_list(key, value, where)
