"""What a model is: its dimensions, and nothing about how it is trained or spread over GPUs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MlaSpec(_Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks and head sizes."""

    q_lora_rank: int = Field(default=0, ge=0)  # 0: queries are not compressed
    kv_lora_rank: PositiveInt
    qk_nope_head_size: PositiveInt
    qk_rope_head_size: PositiveInt
    v_head_size: PositiveInt


class MoeSpec(_Frozen):
    """Experts in place of the feed-forward block, in every layer from ``first_layer`` on, each ``every``-th.

    ``shared_ffn``: width of the experts that every token passes, together (0: none).  ``capacity_factor``
    None: dropless.  ``load``: tokens of the fullest expert over the mean (1: balanced).
    """

    num_experts: PositiveInt
    top_k: PositiveInt
    ffn: PositiveInt  # of one expert
    shared_ffn: int = Field(default=0, ge=0)
    first_layer: int = Field(default=0, ge=0)
    every: PositiveInt = 1
    capacity_factor: float | None = Field(default=None, gt=0)
    load: float = Field(default=1.0, ge=1.0)


class ModelSpec(_Frozen):
    """A transformer.  ``family`` picks the block; the rest are its dimensions (elements, not bytes).

    ``kv_heads`` 0 means as many as ``heads``; ``head_size`` 0 means ``hidden / heads``.  ``vocab`` as the
    tokenizer has it; frameworks pad it (see presets).  ``decoder_layers`` only for encoder-decoders (T5),
    ``image_size`` and ``patch_size`` only for ViT.
    """

    name: str = "model"
    family: Literal["gpt", "llama", "bert", "t5", "vit"] = "gpt"
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: int = Field(default=0, ge=0)
    head_size: int = Field(default=0, ge=0)
    ffn: PositiveInt
    gated: bool = False  # SwiGLU and kin: two up-projections
    activation: Literal["gelu", "relu", "silu", "squared_relu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    positions: Literal["learned", "rotary", "alibi", "none"] = "learned"
    max_positions: int = Field(default=0, ge=0)  # rows of learned positions; 0: the sequence length
    vocab: int = Field(default=0, ge=0)  # 0: no token embedding (ViT)
    tied_embeddings: bool = True
    sliding_window: int = Field(default=0, ge=0)  # 0: full attention
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    decoder_layers: int = Field(default=0, ge=0)
    image_size: int = Field(default=0, ge=0)
    patch_size: int = Field(default=0, ge=0)
    num_classes: int = Field(default=0, ge=0)

    @property
    def causal(self) -> bool:
        """Whether a token attends to earlier ones only."""
        return self.family in ("gpt", "llama")

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def size_per_head(self) -> int:
        """Elements of one head."""
        return self.head_size or self.hidden // self.heads
