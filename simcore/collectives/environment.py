"""NCCL's environment variables that a fabric's plugin or owner sets for every job (a cluster's profile).

What AWS's plugin writes into the environment of each process, and what Google's documentation tells users of
its virtual machines to set, decides algorithms and chunks as much as the wires do.
"""

from __future__ import annotations

import re
from typing import Final

from simcore.collectives.forced import forced_algorithms, forced_protocols
from simcore.errors import InputError, nearest
from simcore.records import dataclass

_NUMBERS: Final = {
    "NCCL_MIN_NCHANNELS": "min_channels",
    "NCCL_MAX_NCHANNELS": "max_channels",
    "NCCL_BUFFSIZE": "buffer_bytes",
}
_KNOWN: Final = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", *_NUMBERS)


@dataclass(frozen=True)
class Environment:
    """NCCL's variables by what they mean; None where NCCL decides.  Bytes, channels, lists as NCCL's."""

    algorithm: str | None = None
    protocol: str | None = None
    nvls: bool = True
    min_channels: int | None = None
    max_channels: int | None = None
    buffer_bytes: int | None = None


def parse_environment(text: str) -> Environment:
    """The environment in ``text``: ``NAME=VALUE`` between blanks, "" for none.

    Errors: InputError for a variable that is not modelled (with the nearest that is), or a value that the
    variable does not take.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    nvls = True
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in _KNOWN or not equals:
            raise InputError(f"nccl_environment: unknown variable {word!r}{nearest(name, _KNOWN)}")
        if name in _NUMBERS:
            if not re.fullmatch(r"[1-9]\d{0,11}", value):
                raise InputError(f"nccl_environment: {name} takes a whole number above 0, not {value!r}")
            numbers[_NUMBERS[name]] = int(value)
        elif name == "NCCL_NVLS_ENABLE":
            if value not in ("0", "1", "2"):
                raise InputError(f"nccl_environment: {name} takes 0, 1 or 2, not {value!r}")
            nvls = value != "0"
        elif name == "NCCL_ALGO":
            forced_algorithms(value)
            texts["algorithm"] = value
        else:
            forced_protocols(value)
            texts["protocol"] = value
    return Environment(algorithm=texts.get("algorithm"), protocol=texts.get("protocol"), nvls=nvls, **numbers)
