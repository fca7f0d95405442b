"""Passes of models whose classes of layers each have a strategy; see Note [Two levels] of ``strategy.py``.

Note [Passes by class]
    Parameters that lie in shards are gathered before their piece's forward and again before its backward,
    those of the next piece being on their way meanwhile; their gradients are scattered over the shards and
    added up over the shards' replicas.  What is whole is reduced in the buckets, and with the copies, of a
    job without strategies (Note [Buckets] of ``replicated.py``), a bucket of those that add up the same
    together.  Copies around gathers and reductions of shards are those of FSDP2.  Of what tensor parallelism
    copies (norms) gradients are added up over its ranks, too: each had its own samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Final

from simcore.graph import OpHandle
from simcore.records import dataclass
from workloads.models.local import DTYPES
from workloads.models.pieces import ModelPiece, Parameter
from workloads.models.tensors import Tensor, compute
from workloads.parallel.emit import COMPUTE, OpWriter
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.replicated import (
    DP_STREAM as SUMS,
)
from workloads.parallel.replicated import (
    Backward,
    Sums,
    all_reduce_of,
    buckets_of,
    reduce_gradients,
    reduced_in_backward,
)
from workloads.parallel.stages import Chunk
from workloads.parallel.strategy import WORDS, Levels

SHARDS: Final = "fsdp"
REPLICAS: Final = "fsdp_replicate"


def forward(writer: OpWriter, job: Job, chunk: Chunk, *, first: bool) -> None:
    """Gather what is in shards, compute, piece by piece."""
    gathers = _GathersByClass(writer, job, chunk, "fwd", _in_shards(job, chunk))
    for position, (piece, layer) in enumerate(zip(chunk.pieces, chunk.layers, strict=True)):
        gathers.use(position)
        if first:
            writer.kernels(piece.first_forward, phase="fwd", layer=layer)
        writer.kernels(piece.forward, phase="fwd", layer=layer)
        gathers.used(position)


def backward(writer: OpWriter, job: Job, chunk: Chunk, *, last: bool, kernels: Backward) -> None:
    """Gather again but for what forward left, compute ``kernels`` of each piece, reduce."""
    order = [position for position in reversed(_in_shards(job, chunk)) if chunk.pieces[position].backward]
    gathers = _GathersByClass(
        writer, job, chunk, "bwd", order[1:] if job.training.reshard_after_forward else []
    )
    buckets = buckets_of(job, chunk, kernels, _summed_over) if last else []
    ready = reduced_in_backward(job, chunk, last=last)
    sums, scatters = Sums(writer, job, buckets if ready else []), _Scatters(writer, job)
    for position in reversed(range(len(chunk.pieces))):
        piece, layer = chunk.pieces[position], chunk.layers[position]
        gathers.use(position)
        writer.kernels(kernels(piece), phase="bwd", layer=layer, after=sums.after(position))
        gathers.used(position)
        scatters.add(piece, layer)
    sums.finish()
    if last:
        if not ready:
            reduce_gradients(writer, job, buckets, stream=COMPUTE)
        _sum_copies(writer, job, chunk)


def owned_numel(job: Job, pieces: Sequence[ModelPiece], *, trainable: bool = True) -> int:
    """Elements of ``pieces`` that are a rank's own: of those in shards its shards'."""
    return sum(
        -(-numel // levels.num_shards)
        for piece in pieces
        for levels, numel in _shares(job, piece, trainable=trainable)
    )


def static_numel(job: Job, pieces: Sequence[ModelPiece], *, in_shards: bool, trainable: bool) -> int:
    """The same of those that lie in shards, or of those that are whole."""
    return sum(
        -(-numel // levels.num_shards)
        for piece in pieces
        for levels, numel in _shares(job, piece, trainable=trainable)
        if (levels.num_shards > 1) == in_shards
    )


def gathered_bytes(job: Job, chunk: Chunk) -> int:
    """The most that is gathered at a time: pieces that follow one another."""
    whole = [
        element_bytes(job.training.param_gather_dtype) * sum(numel for _, numel in _gathered(job, piece))
        for piece in chunk.pieces
    ]
    if not job.training.reshard_after_forward:
        return sum(whole)
    whole = [size for size in whole if size]
    held = job.training.prefetch + 1
    return max((sum(whole[k : k + held]) for k in range(len(whole))), default=0)


def streams_of(job: Job) -> list[str]:
    """Streams on which a step leaves reductions under way."""
    found: dict[str, None] = {}
    for piece in job.pieces.all_pieces:
        for levels, _ in _shares(job, piece, trainable=True):
            if levels.shards:
                found[SHARDS] = None
                if levels.replicas:
                    found[REPLICAS] = None
            elif levels.replicas and job.training.overlap_grad_reduce:
                found[SUMS] = None
    return list(found)


def _shares(job: Job, piece: ModelPiece, *, trainable: bool = False) -> Iterator[tuple[Levels, int]]:
    """Who shares the parameters of a piece, and how many elements a rank has without shards."""
    for layers in WORDS:
        numel = job.numel((piece,), layers, trainable=trainable)
        if numel:
            yield job.levels_of(layers), numel


def _gathered(job: Job, piece: ModelPiece) -> list[tuple[str, int]]:
    return [(levels.shards, numel) for levels, numel in _shares(job, piece) if levels.shards]


def _in_shards(job: Job, chunk: Chunk) -> list[int]:
    """Positions of pieces of which parameters lie in shards."""
    return [position for position, piece in enumerate(chunk.pieces) if _gathered(job, piece)]


@dataclass
class _GathersByClass:
    """Gathers of one pass over the pieces at ``order``, as many ahead as the job prefetches."""

    writer: OpWriter
    job: Job
    chunk: Chunk
    phase: str
    order: list[int]
    handles: list[list[OpHandle]] = field(default_factory=list)
    done: list[OpHandle | None] = field(default_factory=list)

    def use(self, position: int) -> None:
        """What follows needs the piece there; the next is on its way."""
        if position not in self.order:
            return
        number = self.order.index(position)
        self._issue_up_to(number)
        self.writer.wait_for(*self.handles[number])
        for _, whole in self._tensors(position):
            copy = compute("aten::split_with_sizes_copy", [whole], [whole], op_class="copy", module="fsdp")
            self.writer.compute(copy, phase=self.phase, layer=self.chunk.layers[position])
        self._issue_up_to(number + self.job.training.prefetch)

    def used(self, position: int) -> None:
        """The piece there has been computed."""
        if position in self.order:
            self.done.append(self.writer.last)

    def _tensors(self, position: int) -> list[tuple[str, Tensor]]:
        dtype = DTYPES[self.job.training.param_gather_dtype]
        return [
            (group, Tensor((numel,), dtype))
            for group, numel in _gathered(self.job, self.chunk.pieces[position])
        ]

    def _issue_up_to(self, number: int) -> None:
        """A gather waits for the piece whose room it takes."""
        while len(self.handles) <= min(number, len(self.order) - 1):
            mine, held = len(self.handles), self.job.training.prefetch + 1
            position = self.order[mine]
            before = self.done[mine - held] if 0 <= mine - held < len(self.done) else None
            self.handles.append(
                [
                    self.writer.collective(
                        "all_gather", group, whole.num_bytes, stream=SHARDS, phase=self.phase,
                        layer=self.chunk.layers[position], waits=[before] if before is not None else [],
                        dtype=whole.dtype,
                    )
                    for group, whole in self._tensors(position)
                ]
            )  # fmt: skip


def _levels_of(job: Job, parameter: Parameter) -> Levels | None:
    """Who shares a parameter; None for tables."""
    layers = next((layers for layers in WORDS if layers == parameter.group), None)
    return None if layers is None else job.levels_of(layers)


def _summed_over(job: Job, parameter: Parameter) -> str:
    """The group that adds up the gradient of a parameter that is whole."""
    levels = _levels_of(job, parameter)
    return "" if levels is None or levels.shards else levels.replicas


def _sum_copies(writer: OpWriter, job: Job, chunk: Chunk) -> None:
    """Add up what tensor parallelism copies."""
    copied: dict[str, int] = {}
    for piece in reversed(chunk.pieces):
        for one in piece.parameters:
            levels = _levels_of(job, one)
            if one.tp_duplicated and one.trainable and levels is not None and levels.products:
                copied[levels.products] = copied.get(levels.products, 0) + one.numel
    beside = job.training.overlap_grad_reduce
    dtype, size = _sums_in(job)
    for group, numel in copied.items():
        writer.collective(
            all_reduce_of(job), group, numel * size, stream=SUMS if beside else COMPUTE, phase="grad_sync",
            dtype=dtype, waits=[writer.last] if beside and writer.last is not None else [],
        )  # fmt: skip


def _sums_in(job: Job) -> tuple[str, int]:
    """The dtype of sums of gradients, and bytes of an element."""
    precision = job.training.grad_reduce_dtype
    return DTYPES[precision], element_bytes(precision)


@dataclass
class _Scatters:
    """Gradients of what lies in shards."""

    writer: OpWriter
    job: Job
    before: list[OpHandle] = field(default_factory=list)

    def add(self, piece: ModelPiece, layer: int) -> None:
        """Gradients of a piece whose backward is done."""
        for levels, numel in _shares(self.job, piece, trainable=True):
            if levels.shards:
                self._scatter(levels, numel, layer)

    def _scatter(self, levels: Levels, numel: int, layer: int) -> None:
        """Over the shards, and what is left over their replicas; FSDP2 waits for the piece before."""
        writer = self.writer
        writer.wait_for(*self.before)
        dtype, size = _sums_in(self.job)
        grads, buffer = Tensor((numel,), self.job.shard.main_grad_dtype), Tensor((numel,), dtype)
        copy = compute("aten::chunk_cat", [grads], [buffer], op_class="copy", module="fsdp")
        reduced = writer.collective(
            "reduce_scatter", levels.shards, numel * size, stream=SHARDS, phase="grad_sync",
            layer=layer, waits=[writer.compute(copy, phase="bwd", layer=layer)], dtype=dtype,
        )  # fmt: skip
        self.before = [reduced]
        if levels.replicas:
            writer.collective(
                "all_reduce", levels.replicas, -(-numel // levels.num_shards) * size, stream=REPLICAS,
                phase="grad_sync", layer=layer, waits=[reduced], dtype=dtype,
            )  # fmt: skip
