"""send_recv: one message between two ranks.  No collective of a group, but planned and timed as one."""

from __future__ import annotations

from typing import Final

from simcore.collectives.kinds.collective import Collective


def _user_bytes(num_ranks: int) -> float:
    """Read once where it starts, written once where it ends."""
    del num_ranks
    return 2.0


SEND_RECV: Final = Collective("send_recv", user_bytes=_user_bytes, grouped=True, pair=True)
