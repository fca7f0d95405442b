"""The fine-grained reference: segments, port queues, flow control, chunks that follow each other."""

from simcore.network.packet.connection import Connection
from simcore.network.packet.lanes import Lane, Program, Send
from simcore.network.packet.network import PacketNetwork
from simcore.network.packet.port import Pause, Port
from simcore.network.packet.program import program_of
from simcore.network.packet.roce import Marker, RateControl, RoceSettings
from simcore.network.packet.settings import ROUTINGS, TRANSPORTS, PacketSettings

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
    "Program",
    "RateControl",
    "RoceSettings",
    "Send",
    "program_of",
]
