"""From a description to an execution graph: what tracing the same program would give, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.graph import Graph, GraphBuilder, TemplateBuilder
from simcore.graph.schedules import Action, Schedule, gpipe, interleaved_one_f_one_b
from simcore.graph.template_builder import Source, external
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel import replicated, sharded
from workloads.parallel.emit import Writer
from workloads.parallel.finish import finish_step
from workloads.parallel.job import Job
from workloads.parallel.memory import memory_profile
from workloads.parallel.spec import ParallelSpec, TrainingSpec
from workloads.parallel.stages import Chunk


def generate(
    model: ModelSpec, parallel: ParallelSpec, training: TrainingSpec, software: SoftwareSpec | None = None
) -> Graph:
    """One training step of ``model`` as every rank runs it.

    Errors: InputError for degrees that divide neither layers, heads, experts nor batch, naming the rule and
    the nearest valid value.
    """
    job = Job(model, parallel, training, software or SoftwareSpec())
    return _Generator(job).graph()


def schedule_of(job: Job) -> Schedule:
    """Actions of every stage, in order."""
    p, count = job.parallel, job.num_microbatches
    if p.schedule == "gpipe":
        return gpipe(p.pp, count)
    return interleaved_one_f_one_b(p.pp, count, p.virtual_stages)


@dataclass(frozen=True)
class _Variant:
    """What makes two actions' templates differ."""

    kind: str
    pieces: tuple[int, ...]  # identities
    layers: tuple[int, ...]
    receives: bool
    sends: bool
    first: bool
    last: bool
    behind: int  # ops back on the compute stream that a receive waits for; -1: none
    after_send: str


class _Generator:
    def __init__(self, job: Job) -> None:
        self._job = job
        p, t = job.parallel, job.training
        samples = t.global_batch
        self._build = GraphBuilder(
            p.world_size,
            name=job.model.name,
            dims={"tp": p.tp, "cp": p.cp, "dp": p.dp, "pp": p.pp},
            num_microbatches=job.num_microbatches,
            micro_batch_size=t.micro_batch,
            seq_len=t.seq,
            tokens_per_step=samples * t.seq,
            precision=t.precision,
            framework=f"generated ({job.software.name})",
            model={
                **job.model.model_dump(exclude_none=True),
                "model_flops_per_step": job.pieces.model_flops_per_sample * samples,
            },
            options={"kernels": "flash", "parallel": p.model_dump(), "training": t.model_dump()},
        )
        job.mesh.declare(self._build)
        self._templates: dict[_Variant, TemplateBuilder] = {}

    def graph(self) -> Graph:
        schedule = schedule_of(self._job)
        for stage, actions in enumerate(schedule):
            self._stage(stage, actions)
        return self._build.build()

    def _stage(self, stage: int, actions: list[Action]) -> None:
        job = self._job
        chunks = job.chunks[stage]
        skeleton: list[tuple[TemplateBuilder, int, int]] = []
        sent = ""
        for action in actions:
            chunk = chunks[action.chunk]
            variant = self._variant(action, chunk, behind=self._behind(skeleton), after_send=sent)
            template = self._templates.get(variant)
            if template is None:
                template = self._templates[variant] = self._action(variant, chunk)
            skeleton.append((template, action.microbatch, action.chunk))
            sent = variant.kind if variant.sends else ""
        end = self._build.template("optimizer")
        finish_step(Writer(end), job, stage, self._under_way(stage))
        if len(end):
            skeleton.append((end, -1, 0))
        self._build.program(
            job.mesh.stage_ranks(stage),
            skeleton,
            stage=stage,
            name=f"stage{stage}",
            layer_offset=tuple(chunk.first_layer for chunk in chunks),
            memory=memory_profile(job, stage, actions),
        )

    def _behind(self, played: list[tuple[TemplateBuilder, int, int]]) -> int:
        """A receive is posted when the action before is through; with overlap when that one begins."""
        if not self._job.training.overlap_p2p:
            return 0 if played else -1
        if len(played) < 2:
            return -1
        return sum(row["stream"] == "compute" for row in played[-1][0].rows)

    def _variant(self, action: Action, chunk: Chunk, *, behind: int, after_send: str) -> _Variant:
        job = self._job
        piped = job.parallel.pp > 1
        forward = action.kind == "F"
        receives = piped and not (chunk.has_embedding if forward else chunk.has_head)
        sends = piped and not (chunk.has_head if forward else chunk.has_embedding)
        return _Variant(
            kind=action.kind,
            pieces=tuple(id(piece) for piece in chunk.pieces),
            layers=chunk.layers,
            receives=receives,
            sends=sends,
            first=action.microbatch == 0 and forward,
            last=action.microbatch == job.num_microbatches - 1 and not forward,
            behind=behind if receives else -1,
            after_send=after_send if not job.training.overlap_p2p else "",
        )

    def _action(self, variant: _Variant, chunk: Chunk) -> TemplateBuilder:
        job = self._job
        forward = variant.kind == "F"
        template = self._build.template("fwd" if forward else "bwd")
        writer = Writer(template)
        name = template.name
        source = -1 if forward else 1
        if variant.after_send:
            # Without overlap the host's wait covers the message that the action before sent.
            writer.wait_for(external(f"pp.send.{'fwd' if variant.after_send == 'F' else 'bwd'}"))
        if variant.receives:
            self._receive(writer, source, name, variant)
        body = sharded if job.is_fsdp else replicated
        if forward:
            body.forward(writer, job, chunk, first=variant.first)
        elif job.is_fsdp:
            sharded.backward(writer, job, chunk)
        else:
            replicated.backward(writer, job, chunk, last=variant.last)
        if variant.sends and writer.last is not None:
            template.send("pp", -source, self._message_bytes, stream=f"pp.send.{name}", waits=(writer.last,))
        return template

    def _receive(self, writer: Writer, source: int, name: str, variant: _Variant) -> None:
        job = self._job
        before = (external("compute", variant.behind),) if variant.behind >= 0 else ()
        got = writer.template.recv("pp", source, self._message_bytes, stream=f"pp.recv.{name}", waits=before)
        writer.wait_for(got)
        if self._scattered:
            num_bytes = job.boundary_bytes
            writer.collective("all_gather", "tp", num_bytes, stream="compute", phase=name)

    @property
    def _scattered(self) -> bool:
        job = self._job
        return job.training.scatter_gather_p2p and job.parallel.tp > 1 and not job.shard.sequence_parallel

    @property
    def _message_bytes(self) -> int:
        return self._job.boundary_bytes // (self._job.parallel.tp if self._scattered else 1)

    def _under_way(self, stage: int) -> list[Source]:
        """The last ops on streams that nothing has waited for."""
        job = self._job
        if job.is_fsdp:
            streams = ["fsdp_reduce"]
            if job.mesh.shard_ranks < job.mesh.replicas:
                streams.append("fsdp_replicate")
            return [external(stream) for stream in streams]
        t = job.training
        if (t.overlap_grad_reduce or t.sharding == "zero2") and any(
            replicated.buckets_of(job, chunk) for chunk in job.chunks[stage]
        ):
            return [external(replicated.DP_STREAM)]
        return []
