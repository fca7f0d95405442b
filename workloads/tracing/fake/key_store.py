"""A key-value store of ranks that run one after the other: ``torch.distributed.TCPStore`` and its like.

What a rank sets, it reads; what it lacks comes by mail from the rank that sets it (Note [Mail between runs]).
Numbers that all ranks add to are this rank's alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from workloads.tracing.fake import object_exchange


class KeyStore(Store):
    """One rank's view of the store."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        super().__init__()
        self._held: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """``value`` is at ``key`` from now on, for ranks that ask later, too."""
        self._held[key] = value.encode() if isinstance(value, str) else bytes(value)
        if object_exchange.mailbox is not None:
            object_exchange.mailbox.post(key, self._held[key])

    def get(self, key: str) -> bytes:
        """The value at ``key``, once some rank has set it."""
        if key not in self._held and object_exchange.mailbox is not None:
            self._held[key] = object_exchange.mailbox.posted(key)
        return self._held[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values at ``keys``."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Each of ``values`` at its key."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: str | bytes) -> None:
        """``value`` behind what this rank has at ``key``."""
        more = value.encode() if isinstance(value, str) else bytes(value)
        self.set(key, self._held.get(key, b"") + more)

    def has_extended_api(self) -> bool:
        """Whether several keys can be asked for at once."""
        return True

    def add(self, key: str, amount: int) -> int:
        """``amount`` more at ``key``; the sum."""
        total = int(self._held.get(key, b"0")) + amount
        self._held[key] = str(total).encode()
        return total

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there: what other ranks set has been set."""
        return all(key in self._held or object_exchange.mailbox is not None for key in keys)

    def wait(self, keys: Sequence[str], _timeout: object = None) -> None:
        """Other ranks are there already."""

    def delete_key(self, key: str) -> bool:
        """Forget ``key``; whether it was there."""
        return self._held.pop(key, None) is not None

    def num_keys(self) -> int:
        """Keys that this rank knows."""
        return len(self._held)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set ``desired`` where ``expected`` (or nothing, for "") was; what is there afterwards."""
        held = self._held.get(key)
        if (held is None and not expected) or held == expected.encode():
            self.set(key, desired)
        return self._held.get(key, expected.encode())

    def set_timeout(self, _timeout: datetime.timedelta) -> None:
        """Nothing is waited for by the clock."""
