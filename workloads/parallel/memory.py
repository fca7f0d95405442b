"""Memory of a rank in closed form: what it holds through the step, and the most beside it.

Note [What fills a GPU]
    Static: parameters, gradients, optimizer states; an optimizer that works in fp32 on 16-bit gradients keeps
    an fp32 copy of those it owns.  In flight: what pieces keep for backward, microbatch by microbatch as the
    schedule plays (of a split backward until its weight gradients are done).  Working: the tensors of the
    largest kernel, and what recomputation brings back for the piece at hand.  Gathered: the units of FSDP
    that are whole, and the gradients of one before it is reduced.  DeepSpeed's engine keeps more: what a
    stage has sent until its backward (``pipe_buffers``), 16-bit gradients beside the fp32 ones
    (``BF16_Optimizer``), buckets that gradients and parameters are copied through (Megatron's are views).
    The caching allocator holds more than it hands out: :data:`FRAGMENTATION` of all that comes and goes,
    fitted to the measured runs of ``scripts/validate.py --memory``.  Context and communicators
    (:func:`outside_bytes`) are not the allocator's; a simulated GPU has them in its ``reserved_bytes``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from simcore.graph import MemoryProfile
from simcore.graph.schedules import SCHEDULES, Action
from simcore.graph.schedules.play import num_chunks
from workloads.models.pieces import ModelPiece
from workloads.models.storages import INPUT, storages_of
from workloads.parallel.finish import local_numel
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.stages import Chunk, units_of

#: Driver, CUDA context and loaded kernels (as the GPU profiles have it).
CONTEXT_BYTES = 1 << 30
#: Buffers of one NCCL communicator: 16 channels, a ring's and three tree neighbours' buffers of 4 MiB and of
#: the LL protocols (2.2 MiB) each (NCCL's init.cc: NCCL_BUFFSIZE and its kin).
COMMUNICATOR_BYTES = 16 * 4 * 6_500_000

#: Share of what comes and goes that the allocator holds besides: splits and gaps between blocks.
FRAGMENTATION = 0.15

#: Weights of Transformer Engine's layers.
_OF_ENGINE = re.compile(r"\.linear_\w+\.weight$")

#: Microbatches of each chunk that await their backward, and the chunk whose pass runs.
Occupancy = tuple[tuple[int, ...], int]


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of one stage's ranks; see Note [What fills a GPU]."""

    parameters: int
    gradients: int
    optimizer_states: int
    in_flight: int
    working: int
    gathered: int
    buffers: int
    fragmentation: int
    workspace: int

    @property
    def activations(self) -> int:
        """Everything that does not live through the step."""
        lasting = self.in_flight + self.buffers + self.workspace
        return lasting + self.working + self.gathered + self.fragmentation

    @property
    def total(self) -> int:
        """Peak of what the allocator holds."""
        return self.parameters + self.gradients + self.optimizer_states + self.activations


def outside_bytes(job: Job) -> int:
    """What a process holds on its GPU outside the allocator: context, and buffers of its communicators."""
    communicators = len(job.mesh.groups()) + (job.parallel.pp > 1)
    return CONTEXT_BYTES + communicators * COMMUNICATOR_BYTES


def memory_profile(job: Job, stage: int, actions: Sequence[Action]) -> MemoryProfile:
    """The estimate as a program of the graph carries it."""
    estimate = estimate_memory(job, stage, actions)
    return MemoryProfile(
        parameters=estimate.parameters,
        gradients=estimate.gradients,
        optimizer_states=estimate.optimizer_states,
        activations_peak=estimate.activations,
        peak=estimate.total,
    )


def estimate_memory(job: Job, stage: int, actions: Sequence[Action]) -> MemoryEstimate:
    """Peak of ``stage``, which runs ``actions``."""
    return _estimate(job, stage, occupancies(actions))


def peak_bytes(job: Job) -> int:
    """What the allocator holds on the fullest stage.  InputError where its schedule cannot be."""
    p = job.parallel
    states = _occupancies_of(
        p.schedule, p.pp, job.num_microbatches, p.virtual_stages, p.microbatch_group,
        job.training.trainable == "none",
    )  # fmt: skip
    # Stages of equal pieces differ in what they hold of them alone.
    alike: dict[tuple[tuple[ModelPiece, ...], ...], tuple[int, dict[Occupancy, None]]] = {}
    for stage, held in enumerate(states):
        pieces = tuple(chunk.pieces for chunk in job.chunks[stage])
        alike.setdefault(pieces, (stage, {}))[1].update(dict.fromkeys(held))
    return max(_estimate(job, stage, tuple(held)).total for stage, held in alike.values())


@lru_cache(maxsize=1 << 12)
def _occupancies_of(
    schedule: str, stages: int, microbatches: int, chunks: int, group: int, forward_only: bool
) -> tuple[tuple[Occupancy, ...], ...]:
    """Of every stage of a schedule: jobs that differ in other things share them."""
    actions = SCHEDULES[schedule].actions(stages, microbatches, chunks, group)
    return tuple(
        _fullest(occupancies([action for action in own if action.kind == "F" or not forward_only]))
        for own in actions
    )


def _fullest(held: Sequence[Occupancy]) -> tuple[Occupancy, ...]:
    """Those of which no other holds as much of every chunk with the same one at hand."""
    counts, chunks = np.array([one for one, _ in held]), np.array([chunk for _, chunk in held])
    found: list[Occupancy] = []
    for number, (own, chunk) in enumerate(held):
        others = (counts >= counts[number]).all(axis=1) & (chunks == chunk)
        if others.sum() == 1:
            found.append((own, chunk))
    return tuple(found)


def _estimate(job: Job, stage: int, held: Sequence[Occupancy]) -> MemoryEstimate:
    chunks = job.chunks[stage]
    training = job.training
    pieces = tuple(piece for chunk in chunks for piece in chunk.pieces)
    numel, trainable = job.numel(pieces), job.numel(pieces, trainable=True)
    owned = local_numel(job, stage) if trainable else 0
    states = owned * training.optimizer_bytes_per_parameter
    if training.optimizer_bytes_per_parameter >= 12 and element_bytes(training.grad_dtype) < 4:
        states += owned * 4
    gathered = 0
    if job.is_fsdp:
        # The master copy among the optimizer's bytes is the sharded parameter.
        frozen = (numel - trainable) // job.mesh.shard_ranks
        whole = owned if training.optimizer_bytes_per_parameter < 12 else 0
        parameters = (frozen + whole) * 4
        gradients = owned * element_bytes(training.grad_dtype)
        gathered = _gathered(job, chunks)
    else:
        parameters = numel * element_bytes("bf16" if training.precision == "fp8" else training.precision)
        grad_bytes = element_bytes(training.grad_dtype)
        if training.engine == "deepspeed" and grad_bytes == 4 and training.precision in ("bf16", "fp16"):
            grad_bytes += 2
        gradients = (owned if training.sharding == "zero2" else trainable) * grad_bytes
    in_flight, working = _peak(job, chunks, held)
    buffers = _buffers(job, trainable)
    return MemoryEstimate(
        parameters=parameters,
        gradients=gradients,
        optimizer_states=states,
        in_flight=in_flight,
        working=working,
        gathered=gathered,
        buffers=buffers,
        workspace=job.software.workspace_bytes + _unread_gradients(job, pieces),
        fragmentation=int(FRAGMENTATION * (in_flight + working + gathered + buffers)),
    )


def _unread_gradients(job: Job, pieces: Sequence[ModelPiece]) -> int:
    """Tensors that Transformer Engine hands to autograd for gradients which products have added already.

    One of each weight's shape is kept (get_dummy_wgrad of transformer_engine/pytorch/module/base.py).
    """
    if not (job.software.transformer_engine and job.software.grad_accumulation_fusion) or job.is_fsdp:
        return 0
    shapes = {
        parameter.shape[-2:]
        for piece in pieces
        for parameter in piece.parameters
        if parameter.trainable and _OF_ENGINE.search(parameter.name)
    }
    narrow = "bf16" if job.training.precision == "fp8" else job.training.precision
    return sum(map(prod, shapes)) * element_bytes(narrow)


def _gathered(job: Job, chunks: Sequence[Chunk]) -> int:
    """Whole parameters of the root and of the layers around the one at hand; a unit's gradients."""
    training = job.training
    size = element_bytes(training.param_gather_dtype)
    sizes: list[int] = []
    root = 0
    for chunk in chunks:
        for unit in units_of(chunk, ends_apart=job.training.fsdp_ends_apart):
            numel = job.numel(tuple(chunk.pieces[position] for position in unit.positions))
            if unit.kept:
                root += numel
            else:
                sizes.append(numel)
    largest = max([*sizes, root if not sizes else 0])
    kept = sum(sizes) if not training.reshard_after_forward else (training.prefetch + 1) * largest
    reduced = largest * (element_bytes(training.grad_reduce_dtype) + size)
    return (root + min(kept, sum(sizes))) * size + reduced


def _buffers(job: Job, trainable: int) -> int:
    """DeepSpeed copies gradients into buckets, and gathers parameters through one."""
    training = job.training
    copies = training.engine == "deepspeed" and not job.is_fsdp and training.sharding != "ddp"
    if not copies or training.bucket_parameters <= 0:
        return 0
    bucket = min(trainable, training.bucket_parameters)
    return bucket * (element_bytes(training.grad_dtype) + element_bytes(training.param_gather_dtype))


def occupancies(actions: Sequence[Action]) -> tuple[Occupancy, ...]:
    """What a stage holds while it runs ``actions``, each state once, in order."""
    counts = [0] * num_chunks([list(actions)])
    found: dict[Occupancy, None] = {}
    for action in actions:
        chunk = action.chunk
        if action.kind == "F":
            counts[chunk] += 1
        found.setdefault((tuple(counts), chunk))
        if action.kind in ("B", "W"):
            counts[chunk] -= 1
    return tuple(found)


def _peak(job: Job, chunks: Sequence[Chunk], held: Sequence[Occupancy]) -> tuple[int, int]:
    """What is kept for backward at the worst moment, and what works beside it."""
    passes = [_passes(job, chunk) for chunk in chunks]
    worst = (0, 0)
    for counts, chunk in held:
        live = sum(count * one.kept for count, one in zip(counts, passes, strict=False))
        if live + passes[chunk].beside > sum(worst):
            worst = live, passes[chunk].beside
    return worst


@dataclass(frozen=True)
class _Passes:
    """Bytes of one microbatch in a chunk: what it keeps, and the most that a pass has beside that."""

    kept: int
    beside: int


def _passes(job: Job, chunk: Chunk) -> _Passes:
    """Pieces one after the other, as ``lifetimes.py`` plays them."""
    if not chunk.pieces:
        return _Passes(0, 0)
    sizes = tuple(sorted((name, prod(size for size, _ in dims)) for name, dims in job.mesh.groups().items()))
    made = [_profile(piece, sizes, job.is_fsdp) for piece in chunk.pieces]
    live = worst = made[0].input_bytes
    for one in made:
        worst = max(worst, live + one.forward_peak)
        live += one.forward_net
    sent = made[-1].output_bytes
    kept = live if job.parallel.pp > 1 and job.training.engine == "deepspeed" else live - sent
    beside, live = worst - kept, 0 if chunk.has_head else chunk.pieces[-1].output_bytes
    for one in reversed(made):
        beside = max(beside, live + one.backward_peak)
        live += one.backward_net
    return _Passes(kept, max(0, beside))


@dataclass(frozen=True)
class _PieceProfile:
    """Bytes that a piece's passes have at most, and leave, over what was there when they began."""

    input_bytes: int
    output_bytes: int
    forward_peak: int
    forward_net: int
    backward_peak: int
    backward_net: int


@lru_cache(maxsize=1 << 10)
def _profile(piece: ModelPiece, sizes: tuple[tuple[str, int], ...], keeps_gradients: bool) -> _PieceProfile:
    """``keeps_gradients``: those of parameters stay until they are reduced, which is counted elsewhere."""
    made = storages_of(piece, sizes)
    num_bytes = [
        0 if keeps_gradients and storage.gradient else storage.num_bytes for storage in made.storages
    ]
    output = num_bytes[made.output] if made.output >= 0 else 0
    peaks, nets = [], []
    for kind in ("F", "B"):
        codes = made.events[kind]
        levels = np.cumsum([num_bytes[code] if code >= 0 else -num_bytes[~code] for code in codes] or [0])
        peaks.append(max(0, int(levels.max())))
        nets.append(int(levels[-1]))
    return _PieceProfile(num_bytes[INPUT], output, peaks[0], nets[0], peaks[1], nets[1])
