"""Blocks: what a layer has between a norm and a residual sum.  Each stands in a file of ``blocks/``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol

from simcore.records import dataclass
from simcore.registry import Registry
from workloads.models.frozen import Frozen

if TYPE_CHECKING:
    from workloads.models.local import Shard
    from workloads.models.op_tape import OpTape
    from workloads.models.spec import ModelSpec
    from workloads.models.tensors import Tensor

Place = Literal["attention", "feed_forward"]


class BlockWriter(Protocol):
    """Writes a block's ops: ``x [tokens, hidden]`` to the same.

    ``index`` of the layer, and whether a token attends to earlier ones only (``causal``).
    """

    def __call__(
        self,
        tape: OpTape,
        shard: Shard,
        model: ModelSpec,
        x: Tensor,
        module: str,
        *,
        index: int,
        causal: bool,
    ) -> Tensor:
        """The block's output."""


@dataclass(frozen=True)
class LayerBlock:
    """A block and the place that it takes in a layer.

    ``key`` of the section ``model`` under which its dimensions stand, a ``spec``; "" for the block that is
    at a place where no other is.  ``is_in(model, index)``: whether layer ``index`` has it in place of that;
    nothing to say of a block that only a pattern of layers names.
    ``multiply_adds(model, index, seq, causal_once)``: of a token's forward, as :func:`model_flops` counts.
    ``check(model, where)``: InputError for dimensions that do not fit.
    ``adds_bias``: the residual sum behind it adds the model's bias.  ``symbol``: its letter in a pattern of
    layers.  ``module`` and ``norm``: what the layer calls it and the norm before it, where not as its place.
    """

    name: str
    place: Place
    write: BlockWriter
    multiply_adds: Callable[[ModelSpec, int, int, bool], float]
    key: str = ""
    spec: type[Frozen] = Frozen
    is_in: Callable[[ModelSpec, int], bool] = lambda *_: False
    check: Callable[[ModelSpec, str], None] = lambda *_: None
    adds_bias: bool = True
    symbol: str = ""
    module: str = ""
    norm: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """Modules of its norm and of itself within a layer."""
        norm, module = _MODULES[self.place]
        return self.norm or norm, self.module or module


#: Modules of norm and block at each place (megatron/core/transformer/transformer_layer.py).
_MODULES: Final[dict[Place, tuple[str, str]]] = {
    "attention": ("input_layernorm", "self_attention"),
    "feed_forward": ("pre_mlp_layernorm", "mlp"),
}

#: Blocks by name.
BLOCKS: Registry[LayerBlock] = Registry("block", "workloads.models.blocks")


def register(block: LayerBlock) -> LayerBlock:
    """Make a block known."""
    return BLOCKS.register(block.name, block)


def block_of(model: ModelSpec, place: Place, index: int) -> LayerBlock:
    """The block that layer ``index`` has at a place, of a model without a pattern."""
    return _chosen([block for block in BLOCKS.values() if block.place == place], model, index)


def blocks_of(model: ModelSpec, index: int, letters: str | None = None) -> tuple[LayerBlock, ...]:
    """The blocks of layer ``index`` in order, each behind a norm and added to the residual.

    ``letters``: of a layer that is none of the pattern's own.  Without a pattern attention and feed-forward.
    """
    letters = model.letters(index) if letters is None else letters
    if not letters:
        return block_of(model, "attention", index), block_of(model, "feed_forward", index)
    return tuple(
        _chosen([block for block in BLOCKS.values() if block.symbol == letter], model, index)
        for letter in letters
    )


def _chosen(here: list[LayerBlock], model: ModelSpec, index: int) -> LayerBlock:
    """The special block that a layer has among those ``here``, or else the usual one."""
    special = (block for block in here if block.key and block.is_in(model, index))
    return next(special, None) or next((block for block in here if not block.key), here[0])
