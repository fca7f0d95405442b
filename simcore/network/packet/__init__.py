"""The fine-grained reference: segments, port queues, credits, chunks that follow each other."""

from simcore.network.packet.network import PacketNetwork
from simcore.network.packet.port import Connection, Port
from simcore.network.packet.program import Lane, Program, Send, program_of
from simcore.network.packet.settings import PacketSettings

__all__ = ["Connection", "Lane", "PacketNetwork", "PacketSettings", "Port", "Program", "Send", "program_of"]
