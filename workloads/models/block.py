"""Blocks: what a layer has between a norm and a residual sum.  Each stands in a file of ``blocks/``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

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
    at a place where no other is.  ``is_in(model, index)``: whether layer ``index`` has it.
    ``multiply_adds(model, index, seq, causal_once)``: of a token's forward, as :func:`model_flops` counts.
    ``check(model, where)``: InputError for dimensions that do not fit.
    ``adds_bias``: the residual sum behind it adds the model's bias.
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


#: Blocks by name.
BLOCKS: Registry[LayerBlock] = Registry("block", "workloads.models.blocks")


def register(block: LayerBlock) -> LayerBlock:
    """Make a block known."""
    return BLOCKS.register(block.name, block)


def block_of(model: ModelSpec, place: Place, index: int) -> LayerBlock:
    """The block that layer ``index`` has at a place."""
    here = [block for block in BLOCKS.values() if block.place == place]
    special = (block for block in here if block.key and block.is_in(model, index))
    return next(special, None) or next(block for block in here if not block.key)
