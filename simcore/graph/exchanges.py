"""How a graph says that experts' tokens are exchanged by kernels of their own, not by NCCL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError

_NAME: Final = re.compile(r"all_to_all:sms=(\d+),gpus=(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class TokenExchange:
    """``sms`` that the kernel holds; ``gpus`` of a node that a token which reaches it goes to, on average.

    As the name of a collective: ``all_to_all:sms=20,gpus=1.875``.  Its size is what a rank has for all nodes,
    its own included: tokens x nodes that a token goes to x bytes of a token.
    """

    sms: int
    gpus: float

    def __str__(self) -> str:
        return f"all_to_all:sms={self.sms},gpus={self.gpus:.4g}"

    @classmethod
    def parse(cls, collective: str) -> TokenExchange | None:
        """From a collective's name; None for NCCL's.  InputError for one that is misspelt."""
        if not collective.startswith("all_to_all:"):
            return None
        found = _NAME.fullmatch(collective)
        if found is None or not int(found[1]) or not float(found[2]):
            raise InputError(
                f"collective {collective!r}: an exchange of tokens is called all_to_all:sms=COUNT,gpus=NUMBER"
            )
        return cls(int(found[1]), float(found[2]))
