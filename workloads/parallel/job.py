"""Everything that the parts of a generator need to know about a job."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from typing import Final, Protocol

from simcore.records import dataclass
from workloads.models.build import pieces_of
from workloads.models.local import DTYPES, Shard, SharedClass
from workloads.models.model import AnyModel
from workloads.models.offload import offloaded
from workloads.models.pieces import LayerClass, ModelPiece, ModelPieces
from workloads.models.software import SoftwareSpec
from workloads.models.tables import TablesView
from workloads.models.tensors import ELEMENT_BYTES
from workloads.parallel.mesh import Mesh
from workloads.parallel.spec import FSDP, ParallelSpec, TrainingSpec
from workloads.parallel.stages import Chunk, chunks_of, split_layers
from workloads.parallel.strategy import WORDS, Levels, StrategySpec, groups_of

#: Values in fp32 that an optimizer keeps of each parameter.
MOMENTS: Final = {"adam": 2, "sgd": 0, "momentum": 1, "adagrad": 1, "lars": 1, "muon": 1, "none": 0}


def element_bytes(precision: str) -> int:
    """Bytes of one element of a precision by its short name ("bf16"); fp8 counts 1."""
    return 1 if precision == "fp8" else ELEMENT_BYTES[DTYPES[precision]]


class Described(Protocol):
    """What a description, a published run and a planner's candidate have in common."""

    @property
    def model(self) -> AnyModel:
        """The model."""

    @property
    def parallel(self) -> ParallelSpec:
        """Degrees."""

    @property
    def training(self) -> TrainingSpec:
        """How it is trained."""

    @property
    def software(self) -> SoftwareSpec:
        """The build."""


@dataclass(frozen=True)
class Job:
    """A model, how it is trained, how it is spread, and the build that runs it.

    ``views``: what a rank holds of tables, see ``members.py``.
    ``as_launched``: with what Megatron-Core does beside the model's kernels, as ``megatron_step.py`` has it.
    """

    model: AnyModel
    parallel: ParallelSpec
    training: TrainingSpec
    software: SoftwareSpec
    as_launched: bool = False
    views: tuple[tuple[str, TablesView], ...] = ()

    @classmethod
    def of(cls, described: Described) -> Job:
        """The job of whatever has its four parts."""
        return cls(described.model, described.parallel, described.training, described.software)

    @cached_property
    def mesh(self) -> Mesh:
        """Ranks and groups."""
        return Mesh(self.parallel)

    @cached_property
    def group_sizes(self) -> tuple[tuple[str, int], ...]:
        """Ranks of each process group."""
        groups = self.mesh.groups().items()
        return tuple(sorted((name, prod(size for size, _ in dims)) for name, dims in groups))

    @cached_property
    def shard(self) -> Shard:
        """One rank's view of the model."""
        p, t = self.parallel, self.training
        return Shard(
            micro_batch=t.micro_batch, seq=t.seq, tp=p.tp, cp=p.cp, ep=p.ep, etp=self.mesh.etp,
            sequence_parallel=p.sequence_parallel and p.tp > 1, cp_style=p.cp_style, precision=t.precision,
            grad_dtype=t.grad_dtype, recompute=t.recompute,
            norm_group=p.norm_group,
            recompute_modules=t.recompute_modules, recompute_keeps=t.recompute_keeps,
            tp_overlap=t.tp_overlap, ep_overlap=t.ep_overlap,
            software=self.software, decoder_seq=t.decoder_seq, trainable=t.trainable, lora_rank=t.lora_rank,
            lora_targets=t.lora_targets, optimizer=t.optimizer, views=self.views, frozen=t.frozen,
            shared=self._shared,
        )  # fmt: skip

    @property
    def by_class(self) -> bool:
        """Whether classes of layers have strategies of their own."""
        return self.parallel.strategy.has_levels

    def levels_of(self, layers: LayerClass) -> Levels:
        """Who shares a class of layers; all ranks have what no strategy is said of, and tables apart."""
        return _levels(self.parallel.strategy, layers, self.mesh.local_ranks, self.parallel.world_size)

    @property
    def _shared(self) -> tuple[tuple[LayerClass, SharedClass], ...]:
        if not self.by_class:
            return ()
        found = ((layers, self.levels_of(layers)) for layers in WORDS)
        return tuple(
            (layers, SharedClass(one.products, one.num_products, one.owners, one.num_owners))
            for layers, one in found
        )

    @cached_property
    def pieces(self) -> ModelPieces:
        """The model's pieces."""
        one_stage = self.parallel.pp == 1 or self.parallel.pipeline.ends_meet
        made = _pieces_of(self.model, self.shard, self._recomputed, one_stage)
        if not self.training.offload:
            return made
        moved = {one: offloaded(one, self.training.offload) for one in dict.fromkeys(made.layers)}
        chosen = self._first_of_stages(self.training.offload_layers)
        return replace(
            made,
            layers=tuple(
                moved[piece] if chosen is None or number in chosen else piece
                for number, piece in enumerate(made.layers)
            ),
        )

    @property
    def _recomputed(self) -> frozenset[int] | None:
        """Layers that run again where not all do."""
        return self._first_of_stages(self.training.recompute_layers)

    def _first_of_stages(self, each: int) -> frozenset[int] | None:
        """The first ``each`` layers of every (virtual) stage; None for all (-1)."""
        if each < 0:
            return None
        counts = split_layers(self.model.num_layers, self.parallel)
        first = [sum(counts[:stage]) for stage in range(len(counts))]
        return frozenset(
            start + layer
            for start, count in zip(first, counts, strict=True)
            for layer in range(min(each, count))
        )

    @cached_property
    def chunks(self) -> list[list[Chunk]]:
        """``[stage][chunk]``."""
        return chunks_of(self.pieces, self.parallel)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of each replica."""
        return self.training.num_microbatches(self.parallel)

    @property
    def reduces_at_the_end(self) -> bool:
        """Whether FSDP's gradients are added up in full and reduced behind a stage's last backward.

        So FSDP2 in a pipeline of PyTorch's (``backward_maybe_with_nosync`` of ``pipelining/stage.py``).
        """
        return self.is_fsdp and self.training.sharding == "fsdp2" and self.parallel.pp > 1

    @property
    def pipelined_by_torch(self) -> bool:
        """Whether stages are those of ``torch.distributed.pipelining``."""
        return self.reduces_at_the_end or (self.training.p2p_per_peer and self.parallel.pp > 1)

    @property
    def p2p_per_peer(self) -> bool:
        """Whether messages with one stage share a stream; see Note [One stream a peer] of ``messages.py``."""
        p = self.parallel
        return self.training.p2p_per_peer and (p.virtual_stages > 1 or p.pipeline.message_by_message)

    @property
    def batches_p2p(self) -> bool:
        """Whether the host waits for each exchange; see Note [Exchanges in turn] of ``messages.py``."""
        return self.as_launched and self.parallel.pp > 1 and self.parallel.virtual_stages == 1

    @property
    def overlaps_passes(self) -> bool:
        """Whether forwards and backwards take turns behind their exchanges; see ``passes.py``.

        Not where gradients are reduced behind every backward: nobody's DualPipe does that.
        """
        reduces = self.reduces_each or self.training.reduce_every_microbatch
        return self.training.ep_overlap and self.parallel.pipeline.overlaps_passes and not reduces

    @property
    def is_fsdp(self) -> bool:
        """Whether parameters are sharded and gathered unit by unit."""
        return self.training.sharding in FSDP and self.mesh.replicas > 1

    @property
    def by_megatron_fsdp(self) -> bool:
        """Whether the shards are Megatron-FSDP's, on Megatron-Core's layers."""
        software, kind = self.software, (self.training.sharding, self.training.engine)
        built = software.transformer_engine and not software.planned_memory
        return self.is_fsdp and built and kind == ("zero3", "megatron")

    @property
    def by_deepspeed(self) -> bool:
        """Whether DeepSpeed reduces whole gradients."""
        return self.training.engine == "deepspeed" and not self.is_fsdp

    @property
    def reduces_each(self) -> bool:
        """Whether each microbatch's gradients are reduced apart from others': FSDP, DeepSpeed's ZeRO-2."""
        return self.is_fsdp or (self.by_deepspeed and self.training.sharding == "zero2")

    @property
    def gradients_go_in_step(self) -> bool:
        """Whether gradients are autograd's, made by a step's first backward and released with its end: where
        they start empty and no product adds them to a buffer.
        """
        one_rank = self.training.sharding in FSDP and not self.is_fsdp
        there = self.gradients_start_empty and not self.software.grad_accumulation_fusion
        return there and (self.by_zero1 or self.by_ddp or one_rank) and not self.by_class

    @property
    def gradients_of_one_pass(self) -> bool:
        """Whether they are there behind the only backward alone."""
        return self.gradients_go_in_step and self.parallel.pp == 1 and self.num_microbatches == 1

    @property
    def by_zero1(self) -> bool:
        """Whether DeepSpeed shards optimizer states alone."""
        return self.by_deepspeed and self.training.sharding == "zero1"

    @property
    def by_ddp(self) -> bool:
        """Whether PyTorch's DDP reduces gradients, through buckets (without ``gradient_as_bucket_view``)."""
        training = self.training
        buckets = training.bucket_bytes > 0 and training.bucket_parameters != 0
        return training.sharding == "ddp" and buckets

    @property
    def gradients_start_empty(self) -> bool:
        """Whether a step's first gradient becomes a parameter's, as autograd has it.

        So PyTorch's DDP, FSDP on one rank, and DeepSpeed where gradients have the model's dtype.  Megatron
        has a buffer to which each is added, as has DeepSpeed for sums in fp32; under FSDP each is reduced.
        """
        training = self.training
        narrow = self.by_deepspeed and self.shard.main_grad_dtype == self.shard.dtype
        return not self.is_fsdp and (training.sharding in FSDP or training.bucket_bytes > 0 or narrow)

    def numel(self, pieces: tuple[ModelPiece, ...], group: str = "", *, trainable: bool = False) -> int:
        """Elements of the parameters of ``pieces`` on one rank before sharding.

        Of one ``group`` or of all but tables, which have their own (``members.py``); with ``trainable``
        without those that are frozen.
        """
        return sum(
            numel
            for piece in pieces
            for (of, trains), numel in piece.numel.items()
            if of == (group or of) and (group or of != "table") and (trains or not trainable)
        )


@lru_cache(maxsize=256)
def _levels(strategy: StrategySpec, layers: LayerClass, local: int, ranks: int) -> Levels:
    words = strategy.words(layers) or ("ddp", "ddp")
    return groups_of(("ddp", "ddp") if layers == "embedding" else words, local, ranks)


@lru_cache(maxsize=8)
def _pieces_of(
    model: AnyModel, shard: Shard, recomputed: frozenset[int] | None, one_stage: bool
) -> ModelPieces:
    """Jobs that differ in what concerns no rank's kernels share them."""
    return pieces_of(model, shard, recomputed=recomputed, one_stage=one_stage)
