"""How a model is trained and spread over GPUs: degrees, schedule, sharding, precision, overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simcore.graph.schedules import SCHEDULES, Placement, ScheduleKind
from workloads.models.frozen import Extensible, Frozen, LayersOrNone, OneOf, Rows, RowsOrNone, WidthOrNone
from workloads.models.model import AnyModel
from workloads.models.offload import OffloadModule
from workloads.models.pieces import LayerClass
from workloads.models.recompute import HeldOutput, RecomputeModule
from workloads.models.software import Fp8Recipe
from workloads.parallel.axis import AXES, ORDER, further_axes
from workloads.parallel.strategy import StrategySpec

#: Shardings under which each rank has its gradients, and so its parameters, whole.
WHOLE_GRADIENTS: Final = ("ddp", "zero1")

#: Shardings under which each rank has a part of the parameters.
FSDP: Final = ("zero3", "fsdp1", "fsdp2")


_Stages = Annotated[int, Field(gt=0, le=1024)]


class ParallelSpec(Extensible):
    """Degrees of parallelism; world size = tp x cp x pp x dp.  Experts: ep divides dp x cp (x tp / etp).

    A further axis that was registered (``axis.py``) has a key of its name here.

    ``dp_shard``: ranks over which ZeRO/FSDP shards (0: all of dp); dp / dp_shard replicas (HSDP).
    ``virtual_stages``: model chunks per pipeline stage.  ``stage_layers``: layers of each (virtual) stage in
    order, empty for an even split; ``embedding_as_layer``/``head_as_layer``: they count as a layer there.
    ``strategy``: what each class of layers does on two levels, of lists of blocks.
    """

    tp: Rows = 1
    pp: _Stages = 1
    dp: Rows = 1
    cp: Rows = 1
    ep: Rows = 1
    etp: RowsOrNone = 0  # tensor parallelism of experts; 0: as tp
    dp_shard: RowsOrNone = 0
    sequence_parallel: bool = False
    virtual_stages: _Stages = 1
    microbatch_group: RowsOrNone = 0  # interleaved: microbatches a chunk takes at once; 0: pp
    schedule: Annotated[str, OneOf(SCHEDULES)] = "1f1b"
    stage_layers: tuple[int, ...] = ()
    embedding_as_layer: bool = False
    head_as_layer: bool = False
    cp_style: Literal["ring", "all_gather", "ulysses", "torch"] = "ring"
    norm_group: Annotated[int, Field(ge=1, le=8)] = 1  # neighbours along dp with one batch norm's statistics
    order: str = ORDER  # fastest-varying axis first
    strategy: StrategySpec = StrategySpec()

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the world, the fastest first; further ones that ``order`` does not name are outermost."""
        named = tuple(self.order.split("-"))
        return (*named, *(axis.name for axis in further_axes() if axis.name not in named))

    @classmethod
    def further(cls) -> Mapping[str, Any]:
        """Degrees of further axes."""
        return {axis.name: Rows for axis in further_axes()}

    @property
    def further_degrees(self) -> dict[str, int]:
        """Degrees of the further axes along which there is more than one rank."""
        return {axis.name: n for axis in further_axes() if (n := self.degree(axis.name)) > 1}

    def degree(self, axis: str) -> int:
        """Ranks along an axis."""
        return int(getattr(self, axis, 1))

    @property
    def pipeline(self) -> ScheduleKind:
        """What is known of the schedule."""
        return SCHEDULES[self.schedule]

    @property
    def placement(self) -> Placement:
        """How model chunks lie on stages."""
        return self.pipeline.placement

    @property
    def copies(self) -> int:
        """Copies of each parameter among the stages of a pipeline."""
        return self.pipeline.copies

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return math.prod(self.degree(axis.name) for axis in AXES.values() if axis.is_dense)

    @property
    def batch_ways(self) -> int:
        """Among how many a step's samples are dealt out."""
        return math.prod(self.degree(axis.name) for axis in AXES.values() if axis.splits_batch)


def _words(said: object) -> object:
    """Words of a text, as ``--set training.frozen=embedding,dense`` says them."""
    return tuple(word.strip() for word in said.split(",")) if isinstance(said, str) else said


def _no_recipe(value: Any) -> Any:
    """The precision itself; whose scales fp8 has is said elsewhere."""
    if value in get_args(Fp8Recipe):
        raise PydanticCustomError(
            "recipe", "say training.precision=fp8 with software.fp8_recipe={recipe}", {"recipe": value}
        )
    return value


Precision = Annotated[
    Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4", "int8"], BeforeValidator(_no_recipe)
]


class TrainingSpec(Frozen):
    """One step: batch, precision, memory savings, and what overlaps.

    ``sharding``: what data-parallel ranks split: nothing ("ddp"), optimizer states ("zero1"), gradients too
    ("zero2"), parameters too ("zero3": DeepSpeed, "fsdp1", "fsdp2": PyTorch).  ``reshard_after_forward``
    False keeps gathered parameters until backward.  ``prefetch``: units gathered ahead.  ``*_dtype`` name
    what gradients are reduced in, parameters gathered in, and what the optimizer keeps.
    ``trainable``: "all", "none" (forward only), "lora" (adapters of ``lora_rank`` beside the linear layers
    that match ``lora_targets``), or a regular expression over parameter names.  ``frozen``: classes of layers
    of a list of blocks that are not trained.  ``decoder_seq``: tokens of an encoder-decoder's second sequence
    (0: as ``seq``).
    """

    micro_batch: Annotated[int, Field(gt=0, le=1 << 22)] = 1
    global_batch: Annotated[int, Field(gt=0, le=1 << 40)] = 1
    seq: Rows = 2048
    decoder_seq: RowsOrNone = 0
    precision: Precision = "bf16"
    recompute: Literal["none", "selective", "full", "ops"] = "none"
    recompute_modules: tuple[RecomputeModule, ...] = ()  # of "selective"; none: core attention
    recompute_keeps: tuple[HeldOutput, ...] = ()  # outputs that "full" keeps
    recompute_layers: int = Field(default=-1, ge=-1, le=4096)  # how many layers of each stage; -1: all
    offload: tuple[OffloadModule, ...] = ()  # what of layers waits for backward in the host's memory
    offload_layers: int = Field(default=-1, ge=-1, le=4096)  # of how many layers of each stage; -1: all
    sharding: Literal["ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"] = "ddp"
    reshard_after_forward: bool = True
    prefetch: LayersOrNone = 1
    fsdp_ends_apart: bool = False  # embedding and head (with its norm) are units of their own
    gathers_in_place: bool = False  # what was gathered is used where it is, gradients are reduced from there
    list_collectives: bool = False  # a collective per parameter, with a tensor per rank (early DeepSpeed)
    grad_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"  # accumulation and storage
    grad_reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    param_gather_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "bf16"
    optimizer: Literal["adam", "sgd", "momentum", "adagrad", "lars", "muon", "none"] = "adam"
    optimizer_bytes_per_parameter: int = Field(default=12, ge=0, le=1024)  # master copy and moments
    wide_ends: bool = False  # embedding and head have fp32 states and gradients; in memory, not in time
    optimizer_offload: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of the states that the host updates
    clip_gradients: bool = True
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_p2p: bool = False
    p2p_per_peer: bool = False  # one stream for all messages with one stage, as torch's pipelines have it
    tp_overlap: bool = False  # all_gather/reduce_scatter split and hidden under the GEMM (TE user buffers)
    ep_overlap: bool = False  # experts' all_to_all runs beside another microbatch's compute
    scatter_gather_p2p: bool = False
    bucket_parameters: int = Field(
        default=-1, ge=-1, le=1 << 48
    )  # elements; 0: one bucket, -1: max(40M, 1M x dp)
    bucket_buffer: bool = False  # ZeRO-1, too, copies gradients to a buffer of a whole bucket
    bucket_bytes: int = Field(
        default=0, ge=0, le=1 << 48
    )  # PyTorch's DDP: 25 MiB (the first 1 MiB); 0: as above
    engine: Literal["megatron", "deepspeed"] = "megatron"  # whose habits of keeping tensors
    reduce_every_microbatch: bool = False  # gradient accumulation without no_sync
    # Microbatches whose gradients of the output layer's weight wait for the last one's (0: all, -1: none):
    # what they need is held; when they are computed a step's time does not tell.
    deferred_head_gradients: int = Field(default=-1, ge=-1, le=1 << 16)
    trainable: str = "all"
    frozen: Annotated[tuple[LayerClass, ...], BeforeValidator(_words)] = ()
    lora_rank: WidthOrNone = 0
    lora_targets: str = "linear_qkv|linear_proj|linear_fc1|linear_fc2"

    def sequences(self, model: AnyModel) -> tuple[int, ...]:
        """Tokens of a sample: an encoder-decoder has two sequences, an image patches and a class token."""
        return model.sequences(self.seq, self.decoder_seq)

    def num_microbatches(self, parallel: ParallelSpec) -> int:
        """Microbatches per data-parallel replica; exact only if the batch divides (checked elsewhere)."""
        return self.global_batch // (self.micro_batch * parallel.batch_ways)
