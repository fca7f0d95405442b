"""The fine-grained reference: segments, port queues, flow control, chunks that follow each other."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simcore.network.packet.roce import Marker, RateControl, RoceSettings
from simcore.network.packet.settings import ROUTINGS, TRANSPORTS, PacketSettings

if TYPE_CHECKING:
    from simcore.network.packet.connection import Connection
    from simcore.network.packet.lanes import Lane, MessageProgram, Send
    from simcore.network.packet.network import PacketNetwork
    from simcore.network.packet.port import Pause, Port
    from simcore.network.packet.program import program_of

__all__ = [
    "ROUTINGS",
    "TRANSPORTS",
    "Connection",
    "Lane",
    "Marker",
    "PacketNetwork",
    "PacketSettings",
    "Pause",
    "Port",
    "MessageProgram",
    "RateControl",
    "RoceSettings",
    "Send",
    "program_of",
]

_LATER = {
    "Connection": "connection",
    "Lane": "lanes",
    "PacketNetwork": "network",
    "Pause": "port",
    "Port": "port",
    "MessageProgram": "lanes",
    "Send": "lanes",
    "program_of": "program",
}


def __getattr__(name: str) -> Any:
    """Import the network itself when it is used: most runs only have its settings."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
