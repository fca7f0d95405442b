"""Numbers of GPUs, tokens and days as users write them."""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import InputError

_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]?)")
_TOKENS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_TIMES: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def numbers_of_gpus(text: str) -> list[int]:
    """``"256,512"``: ascending.  InputError for what are no numbers of GPUs."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,7}", word) and int(word) for word in words):
        raise InputError(f"--gpus {text!r}: numbers of GPUs with commas between, such as 256,512")
    return sorted({int(word) for word in words})


def tokens_of(text: str) -> float:
    """``"15T"`` tokens.  InputError for what is no number of them."""
    return _scaled(text, _TOKENS, "--tokens", "15T or 300B")


def seconds_of(text: str) -> float:
    """``"60d"``, ``"12h"``, ``"30m"``.  InputError for what is no time."""
    return _scaled(text, _TIMES, "--deadline", "60d or 12h")


def _scaled(text: str, units: dict[str, float], option: str, such_as: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    unit = match[2] if match else ""
    known = unit.upper() if option == "--tokens" else unit.lower()
    if match is None or known not in units or not float(match[1]):
        raise InputError(f"{option} {text!r}: expected a number such as {such_as}")
    return float(match[1]) * units[known]
