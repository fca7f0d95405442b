"""Numbers of GPUs, tokens, samples and days as users write them."""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import InputError
from simcore.records import dataclass

_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]?)")
_COUNTS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_WRITTEN: Final = tuple((_COUNTS[unit], unit) for unit in "TBMK")
_TIMES: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def numbers_of_gpus(text: str) -> list[int]:
    """``"256,512"``: ascending.  InputError for what are no numbers of GPUs."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,7}", word) and int(word) for word in words):
        raise InputError(f"--gpus {text!r}: numbers of GPUs with commas between, such as 256,512")
    return sorted({int(word) for word in words})


@dataclass(frozen=True)
class Amount:
    """``number`` "tokens" or "samples" (``counted``)."""

    number: float
    counted: str

    def of(self, counted: str, seq: int) -> float:
        """The same in what a job's throughput counts; ``seq``: tokens of one of its samples.

        InputError for tokens of samples that are one thing each, and samples of unknown length.
        """
        if self.counted == counted:
            return self.number
        if self.counted == "tokens":
            raise InputError("--tokens: a sample of this model is one thing, no sequence; nearest: --samples")
        if seq <= 0:
            raise InputError("--samples: this workload says no length of a sample; nearest: --tokens")
        return self.number * seq


def amount_of(tokens: str | None, samples: str | None) -> Amount | None:
    """What ``--tokens`` or ``--samples`` says, ``"15T"`` or ``"300M"``; None for neither.

    InputError for what is no number, and for both.
    """
    if tokens is not None and samples is not None:
        raise InputError("--tokens and --samples both say how much is trained: leave one out")
    said, counted = (tokens, "tokens") if samples is None else (samples, "samples")
    if said is None:
        return None
    return Amount(_scaled(said, _COUNTS, f"--{counted}", "15T or 300B"), counted)


def amount_text(number: float) -> str:
    """A number of tokens or samples as users write it: 15T."""
    scale, unit = next(((one, name) for one, name in _WRITTEN if number >= one), (1.0, ""))
    return f"{number / scale:.4g}{unit}"


def seconds_of(text: str) -> float:
    """``"60d"``, ``"12h"``, ``"30m"``.  InputError for what is no time."""
    return _scaled(text, _TIMES, "--deadline", "60d or 12h")


def _scaled(text: str, units: dict[str, float], option: str, such_as: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    unit = match[2] if match else ""
    known = unit.lower() if units is _TIMES else unit.upper()
    if match is None or known not in units or not float(match[1]):
        raise InputError(f"{option} {text!r}: expected a number such as {such_as}")
    return float(match[1]) * units[known]
