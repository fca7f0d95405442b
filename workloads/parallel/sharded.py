"""Pipeline actions where parameters are sharded: FSDP and ZeRO-3 gather each unit before it is used.

Note [Order of gathers]
    A unit is a layer; what is left (embedding, final norm and head) is the root unit, gathered first and
    kept.  The gather of the next unit is issued before the unit at hand is computed, and runs once the unit
    ``prefetch`` back has been computed and freed (FSDP1's rate limiter; FSDP2 waits for the copy-out).
    Gathers and reductions over the same ranks share a communicator, whose collectives run one after the
    other in the order of issue (``ProcessGroupNCCL`` has one stream for them): next gather, then reduction.
    FSDP2 lets compute wait for the reduction of the unit before, whose buffer it needs again
    (``FSDPParamGroup.post_backward``), and copies what was gathered into the parameters and gradients into
    the reduction's buffer.  FSDP1's flat parameters are used where they are; their gradients are joined by
    autograd (parameters are views that ``torch.split`` made), then cast to the reduction's dtype and divided
    by its share of the number of ranks (``_post_backward_hook`` of ``torch/distributed/fsdp``).  XLA's
    products read what was gathered where it arrives (the compiled program of GPT 126M, NVIDIA/JAX-Toolbox
    .github/workflows/nsys-jax/test_data/pax_fsdp4), unless a loop hands it on to its next round.

Note [Collectives of lists]
    DeepSpeed's first ZeRO-3 gathers and reduces parameter by parameter, with a list that holds one tensor per
    rank (``stage3.py`` of v0.3.13: ``_allgather_param``, ``_reduce_scatter_gradient``).  The host makes each
    of them a view, and ``ProcessGroupNCCL`` copies each from or to the buffer that NCCL sees, in a kernel of
    its own.  It also waits for the GPU before a gather, reduces without overlap (``overlap_comm`` off), and
    frees a layer's parameters between its recomputation and its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from simcore.graph import OpHandle
from simcore.records import dataclass
from simcore.units import PS_PER_US
from workloads.models.local import message_dtype
from workloads.models.pieces import KernelLaunch, ModelPiece, Parameter
from workloads.models.tensors import Tensor, compute
from workloads.parallel.emit import COMPUTE, OpWriter
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.stages import Chunk, Unit, units_of

COMM_STREAM, COPY_STREAM, REPLICA_STREAM = "fsdp", "fsdp_copy", "fsdp_replicate"

#: Host time of one tensor of a list: a view, and the launch of an eager copy.
_LIST_PS = 10 * PS_PER_US

#: Parameters below are kept on every rank (``stage3_param_persistence_threshold`` of DeepSpeed v0.3.13).
_KEPT_ELEMENTS = 100_000

Kernels = Callable[[ModelPiece], Sequence[KernelLaunch]]


@dataclass
class _Gathers:
    """Gathers of one pass: issued in order, at most ``prefetch`` ahead of the unit at hand."""

    writer: OpWriter
    job: Job
    chunk: Chunk
    phase: str
    order: list[Unit]
    handles: list[list[OpHandle]] = field(default_factory=list)
    done: list[OpHandle | None] = field(default_factory=list)

    def issue_up_to(self, number: int) -> None:
        """Issue the gathers of units up to ``number`` in this pass."""
        while len(self.handles) <= min(number, len(self.order) - 1):
            mine = len(self.handles)
            held = self.job.training.prefetch + 1
            before = self.done[mine - held] if mine - held >= 0 and mine - held < len(self.done) else None
            waits = [before] if before is not None else []
            unit = self.order[mine]
            rounds = _rounds(self.job, self.phase)
            for _ in range(rounds):
                _list_on_host(self.writer, self.job, _pieces(self.chunk, unit))
            self.handles.append(
                [
                    self.writer.collective(
                        "all_gather", group, numel * element_bytes(self.job.training.param_gather_dtype),
                        stream=_stream(group), phase=self.phase, layer=_layer(self.chunk, unit), waits=waits,
                        dtype=message_dtype(self.job.training.param_gather_dtype),
                    )
                    for group, numel in self._gathered(unit) * rounds
                ]
            )  # fmt: skip

    def use(self, number: int) -> None:
        """Compute what follows with unit ``number`` gathered; the next is on its way."""
        self.issue_up_to(number)
        self.writer.wait_for(*self.handles[number])
        if _copies(self.job):
            unit = self.order[number]
            for _, numel in self._gathered(unit):
                whole = Tensor((numel,), message_dtype(self.job.training.param_gather_dtype))
                self._copy_out(_copy("split_with_sizes_copy", whole, whole), _layer(self.chunk, unit))
        self.issue_up_to(number + self.job.training.prefetch)

    def _gathered(self, unit: Unit) -> list[tuple[str, int]]:
        found = _by_group(self.job, _pieces(self.chunk, unit))
        return _inside_out(self.job, found) if self.phase == "bwd" else found

    def _copy_out(self, kernel: KernelLaunch, layer: int) -> None:
        """What was gathered to the parameters; DeepSpeed does it beside what is computed."""
        if not _by_deepspeed(self.job):
            self.writer.compute(kernel, phase=self.phase, layer=layer)
            return
        waits = self.writer.taken()
        done = self.writer.compute(kernel, phase=self.phase, layer=layer, stream=COPY_STREAM, waits=waits)
        self.writer.wait_for(done)


def forward(writer: OpWriter, job: Job, chunk: Chunk, *, first: bool) -> None:
    """Gather, compute, free, unit by unit; without resharding, a pipeline gathers once a step."""
    units = units_of(chunk, ends_apart=job.training.fsdp_ends_apart)
    again = job.training.reshard_after_forward
    # A backward frees all units; in a pipeline only the last one does (``PipelineStage`` of torch).
    in_pipeline = job.parallel.pp > 1
    gathered = [unit for unit in units if first or not in_pipeline or (again and not unit.kept)]
    gathers = _Gathers(writer, job, chunk, "fwd", gathered)
    number = {position: k for k, unit in enumerate(gathered) for position in unit.positions}
    used = -1
    if gathered and gathered[0].kept:
        gathers.use(0)
        gathers.done.append(writer.last)
        used = 0
    for position, (piece, layer) in enumerate(zip(chunk.pieces, chunk.layers, strict=True)):
        if number.get(position, -1) > used:
            used = number[position]
            gathers.use(used)
        if first:
            writer.kernels(piece.first_forward, phase="fwd", layer=layer)
        writer.kernels(piece.forward, phase="fwd", layer=layer)
        if position in number and len(gathers.done) <= used:
            gathers.done.append(writer.last)


def backward(
    writer: OpWriter, job: Job, chunk: Chunk, *, kernels: Kernels, gathers: bool = True, reduces: bool = True
) -> None:
    """Gather again what was freed, compute ``kernels`` of each piece in reverse, reduce.

    The root is still there, and so is the last layer, which FSDP1 frees all the same, as FSDP2 does before a
    head that is a unit of its own.  ``gathers`` False: only weight gradients are computed; ``reduces`` False:
    they are not complete yet.
    """
    apart = job.training.fsdp_ends_apart
    units = units_of(chunk, ends_apart=apart)
    layers = [unit for unit in reversed(units) if not unit.kept]
    freed = layers if job.training.sharding == "fsdp1" or (apart and chunk.has_head) else layers[1:]
    again = freed if job.training.reshard_after_forward and gathers else []
    passing = _Gathers(writer, job, chunk, "bwd", again)
    number = {unit.positions[0]: k for k, unit in enumerate(again)}
    if freed == layers:
        passing.issue_up_to(job.training.prefetch - 1)  # before the root's backward
    reductions = _ShardReductions(writer, job)
    ends: list[ModelPiece] = []
    for position in reversed(range(len(chunk.pieces))):
        piece, layer = chunk.pieces[position], chunk.layers[position]
        if position in number:
            passing.use(number[position])
        elif layer >= 0:
            passing.issue_up_to(job.training.prefetch - 1)
        writer.kernels(kernels(piece), phase="bwd", layer=layer)
        if position in number:
            passing.done.append(writer.last)
        if layer < 0 and not apart:
            ends.append(piece)
        elif reduces and not job.reduces_at_the_end:
            reductions.reduce((piece,), layer)
    if job.reduces_at_the_end and reduces:
        for unit in units:
            reductions.reduce(_pieces(chunk, unit), _layer(chunk, unit))
    elif ends and reduces:
        reductions.reduce(tuple(ends), -1)


@dataclass
class _ShardReductions:
    """reduce_scatter over the shards, then all_reduce over replicas of the shards (HSDP)."""

    writer: OpWriter
    job: Job
    before: list[OpHandle] = field(default_factory=list)

    def reduce(self, pieces: tuple[ModelPiece, ...], layer: int) -> None:
        """Gradients of a unit whose backward is done."""
        job, writer = self.job, self.writer
        precision = job.training.grad_reduce_dtype
        size = element_bytes(precision)
        fsdp1 = job.training.sharding == "fsdp1"
        if self.before and not fsdp1:
            writer.wait_for(*self.before)
        self.before = []
        for group, numel in _inside_out(job, _by_group(job, pieces, trainable=True)):
            made = job.shard.main_grad_dtype if job.reduces_at_the_end else job.shard.dtype
            grads, buffer = Tensor((numel,), made), Tensor((numel,), message_dtype(precision))
            waits = [writer.last] if writer.last is not None else []
            if fsdp1:
                # Where parameters were cut from what was gathered, their gradients are put together, behind
                # the next layer's gather, along with which it is waited for (pytorch/pytorch issue 133849).
                cat = _copy("cat", grads, grads)
                waits = [writer.compute(cat, phase="bwd", layer=layer, stream=_stream(group), waits=waits)]
                writer.wait_for(*waits)
            for kernel in _before_reduction(job, grads, buffer):
                waits = [
                    writer.compute(kernel, phase="bwd", layer=layer, stream=_copies_on(job), waits=waits)
                ]
            _list_on_host(writer, job, pieces)
            reduced = writer.collective(
                "reduce_scatter", group, numel * size, stream=_stream(group), phase="grad_sync", layer=layer,
                waits=waits, dtype=message_dtype(precision),
            )  # fmt: skip
            self.before.append(reduced)
            if job.training.list_collectives:
                writer.wait_for(reduced)
            replicas = job.mesh.replicas // job.mesh.shard_ranks
            if group == "dp_shard" and replicas > 1:
                writer.collective(
                    "all_reduce", "dp_replicate", numel // job.mesh.shard_ranks * size, stream=REPLICA_STREAM,
                    phase="grad_sync", layer=layer, waits=[reduced], dtype=message_dtype(precision),
                )  # fmt: skip


def streams_of(job: Job) -> list[str]:
    """Streams on which a step leaves reductions under way."""
    groups = [group for group, _ in _by_group(job, job.pieces.all_pieces, trainable=True)]
    streams = list(dict.fromkeys(_stream(group) for group in groups))
    return [*streams, REPLICA_STREAM] if "dp_shard" in groups else streams


def _stream(group: str) -> str:
    return "fsdp_experts" if group == "expert_dp" else COMM_STREAM


def _pieces(chunk: Chunk, unit: Unit) -> tuple[ModelPiece, ...]:
    return tuple(chunk.pieces[position] for position in unit.positions)


def _layer(chunk: Chunk, unit: Unit) -> int:
    return chunk.layers[unit.positions[0]]


def _by_group(job: Job, pieces: tuple[ModelPiece, ...], *, trainable: bool = False) -> list[tuple[str, int]]:
    """(group, elements) of the unit's parameters (those that train), by who shards them, or one by one."""
    dense = "dp_shard" if job.mesh.shard_ranks < job.mesh.replicas else "dp"
    found = []
    for name, group in (("dp", dense), ("expert_dp", "expert_dp")):
        numel = job.numel(pieces, name, trainable=trainable)
        size = job.mesh.expert_replicas if name == "expert_dp" else job.mesh.shard_ranks
        if not numel or size <= 1:
            continue
        if job.training.list_collectives:
            found += [(group, parameter.numel) for parameter in _sharded(pieces) if parameter.group == name]
        else:
            found.append((group, numel))
    return found


def _inside_out(job: Job, by_group: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Backward's order: under FSDP2 experts are a unit inside their layer's, whose backward is done first."""
    return by_group[::-1] if job.training.sharding == "fsdp2" else by_group


def _sharded(pieces: tuple[ModelPiece, ...]) -> list[Parameter]:
    """Parameters that have a collective each; see Note [Collectives of lists]."""
    return [p for piece in pieces for p in piece.parameters if p.numel >= _KEPT_ELEMENTS]


def _rounds(job: Job, phase: str) -> int:
    """Gathers of a unit in one pass: DeepSpeed's hooks free it after recomputation, before backward."""
    return 2 if job.training.list_collectives and phase == "bwd" and job.training.recompute == "full" else 1


def _list_on_host(writer: OpWriter, job: Job, pieces: tuple[ModelPiece, ...]) -> None:
    """What the host does for the collectives of a unit; see Note [Collectives of lists]."""
    if not job.training.list_collectives:
        return
    writer.template.sync("compute", name="cudaDeviceSynchronize")
    writer.template.host("list", len(_sharded(pieces)) * job.mesh.shard_ranks * _LIST_PS)


def _by_deepspeed(job: Job) -> bool:
    return job.training.engine == "deepspeed" and not job.training.list_collectives


def _copies(job: Job) -> bool:
    """Whether what was gathered is copied to the parameters, and gradients to what is reduced."""
    return job.training.sharding != "fsdp1" and not job.training.gathers_in_place


def _copies_on(job: Job) -> str:
    """Where gradients are prepared: FSDP2 does it behind the backward, others beside it."""
    return COMPUTE if job.training.sharding == "fsdp2" else COPY_STREAM


def _before_reduction(job: Job, grads: Tensor, buffer: Tensor) -> list[KernelLaunch]:
    """What prepares gradients for their reduction; see Note [Order of gathers]."""
    if _by_deepspeed(job):
        # To the bucket, to what is scattered, and divided there (``__avg_scatter_contiguous_grads``).
        steps = [_copy("copy_", grads, buffer), _copy("cat", buffer, buffer)]
        return [*steps, compute("aten::div_", [buffer], [buffer], op_class="elementwise", module="fsdp")]
    if job.training.gathers_in_place:
        return []
    if _copies(job):
        return [_copy("chunk_cat", grads, buffer)]
    cast = [] if buffer.dtype == grads.dtype else [_copy("to", grads, buffer)]
    return [*cast, compute("aten::div_", [buffer], [buffer], op_class="elementwise", module="fsdp")]


def _copy(name: str, source: Tensor, target: Tensor) -> KernelLaunch:
    return compute(f"aten::{name}", [source], [target], op_class="copy", module="fsdp")
