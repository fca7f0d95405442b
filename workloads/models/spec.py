"""What a transformer is: its dimensions, and nothing about how it is trained or spread over GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from simcore.errors import InputError
from workloads.models.block import BLOCKS
from workloads.models.family import FAMILIES
from workloads.models.frozen import (
    Frozen,
    Heads,
    HeadsOrNone,
    Layers,
    LayersOrNone,
    OneOf,
    RowsOrNone,
    Size,
    Width,
    WidthOrNone,
)
from workloads.models.model import AnyModel


class MlaSpec(Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks and head sizes."""

    q_lora_rank: WidthOrNone = 0  # 0: queries are not compressed
    kv_lora_rank: Width
    qk_nope_head_size: Width
    qk_rope_head_size: Width
    v_head_size: Width


class MoeSpec(Frozen):
    """Experts in place of the feed-forward block, in every layer from ``first_layer`` on, each ``every``-th.

    ``shared_ffn``: width of the experts that every token passes, together (0: none); ``shared_gate``: their
    output is weighted by a gate.  ``bias``: products of experts add one, ``clamp``: both halves of what
    they gate are cut off at a value before (GPT-OSS).  ``capacity_factor`` None:
    dropless.  ``load``: tokens of the fullest expert over the mean (1: balanced).  ``top_groups``: a token's
    experts come from so many of ``num_groups`` equal groups (0: no groups; DeepSeek-V3, arXiv 2412.19437,
    section 2.1.2).  ``latent``: width of what experts read and write, with a projection there and back (0:
    the model's).
    """

    num_experts: Heads
    top_k: Heads
    ffn: Width  # of one expert
    shared_ffn: WidthOrNone = 0
    shared_gate: bool = False
    bias: bool = False
    clamp: bool = False
    latent: WidthOrNone = 0
    first_layer: LayersOrNone = 0
    every: Layers = 1
    capacity_factor: float | None = Field(default=None, gt=0, le=1 << 14)
    load: float = Field(default=1.0, ge=1.0, le=1 << 14)
    num_groups: HeadsOrNone = 0
    top_groups: HeadsOrNone = 0


class MambaSpec(Frozen):
    """State-space layers (Mamba-2, arXiv 2405.21060): ``heads`` of ``head_size`` elements, each with a
    ``state`` for every element; heads of a group share what they read and write the state by.

    ``conv``: tokens that the convolution before it sees.  ``chunk``: tokens within which the scan works on
    scores, as attention does, instead of on states.  ``normed``: a norm of groups is behind the scan.
    """

    heads: Heads
    head_size: Width = 64
    state: Width = 128
    groups: Heads = 8
    conv: Size = 4
    chunk: Size = 128
    normed: bool = True

    @property
    def inner(self) -> int:
        """Elements of all heads."""
        return self.heads * self.head_size

    @property
    def projected(self) -> int:
        """Columns of the projection before: gate, input, both of the state's, and time steps."""
        return 2 * self.inner + 2 * self.groups * self.state + self.heads


class DeltaSpec(Frozen):
    """Gated delta-rule layers (arXiv 2412.06464): ``heads`` whose states are ``key_size`` by ``value_size``;
    ``key_heads`` of queries and keys, each shared by equally many of them.

    ``conv``: tokens that the convolution before sees.
    """

    heads: Heads
    key_heads: Heads
    key_size: Width = 128
    value_size: Width = 128
    conv: Size = 4

    @property
    def inner(self) -> int:
        """Elements of all heads' values."""
        return self.heads * self.value_size

    @property
    def channels(self) -> int:
        """Columns of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_size + self.inner

    @property
    def projected(self) -> int:
        """Columns of the projection before: those, the output's gate, and two gates of each head."""
        return self.channels + self.inner + 2 * self.heads


class ModelSpec(AnyModel):
    """A transformer: stacks of layers between what its family begins and ends with.

    ``family`` picks these; the rest are dimensions (elements, not bytes).

    ``kv_heads`` 0 means as many as ``heads``; ``head_size`` 0 means ``hidden / heads``.  ``vocab`` as the
    tokenizer has it; frameworks pad it (see presets).  ``qkv_bias`` None: as ``bias``.  ``qk_norm``: norms of
    queries and keys, over a "head" or over all heads ("all").  ``attention_gate``: attention's output is
    weighted by a sigmoid of as many columns as queries have (Qwen3-Next).  ``post_norms``: norms behind both
    blocks, too (Gemma 2); ``embedding_norm``: one behind the embedding (BLOOM); ``layer_scale``: a scale of
    each channel of what a block adds (arXiv 2103.17239), under autocast; ``head_bias``: of the output layer
    (Phi).  ``parallel_block``: both blocks read the same residual (GPT-NeoX, Falcon, Phi), each behind a norm
    of its own or one ``shared_norm``.  ``global_every``: of sliding-window layers each n-th attends to
    everything (0: none does).  ``mtp_layers``: layers that predict further tokens (DeepSeek-V3).
    ``decoder_layers`` only for encoder-decoders (T5), ``image_size``, ``patch_size``, ``num_classes`` only
    for ViT, ``token_types`` only for BERT; ``relative_buckets``: distances that a learned bias of the scores
    tells apart (T5).  ``layer_pattern``: a letter for each block of each layer, in order, where layers
    differ: M state space (``mamba``), G gated delta rule (``delta``), C gated convolution (``gated_conv``),
    * attention, H state space and attention side by side, - feed-forward, E experts;
    as many letters a layer as there are for each of ``layers``.  ``mtp_pattern``: letters of a layer that
    predicts a further token; ``mtp_shared``: these layers are one.  A further block that was registered
    (``block.py``) has a key of its own.
    """

    family: Annotated[str, OneOf(FAMILIES)] = "gpt"
    layers: Layers
    hidden: Annotated[int, Field(gt=0, le=1 << 20)]
    heads: Heads
    kv_heads: HeadsOrNone = 0
    head_size: WidthOrNone = 0
    ffn: Width
    gated: bool = False  # SwiGLU and kin: two up-projections
    activation: Literal["gelu", "quick_gelu", "relu", "silu", "squared_relu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    bias: bool = True
    qkv_bias: bool | None = None
    qk_norm: Literal["", "head", "all"] = ""
    attention_gate: bool = False
    post_norms: bool = False
    embedding_norm: bool = False
    layer_scale: bool = False
    head_bias: bool = False
    parallel_block: bool = False
    shared_norm: bool = False
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    positions: Literal["learned", "rotary", "alibi", "relative", "none"] = "learned"
    max_positions: RowsOrNone = 0  # rows of learned positions; 0: the sequence length
    vocab: RowsOrNone = 0  # 0: no token embedding (ViT)
    token_types: RowsOrNone = 0
    relative_buckets: RowsOrNone = 0
    tied_embeddings: bool = True
    sliding_window: Annotated[int, Field(ge=0, le=1 << 32)] = 0  # 0: full attention
    global_every: LayersOrNone = 0
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    mtp_layers: LayersOrNone = 0
    mtp_pattern: Annotated[str, Field(max_length=64)] = ""
    mtp_shared: bool = False
    mamba: MambaSpec | None = None
    delta: DeltaSpec | None = None
    layer_pattern: Annotated[str, Field(max_length=1 << 14)] = ""
    decoder_layers: LayersOrNone = 0
    image_size: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    patch_size: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    num_classes: RowsOrNone = 0

    @classmethod
    def further(cls) -> Mapping[str, Any]:
        """What further blocks are described by, see ``block.py``."""
        return {block.key: block.spec for block in BLOCKS.values() if block.key}

    @property
    def num_layers(self) -> int:
        """Layers of both stacks."""
        return self.layers + self.decoder_layers

    @property
    def ties_ends(self) -> bool:
        """Whether the last stage has a copy of the embedding: for its output layer, or for layers that
        predict further tokens, which look those up (Megatron's ``mtp_process``).
        """
        return self.tied_embeddings or self.mtp_layers > 0

    @property
    def causal(self) -> bool:
        """Whether a token attends to earlier ones only."""
        return FAMILIES[self.family].causal

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def size_per_head(self) -> int:
        """Elements of one head."""
        return self.head_size or self.hidden // self.heads

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values add a bias."""
        return self.bias if self.qkv_bias is None else self.qkv_bias

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2 if self.patch_size else 0

    def letters(self, index: int) -> str:
        """Blocks of layer ``index`` by their letters; "" for a model without a pattern."""
        each = len(self.layer_pattern) // self.layers
        return self.layer_pattern[index * each : (index + 1) * each]

    def has_experts(self, index: int) -> bool:
        """Whether layer ``index`` has experts in place of the dense feed-forward block."""
        if self.layer_pattern:
            return "E" in self.letters(index)
        moe = self.moe
        return moe is not None and index >= moe.first_layer and (index - moe.first_layer) % moe.every == 0

    def window(self, index: int) -> int:
        """Tokens that a token of layer ``index`` attends to; 0: all."""
        if self.global_every and (index + 1) % self.global_every == 0:
            return 0
        return self.sliding_window

    def sequence(self, seq: int) -> int:
        """Tokens of one sample: ``seq``, or an image's patches and the class token."""
        return FAMILIES[self.family].sequence(self, seq)

    def sequences(self, seq: int, decoder_seq: int = 0) -> tuple[int, ...]:
        """Tokens of a sample's sequences: an encoder-decoder has two."""
        own = self.sequence(seq)
        return (own, decoder_seq or own) if self.decoder_layers else (own,)


def transformer_of(model: AnyModel, what: str) -> ModelSpec:
    """``model`` as a transformer.  InputError where it is none, which ``what`` needs."""
    if not isinstance(model, ModelSpec):
        raise InputError(f"{what} is for transformers; model {model.name!r} is a list of blocks")
    return model
