"""Messages between stages as ops of a template; ``messages.py`` plans them."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.graph import OpHandle, TemplateBuilder
from simcore.graph.template_builder import Source, external
from workloads.parallel.emit import OpWriter
from workloads.parallel.job import Job
from workloads.parallel.messages import ActionMessages, Direction, StageMessage, p2p_stream


class MessageWriter:
    """Writes what stages of a job send and receive."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def post(
        self, template: TemplateBuilder, messages: tuple[StageMessage, ...], waits: Sequence[Source]
    ) -> list[OpHandle]:
        """Receives behind what the compute stream has done."""
        return [
            template.recv(
                self._group(direction), -direction.delta, self._sent(num_bytes), waits=waits,
                stream=self.stream("recv", direction), phase=_phase(direction),
            )
            for direction, num_bytes in messages
        ]  # fmt: skip

    def take(self, writer: OpWriter, message: StageMessage, received: Source) -> None:
        """What follows waits for the message; each tensor-parallel rank may have got a slice of it."""
        writer.wait_for(received)
        if self._scattered:
            phase = _phase(message.direction)
            writer.collective("all_gather", "tp", message.num_bytes, stream="compute", phase=phase)

    def await_own(
        self,
        writer: OpWriter,
        exchange: ActionMessages,
        posted: Sequence[tuple[StageMessage, OpHandle]] = (),
        late: Sequence[StageMessage] = (),
    ) -> None:
        """What an action needs from another stage: the last of ``posted`` of its kind, or one further back.

        Of those that were posted since, ``late`` are not when the template begins.
        """
        if exchange.own is None:
            return
        message, since = exchange.own
        stream = self.stream("recv", message.direction)
        here = [got for one, got in posted if self.stream("recv", one.direction) == stream]
        behind = sum(self.stream("recv", one.direction) == stream for one in late)
        self.take(writer, message, here[-1] if here else external(stream, since - behind))

    def send(self, writer: OpWriter, exchange: ActionMessages) -> tuple[OpHandle, ...]:
        """What an action sends once it is done; what it was done with."""
        done = (writer.last,) if writer.last is not None else ()
        for direction, num_bytes in exchange.sends:
            writer.template.send(
                self._group(direction), direction.delta, self._sent(num_bytes), waits=(*done, *writer.beside),
                stream=self.stream("send", direction), phase=_phase(direction),
            )  # fmt: skip
        return done

    def exchange(
        self, template: TemplateBuilder, sends: Sequence[StageMessage], posts: Sequence[StageMessage],
        done: Sequence[Source],
    ) -> None:  # fmt: skip
        """Sends and receives behind ``done`` that the host waits for; see Note [Exchanges in turn]."""
        moves = [(template.send, direction, direction.delta, size) for direction, size in sends]
        moves += [(template.recv, direction, -direction.delta, size) for direction, size in posts]
        turns = len({direction.gradients for _, direction, _, _ in moves}) > 1
        for number, batch in enumerate([moves] if turns else [[move] for move in moves]):
            for what, direction, delta, size in batch:
                what("pp", delta, size, stream="pp", waits=done, batch=number, phase=_phase(direction))
            template.sync()

    def early(self, posts: tuple[StageMessage, ...], exchange: ActionMessages) -> tuple[StageMessage, ...]:
        """Of the receives posted behind the one action those up to what the other, beside it, needs."""
        if exchange.own is None:
            return ()
        stream = self.stream("recv", exchange.own[0].direction)
        same = [number for number, one in enumerate(posts) if self.stream("recv", one.direction) == stream]
        count = len(same) - exchange.own[1]
        return posts[: same[count - 1] + 1] if count > 0 else ()

    def _group(self, direction: Direction) -> str:
        apart = self._job.mesh.two_way and not self._job.p2p_per_peer
        return "pp_bwd" if direction.gradients and apart else "pp"

    def stream(self, what: str, direction: Direction) -> str:
        """The stream on which "send" or "recv" of a direction runs."""
        return p2p_stream(what, direction, self._job.parallel.pp, per_peer=self._job.p2p_per_peer)

    @property
    def _scattered(self) -> bool:
        job = self._job
        return job.training.scatter_gather_p2p and job.parallel.tp > 1 and not job.shard.sequence_parallel

    def _sent(self, num_bytes: int) -> int:
        """What one rank sends of a message."""
        return num_bytes // (self._job.parallel.tp if self._scattered else 1)


def _phase(direction: Direction) -> str:
    return "bwd" if direction.gradients else "fwd"
