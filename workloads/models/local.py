"""One rank's view of a model: which shard of every tensor it holds, for one microbatch."""

from __future__ import annotations

from dataclasses import field, replace
from functools import lru_cache

from simcore.outside import found_in
from simcore.records import dataclass
from workloads.models.op_tape import OpTape, Recompute
from workloads.models.pieces import LayerClass
from workloads.models.recompute import HeldOutput, RecomputeModule
from workloads.models.software import SoftwareSpec
from workloads.models.tables import TablesView
from workloads.models.tensors import Tensor

DTYPES = {
    "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "bfloat16",
    "nvfp4": "bfloat16", "int8": "int8",
}  # fmt: skip
#: What linear layers multiply in, by the precisions in which that is narrower than what is kept.
NARROW = {"fp8": "float8_e4m3fn", "nvfp4": "float4_e2m1fn_x2"}


def message_dtype(precision: str) -> str:
    """What gathers and reductions of a precision send: fp8 as it is, though 16 bits are kept of it."""
    return NARROW["fp8"] if precision == "fp8" else DTYPES[precision]


@dataclass(frozen=True)
class SharedClass:
    """How ranks share a class of layers: groups and sizes of tensor parallelism and of experts' owners."""

    products: str = ""
    num_products: int = 1
    owners: str = ""
    num_owners: int = 1


@dataclass(frozen=True)
class Shard:
    """Degrees and sizes as the layers need them.

    ``seq`` is the whole sequence; a rank holds ``seq / cp`` of it, between tensor-parallel regions
    ``seq / cp / tp`` where ``sequence_parallel``.  ``decoder_seq``: an encoder-decoder's second sequence (0:
    as long); ``encoder_seq`` its first, in the decoder's view.  ``etp``: tensor parallelism of experts.
    ``trainable``: "all", "none", "lora" (adapters of ``lora_rank`` beside the linear layers that match
    ``lora_targets``), or a regular expression over parameter names.  ``scattered``: residual sums lie in
    memory channel by channel, see Note [Order in memory] of ``kinds/patches.py``.  ``views``: by module what
    this rank holds of tables.  ``frozen``: classes of layers that are not trained; ``is_fixed``: this is one.
    ``shared``: how ranks share each class, where classes have strategies.  ``norm_group``: ranks whose batch
    norms have statistics of all their samples.
    """

    micro_batch: int
    seq: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    cp_style: str = "ring"
    precision: str = "bf16"
    grad_dtype: str = "fp32"
    recompute: Recompute = "none"
    recompute_modules: tuple[RecomputeModule, ...] = ()
    recompute_keeps: tuple[HeldOutput, ...] = ()
    tp_overlap: bool = False
    ep_overlap: bool = False
    software: SoftwareSpec = field(default_factory=SoftwareSpec)
    decoder_seq: int = 0
    encoder_seq: int = 0
    trainable: str = "all"
    lora_rank: int = 0
    lora_targets: str = r"linear_qkv|linear_proj|linear_fc1|linear_fc2"
    scattered: bool = False
    optimizer: str = "sgd"
    views: tuple[tuple[str, TablesView], ...] = ()
    frozen: tuple[LayerClass, ...] = ()
    is_fixed: bool = False
    shared: tuple[tuple[LayerClass, SharedClass], ...] = ()
    norm_group: int = 1

    @property
    def dtype(self) -> str:
        """Dtype of activations."""
        return DTYPES[self.software.fp8_beside if self.narrow else self.precision]

    @property
    def casts(self) -> bool:
        """Whether products read copies in 16 bits of what is kept in fp32 (autocast)."""
        return self.software.autocast and self.dtype != "float32"

    @property
    def wide_dtype(self) -> str:
        """Dtype of parameters, residual sums and norms."""
        return "float32" if self.casts else self.dtype

    @property
    def norm_dtype(self) -> str:
        """Dtype that norms over channels read and write: the wide one, unless the model casts before them."""
        return self.dtype if self.software.narrow_norms else self.wide_dtype

    @property
    def main_grad_dtype(self) -> str:
        """Dtype that weight gradients are kept in."""
        return DTYPES[self.grad_dtype]

    @property
    def recomputes_attention(self) -> bool:
        """Whether core attention, alone or among other modules, runs again before its backward."""
        return self.recompute == "selective" and "core_attn" in (self.recompute_modules or ("core_attn",))

    @property
    def narrow(self) -> str:
        """Dtype that linear layers multiply in where it is narrower than 16 bits, else ""."""
        return NARROW.get(self.precision, "")

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch that pass a tensor-parallel region of this rank."""
        return self.micro_batch * self.seq // self.cp

    @property
    def residual_tokens(self) -> int:
        """Tokens between tensor-parallel regions."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def local_seq(self) -> int:
        """Tokens of one sequence on this rank's context-parallel slice."""
        return self.seq // self.cp

    def tensor(self, *shape: int, dtype: str = "") -> Tensor:
        """An activation."""
        return Tensor(shape, dtype or self.dtype)

    def view_of(self, module: str) -> TablesView | None:
        """What this rank holds of the tables of that module; None: all of them."""
        return next((view for name, view in self.views if name == module), None)

    def of_class(self, layers: LayerClass) -> Shard:
        """The view of layers of that class."""
        found = replace(self, is_fixed=True) if layers in self.frozen else self
        own = dict(self.shared).get(layers)
        return found if own is None else replace(found, tp=own.num_products, ep=own.num_owners)

    def trains(self, parameter: str) -> bool:
        """Whether the parameter of that name is trained."""
        if self.is_fixed:
            return False
        if self.trainable in ("all", "none"):
            return self.trainable == "all"
        if self.trainable == "lora":
            return "lora_" in parameter
        return _finds(self.trainable, parameter, "training.trainable")

    def has_adapter(self, module: str) -> bool:
        """Whether a low-rank adapter stands beside the linear layer of that name."""
        return self.lora_rank > 0 and _finds(self.lora_targets, module, "training.lora_targets")

    def of_encoder(self) -> Shard:
        """The view of the encoder, from the decoder's."""
        return replace(self, seq=self.encoder_seq) if self.encoder_seq else self

    def of_decoder(self) -> Shard:
        """The view of the decoder of an encoder-decoder."""
        return replace(self, seq=self.decoder_seq or self.seq, encoder_seq=self.seq)

    def tape(self) -> OpTape:
        """An empty tape for one piece."""
        return OpTape(self.trains)


@lru_cache(maxsize=1 << 12)
def _finds(pattern: str, name: str, where: str) -> bool:
    return found_in(pattern, [name], where)[0]
