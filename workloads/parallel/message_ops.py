"""Messages between stages as ops of a template; ``messages.py`` plans them."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.graph import OpHandle, TemplateBuilder
from simcore.graph.template_builder import Source, external
from workloads.parallel.emit import Writer
from workloads.parallel.job import Job
from workloads.parallel.messages import Exchange, Flow, Message, p2p_stream


class MessageWriter:
    """Writes what stages of a job send and receive."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def post(
        self, template: TemplateBuilder, messages: tuple[Message, ...], waits: Sequence[Source]
    ) -> list[OpHandle]:
        """Receives behind what the compute stream has done."""
        return [
            template.recv(
                self._group(flow), -flow.delta, self._sent(num_bytes), stream=self.stream("recv", flow),
                waits=waits, phase=_phase(flow),
            )
            for flow, num_bytes in messages
        ]  # fmt: skip

    def take(self, writer: Writer, message: Message, received: Source) -> None:
        """What follows waits for the message; each tensor-parallel rank may have got a slice of it."""
        writer.wait_for(received)
        if self._scattered:
            phase = _phase(message.flow)
            writer.collective("all_gather", "tp", message.num_bytes, stream="compute", phase=phase)

    def await_own(
        self,
        writer: Writer,
        exchange: Exchange,
        posted: Sequence[tuple[Message, OpHandle]] = (),
        late: Sequence[Message] = (),
    ) -> None:
        """What an action needs from another stage: the last of ``posted`` of its kind, or one further back.

        Of those that were posted since, ``late`` are not when the template begins.
        """
        if exchange.own is None:
            return
        message, since = exchange.own
        stream = self.stream("recv", message.flow)
        here = [got for one, got in posted if self.stream("recv", one.flow) == stream]
        behind = sum(self.stream("recv", one.flow) == stream for one in late)
        self.take(writer, message, here[-1] if here else external(stream, since - behind))

    def send(self, writer: Writer, exchange: Exchange) -> tuple[OpHandle, ...]:
        """What an action sends once it is done; what it was done with."""
        done = (writer.last,) if writer.last is not None else ()
        for flow, num_bytes in exchange.sends:
            writer.template.send(
                self._group(flow), flow.delta, self._sent(num_bytes), stream=self.stream("send", flow),
                waits=(*done, *writer.beside), phase=_phase(flow),
            )  # fmt: skip
        return done

    def exchange(
        self, template: TemplateBuilder, sends: Sequence[Message], posts: Sequence[Message],
        done: Sequence[Source],
    ) -> None:  # fmt: skip
        """Sends and receives behind ``done`` that the host waits for; see Note [Exchanges in turn]."""
        moves = [(template.send, flow, flow.delta, size) for flow, size in sends]
        moves += [(template.recv, flow, -flow.delta, size) for flow, size in posts]
        turns = len({flow.gradients for _, flow, _, _ in moves}) > 1
        for number, batch in enumerate([moves] if turns else [[move] for move in moves]):
            for what, flow, delta, size in batch:
                what("pp", delta, size, stream="pp", waits=done, batch=number, phase=_phase(flow))
            template.sync()

    def early(self, posts: tuple[Message, ...], exchange: Exchange) -> tuple[Message, ...]:
        """Of the receives posted behind the one action those up to what the other, beside it, needs."""
        if exchange.own is None:
            return ()
        stream = self.stream("recv", exchange.own[0].flow)
        same = [number for number, one in enumerate(posts) if self.stream("recv", one.flow) == stream]
        count = len(same) - exchange.own[1]
        return posts[: same[count - 1] + 1] if count > 0 else ()

    def _group(self, flow: Flow) -> str:
        apart = self._job.mesh.two_way and not self._job.p2p_per_peer
        return "pp_bwd" if flow.gradients and apart else "pp"

    def stream(self, what: str, flow: Flow) -> str:
        """The stream on which "send" or "recv" of a flow runs."""
        return p2p_stream(what, flow, self._job.parallel.pp, per_peer=self._job.p2p_per_peer)

    @property
    def _scattered(self) -> bool:
        job = self._job
        return job.training.scatter_gather_p2p and job.parallel.tp > 1 and not job.shard.sequence_parallel

    def _sent(self, num_bytes: int) -> int:
        """What one rank sends of a message."""
        return num_bytes // (self._job.parallel.tp if self._scattered else 1)


def _phase(flow: Flow) -> str:
    return "bwd" if flow.gradients else "fwd"
