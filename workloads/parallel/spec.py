"""How a model is trained and spread over GPUs: degrees, schedule, sharding, precision, overlap."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from simcore.graph.schedules import Placement
from workloads.models.recompute import RecomputeModule


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ParallelSpec(_Frozen):
    """Degrees of parallelism; world size = tp x cp x pp x dp.  Experts: ep divides dp x cp (x tp / etp).

    ``dp_shard``: ranks over which ZeRO/FSDP shards (0: all of dp); dp / dp_shard replicas (HSDP).
    ``virtual_stages``: model chunks per pipeline stage.  ``stage_layers``: layers of each (virtual) stage in
    order, empty for an even split; ``embedding_as_layer``/``head_as_layer``: they count as a layer there.
    """

    tp: PositiveInt = 1
    pp: PositiveInt = 1
    dp: PositiveInt = 1
    cp: PositiveInt = 1
    ep: PositiveInt = 1
    etp: int = Field(default=0, ge=0)  # tensor parallelism of experts; 0: as tp
    dp_shard: int = Field(default=0, ge=0)
    sequence_parallel: bool = False
    virtual_stages: PositiveInt = 1
    microbatch_group: int = Field(default=0, ge=0)  # interleaved: microbatches a chunk takes at once; 0: pp
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "dualpipe", "dualpipe_v", "zb_v"] = (
        "1f1b"
    )
    stage_layers: tuple[int, ...] = ()
    embedding_as_layer: bool = False
    head_as_layer: bool = False
    cp_style: Literal["ring", "all_gather", "ulysses", "torch"] = "ring"
    order: str = "tp-cp-ep-dp-pp"  # fastest-varying axis first

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the world, the fastest first."""
        return tuple(self.order.split("-"))

    @property
    def placement(self) -> Placement:
        """How model chunks lie on stages."""
        if self.schedule == "dualpipe":
            return "both_ways"
        return "v" if self.schedule in ("dualpipe_v", "zb_v") else "loop"

    @property
    def copies(self) -> int:
        """Copies of each parameter among the stages of a pipeline."""
        return 2 if self.placement == "both_ways" else 1

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.pp * self.dp * self.cp


class TrainingSpec(_Frozen):
    """One step: batch, precision, memory savings, and what overlaps.

    ``sharding``: what data-parallel ranks split: nothing ("ddp"), optimizer states ("zero1"), gradients too
    ("zero2"), parameters too ("zero3": DeepSpeed, "fsdp1", "fsdp2": PyTorch).  ``reshard_after_forward``
    False keeps gathered parameters until backward.  ``prefetch``: units gathered ahead.  ``*_dtype`` name
    what gradients are reduced in, parameters gathered in, and what the optimizer keeps.
    ``trainable``: "all", "none" (forward only), "lora" (adapters of ``lora_rank`` beside the linear layers
    that match ``lora_targets``), or a regular expression over parameter names.  ``decoder_seq``: tokens of an
    encoder-decoder's second sequence (0: as ``seq``).
    """

    micro_batch: PositiveInt = 1
    global_batch: PositiveInt = 1
    seq: PositiveInt = 2048
    decoder_seq: int = Field(default=0, ge=0)
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8"] = "bf16"
    recompute: Literal["none", "selective", "full", "ops"] = "none"
    recompute_modules: tuple[RecomputeModule, ...] = ()  # of "selective"; none: core attention
    recompute_layers: int = Field(default=-1, ge=-1)  # how many layers of each stage; -1: all
    sharding: Literal["ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"] = "ddp"
    reshard_after_forward: bool = True
    prefetch: int = Field(default=1, ge=0)
    fsdp_ends_apart: bool = False  # embedding and head (with its norm) are units of their own
    list_collectives: bool = False  # a collective per parameter, with a tensor per rank (early DeepSpeed)
    grad_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"  # accumulation and storage
    grad_reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    param_gather_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "bf16"
    optimizer: Literal["adam", "sgd", "none"] = "adam"
    optimizer_bytes_per_parameter: int = Field(default=12, ge=0)  # master copy and moments
    clip_gradients: bool = True
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_p2p: bool = False
    p2p_per_peer: bool = False  # one stream for all messages with one stage, as torch's pipelines have it
    tp_overlap: bool = False  # all_gather/reduce_scatter split and hidden under the GEMM (TE user buffers)
    ep_overlap: bool = False  # experts' all_to_all runs beside another microbatch's compute
    scatter_gather_p2p: bool = False
    bucket_parameters: int = Field(default=-1, ge=-1)  # elements; 0: one bucket, -1: max(40M, 1M x dp)
    bucket_bytes: int = Field(default=0, ge=0)  # PyTorch's DDP: 25 MiB (the first 1 MiB); 0: as above
    engine: Literal["megatron", "deepspeed"] = "megatron"  # whose habits of keeping tensors
    reduce_every_microbatch: bool = False  # gradient accumulation without no_sync
    trainable: str = "all"
    lora_rank: int = Field(default=0, ge=0)
    lora_targets: str = "linear_qkv|linear_proj|linear_fc1|linear_fc2"

    def num_microbatches(self, parallel: ParallelSpec) -> int:
        """Microbatches per data-parallel replica; exact only if the batch divides (checked elsewhere)."""
        return self.global_batch // (self.micro_batch * parallel.dp)
