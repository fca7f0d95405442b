"""From a description to an execution graph: what tracing the same program would give, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from simcore.graph import Graph, GraphBuilder, TemplateBuilder
from simcore.graph.schedules import (
    Action,
    Placement,
    Schedule,
    home,
    num_virtual,
    overlapped_pairs,
)
from simcore.graph.template_builder import external
from workloads.models.model import AnyModel
from workloads.models.software import SoftwareSpec
from workloads.parallel import megatron_step
from workloads.parallel.actions import ends_of, is_paired, under_way, write_pass
from workloads.parallel.check import check_job, check_trains
from workloads.parallel.emit import COMPUTE, OpWriter
from workloads.parallel.finish import finish_step
from workloads.parallel.job import Job
from workloads.parallel.members import members_of
from workloads.parallel.memory import memory_profile
from workloads.parallel.message_ops import MessageWriter
from workloads.parallel.messages import ActionMessages, StageMessage, plan_messages
from workloads.parallel.passes import (
    backward_part,
    backward_pass,
    exchanges_tokens,
    forward_pass,
    take_turns,
)
from workloads.parallel.spec import ParallelSpec, TrainingSpec
from workloads.parallel.stages import Chunk
from workloads.parallel.strategy import StrategySpec


def generate(
    model: AnyModel,
    parallel: ParallelSpec,
    training: TrainingSpec,
    software: SoftwareSpec | None = None,
    *,
    as_launched: bool = False,
) -> Graph:
    """One training step of ``model`` as every rank runs it.

    ``as_launched``: with the scalars, copies and host waits of a Megatron-Core step, as tracing shows them.

    Errors: InputError for degrees that divide neither layers, heads, experts nor batch, naming the rule and
    the nearest valid value.
    """
    check_job(model, parallel, training)
    job = Job(model, parallel, training, software or SoftwareSpec(), as_launched)
    check_trains(training, job.pieces)
    return _Generator(job).graph()


def schedule_of(
    parallel: ParallelSpec, num_microbatches: int, *, forward_only: bool = False
) -> tuple[Schedule, Placement]:
    """Actions of every stage in order, and where chunks lie.  InputError as the schedules say."""
    p = parallel
    schedule = p.pipeline.actions(p.pp, num_microbatches, p.virtual_stages, p.microbatch_group)
    if forward_only:
        schedule = [[action for action in actions if action.kind == "F"] for actions in schedule]
    return schedule, parallel.placement


def workload_of(job: Job) -> dict[str, Any]:
    """Fields of :class:`simcore.graph.Workload` beside the number of ranks: what the graph is a graph of."""
    p, t = job.parallel, job.training
    samples = t.global_batch
    return {
        "name": job.model.name,
        "dims": {"tp": p.tp, "cp": p.cp, "dp": p.dp, "pp": p.pp, **p.further_degrees},
        "num_microbatches": job.num_microbatches,
        "micro_batch_size": t.micro_batch,
        "seq_len": t.seq,
        "tokens_per_step": samples * t.seq,
        "precision": t.precision,
        "framework": f"generated ({job.software.name})",
        "model": {
            **job.model.model_dump(exclude_none=True),
            "model_flops_per_step": job.pieces.model_flops_per_sample * samples,
            "model_flops_full_per_step": job.pieces.model_flops_full_per_sample * samples,
        },
        "options": {
            "kernels": "flash",
            "generated": True,
            "recompute": t.recompute,
            "parallel": p.model_dump(exclude={"strategy"} if p.strategy == StrategySpec() else None),
            "training": t.model_dump(),
        },
    }


class _Variant(NamedTuple):
    """What makes two actions' templates differ."""

    kind: str
    pieces: tuple[int, ...]  # identities
    layers: tuple[int, ...]
    first: bool
    last: bool
    before: tuple[StageMessage, ...]  # receives posted ahead of everything
    exchange: ActionMessages
    paired: bool  # another microbatch's opposite pass runs at the same time, where experts' exchanges overlap


class _Pair(NamedTuple):
    """What makes templates of two overlapped actions differ; ``shift``: of the layers' numbers of each."""

    forward: _Variant
    backward: _Variant
    shift: tuple[int, int]


class _Generator:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._build = GraphBuilder(job.parallel.world_size, **workload_of(job))
        job.mesh.declare(self._build)
        self._members = members_of(job)
        self._messages = MessageWriter(job)
        self._templates: dict[_Variant | _Pair, TemplateBuilder] = {}

    def graph(self) -> Graph:
        job = self._job
        forward_only = job.training.trainable == "none"
        schedule, placement = schedule_of(job.parallel, job.num_microbatches, forward_only=forward_only)
        before, exchanges = plan_messages(
            schedule,
            self._boundary_bytes(placement),
            placement,
            overlap=job.training.overlap_p2p,
            per_peer=job.p2p_per_peer,
            in_turn=job.as_launched,
        )
        for number, (ranks, member) in enumerate(self._members):
            self._job = member
            for stage, actions in enumerate(schedule):
                own = job.mesh.stage_ranks(stage) if len(self._members) == 1 else ranks
                self._stage(
                    stage, actions, before[stage], exchanges[stage], own, f".{number}" if number else ""
                )
        return self._build.build()

    def _stage(
        self,
        stage: int,
        actions: list[Action],
        before: tuple[StageMessage, ...],
        exchanges: list[ActionMessages],
        ranks: list[int],
        suffix: str,
    ) -> None:
        job = self._job
        chunks = job.chunks[stage]
        skeleton: list[tuple[TemplateBuilder, int, int]] = []
        if job.as_launched:
            begin = self._build.template("begin")
            megatron_step.begin_step(OpWriter(begin, job.software), job, chunks)
            if job.batches_p2p:
                self._messages.exchange(begin, (), before, ())
            skeleton.append((begin, -1, 0))
        firsts, lasts = ends_of(actions)
        together = self._together(stage, actions, firsts | lasts)
        behind = set(together.values())
        pieces = [tuple(id(piece) for piece in chunk.pieces) for chunk in chunks]
        known: dict[tuple[Any, ...], _Variant] = {}  # exchanges that are equal are the same object
        variants = []
        for number, (action, exchange) in enumerate(zip(actions, exchanges, strict=True)):
            first = number in firsts and (
                action.kind == "F" or job.gradients_start_empty or job.reduces_at_the_end
            )
            paired = job.training.ep_overlap and not job.overlaps_passes and is_paired(actions, number)
            key = (action.kind, action.chunk, first, number in lasts, not number, id(exchange), paired)
            variant = known.get(key)
            if variant is None:
                variant = known[key] = _Variant(
                    kind=action.kind,
                    pieces=pieces[action.chunk],
                    layers=chunks[action.chunk].layers,
                    first=first,
                    last=number in lasts,
                    before=() if number or job.batches_p2p else before,
                    exchange=exchange,
                    paired=paired,
                )
            variants.append(variant)
        made: dict[int, TemplateBuilder] = {}  # by identity of variants, which are hashed once
        for number, (action, variant) in enumerate(zip(actions, variants, strict=True)):
            if number in together:
                other = actions[together[number]]
                template = self._pair(variant, variants[together[number]], chunks, action, other)
                # Layers count from the chunk that comes first in the model.
                action = min(action, other, key=lambda one: chunks[one.chunk].first_layer)
            elif number in behind:
                continue
            else:
                found = made.get(id(variant)) or self._templates.get(variant)
                template = found or self._action(variant, chunks[action.chunk])
                if id(variant) not in made:
                    made[id(variant)] = self._templates[variant] = template
            if len(template):
                skeleton.append((template, action.microbatch, action.chunk))
        if any(action.kind != "F" for action in actions):
            end = self._build.template("optimizer")
            beside = range(len(actions)) if not job.overlaps_passes else ()
            overlaps = bool(together) or any(is_paired(actions, number) for number in beside)
            finish_step(OpWriter(end, job.software), job, stage, under_way(job, stage, overlaps=overlaps))
            if len(end):
                skeleton.append((end, -1, 0))
        self._build.program(
            ranks,
            skeleton,
            stage=stage,
            name=f"stage{stage}{suffix}",
            layer_offset=tuple(chunk.first_layer for chunk in chunks),
            memory=memory_profile(job, stage, actions),
        )

    def _action(self, variant: _Variant, chunk: Chunk) -> TemplateBuilder:
        forward, exchange = variant.kind == "F", variant.exchange
        template = self._build.template("fwd" if forward else "bwd")
        writer = OpWriter(template, self._job.software, paired=variant.paired)
        if self._job.batches_p2p:
            self._in_turn(writer, variant, chunk)
            return template
        ahead = self._messages.post(template, variant.before, ())
        for direction in exchange.awaits:
            writer.wait_for(external(self._messages.stream("send", direction)))
        if exchange.own is not None:
            message, back = exchange.own
            stream = self._messages.stream("recv", message.direction)
            here = [
                got
                for got, one in zip(ahead, variant.before, strict=True)
                if self._messages.stream("recv", one.direction) == stream
            ]
            before = external(stream, back)
            self._messages.take(writer, message, here[-1 - back] if here else before)
        write_pass(writer, self._job, chunk, variant.kind, first=variant.first, last=variant.last)
        if self._job.as_launched and forward:
            megatron_step.count_tokens(writer)
        done = self._messages.send(writer, exchange)
        self._messages.post(template, exchange.posts, done)
        return template

    def _in_turn(self, writer: OpWriter, variant: _Variant, chunk: Chunk) -> None:
        """An action and the exchange behind it; in the warm-up tokens are counted after what was sent."""
        write_pass(writer, self._job, chunk, variant.kind, first=variant.first, last=variant.last)
        forward, sends, posts = variant.kind == "F", variant.exchange.sends, variant.exchange.posts
        warms_up = forward and bool(sends) and not any(message.direction.gradients for message in posts)
        if forward and not warms_up:
            megatron_step.count_tokens(writer)
        waits = [*([writer.last] if writer.last is not None else []), *writer.beside]
        self._messages.exchange(writer.template, sends, () if warms_up else posts, waits)
        if warms_up:
            megatron_step.count_tokens(writer)
            self._messages.exchange(writer.template, (), posts, waits)

    def _together(self, stage: int, actions: list[Action], apart: set[int]) -> dict[int, int]:
        """Positions of forwards and of the backwards that run with them; see Note [Overlapped passes]."""
        job = self._job
        if not job.overlaps_passes:
            return {}
        beside = [exchanges_tokens(chunk) for chunk in job.chunks[stage]]
        return {
            forward: backward
            for forward, backward in overlapped_pairs(actions).items()
            if not {forward, backward} & apart
            and (beside[actions[forward].chunk] or beside[actions[backward].chunk])
        }

    def _pair(
        self, forward: _Variant, backward: _Variant, chunks: list[Chunk], first: Action, second: Action
    ) -> TemplateBuilder:
        """One template of a forward and the backward of another microbatch."""
        there, back = chunks[first.chunk], chunks[second.chunk]
        start = min(there.first_layer, back.first_layer)
        pair = _Pair(forward, backward, (there.first_layer - start, back.first_layer - start))
        if pair in self._templates:
            return self._templates[pair]
        template = self._templates[pair] = self._build.template("fwd+bwd")
        one, other = (OpWriter(template, self._job.software) for _ in range(2))
        for direction in forward.exchange.awaits:
            one.wait_for(external(self._messages.stream("send", direction)))
        self._messages.await_own(one, forward.exchange)
        early = self._messages.early(forward.exchange.posts, backward.exchange)
        posted = self._messages.post(template, early, (external(COMPUTE),))
        late = forward.exchange.posts[len(early) :]
        self._messages.await_own(other, backward.exchange, list(zip(early, posted, strict=True)), late)

        def forwards() -> Iterator[None]:
            yield from forward_pass(one, there, pair.shift[0])
            done = self._messages.send(one, forward.exchange)
            self._messages.post(template, late, done)

        def backwards() -> Iterator[None]:
            yield from backward_pass(other, back, pair.shift[1], backward_part("B"))
            self._messages.post(
                template, backward.exchange.posts, self._messages.send(other, backward.exchange)
            )

        take_turns(backwards(), forwards())
        return template

    def _boundary_bytes(self, placement: Placement) -> list[int]:
        """What each virtual stage hands on: the output of its last piece."""
        chunks, pp = self._job.chunks, self._job.parallel.pp
        places = [
            home(virtual, pp, placement) for virtual in range(num_virtual(pp, len(chunks[0]), placement))
        ]
        return [chunks[stage][chunk].pieces[-1].output_bytes for stage, chunk in places]
