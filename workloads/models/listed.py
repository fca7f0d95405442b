"""A model as a list of blocks of any kind: what each is made of stands in a file of ``kinds/``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, Final

from pydantic import Field, SerializeAsAny, field_validator

from simcore.errors import InputError
from simcore.records import dataclass
from simcore.registry import Registry
from workloads.models.checked import checked
from workloads.models.frozen import Frozen
from workloads.models.local import Shard
from workloads.models.model import AnyModel
from workloads.models.op_tape import OpTape
from workloads.models.pieces import LayerClass
from workloads.models.tensors import Tensor


class BlockSpec(Frozen):
    """A block of a list: its kind, how often it comes, and what modules of it are called ("" for its
    kind).
    """

    block: str
    repeat: Annotated[int, Field(ge=1, le=4096)] = 1
    name: Annotated[str, Field(max_length=100)] = ""

    @property
    def times(self) -> int:
        """How often it comes."""
        return self.repeat


@dataclass
class Passage:
    """What has been computed when a block's turn comes: it writes its ops on ``tape`` and leaves a new ``x``.

    ``x``: the main stream, images ``[batch, channels, height, width]``, tokens ``[batch, tokens, width]`` or
    features ``[batch, width]``.  ``trains``: something before it does, so that it needs a gradient.
    ``beside``: tensors that blocks left for later ones, by name.  ``module``: what the block's modules are
    called; ``index``: which of its repetitions this is.  ``scattered``: x lies in memory in another order
    than its shape says (see Note [Order in memory] of ``kinds/patches.py``).
    """

    shard: Shard
    tape: OpTape
    x: Tensor
    module: str = ""
    index: int = 0
    trains: bool = False
    scattered: bool = False
    beside: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Samples."""
        return self.x.shape[0]


@dataclass(frozen=True)
class BlockKind:
    """A kind of block by ``name``, described by a ``spec``.

    ``write(at, spec)``: the ops of one repetition.  ``layer_class``: whose strategy holds for it.
    ``inputs``: it says what a sample brings along and launches nothing; a GPU trains on as many ``samples``
    of that at once.  ``beside``: what it makes goes not on the main stream.
    ``splits``: tensor-parallel ranks have parts of its products; of other kinds each has all.
    ``check(spec, where)``: InputError for values that do not fit each other.
    """

    name: str
    spec: type[BlockSpec]
    write: Callable[[Passage, Any], None]
    layer_class: LayerClass = "dense"
    inputs: bool = False
    samples: int = 0
    beside: bool = False
    splits: bool = False
    check: Callable[[Any, str], None] = lambda *_: None


#: Kinds of blocks by name.
KINDS: Registry[BlockKind] = Registry("kind of block", "workloads.models.kinds")


def register(kind: BlockKind) -> BlockKind:
    """Make a kind of block known."""
    return KINDS.register(kind.name, kind)


#: No model has as many blocks, each counted as often as it comes.
_MOST_BLOCKS: Final = 4096


class BlockModel(AnyModel):
    """Blocks in the order in which a sample passes them; the last one ends with the loss."""

    blocks: tuple[SerializeAsAny[BlockSpec], ...]

    @field_validator("blocks", mode="before")
    @classmethod
    def _as_kinds(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple) or not value:
            raise InputError(f"model.blocks: a list of blocks, not {str(value)[:80]!r}")
        blocks = tuple(_block(one, f"model.blocks[{number}]") for number, one in enumerate(value))
        if (count := sum(block.times for block in blocks)) > _MOST_BLOCKS:
            raise InputError(
                f"model.blocks: {count} blocks are more than can be simulated; nearest: {_MOST_BLOCKS}"
            )
        if sum(block.times for block in blocks if not KINDS[block.block].inputs) < 2:
            raise InputError("model.blocks: a model has at least two blocks beside what it is given")
        return blocks

    @property
    def num_layers(self) -> int:
        """Blocks between the first and the last, each as often as it comes."""
        return sum(block.times for block in self.blocks if not KINDS[block.block].inputs) - 2

    @property
    def usual_samples(self) -> int:
        """Those of the first thing that a sample brings along."""
        return next((kind.samples for kind in (KINDS[one.block] for one in self.blocks) if kind.samples), 64)

    def sequence(self, seq: int) -> int:
        """A sample counts as one."""
        del seq
        return 1


def module_of(number: int, block: BlockSpec) -> str:
    """What modules of the block at that place of a list are called."""
    return block.name or f"{block.block}{number}"


def _block(value: Any, where: str) -> BlockSpec:
    if isinstance(value, BlockSpec):
        return value
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: a block maps keys to values, not {str(value)[:80]!r}")
    if "block" not in value:
        raise InputError(f"{where}.block is missing: what kind of block it is; known: {', '.join(KINDS)}")
    kind = KINDS[str(value["block"])]
    made = checked(kind.spec, value, where)
    kind.check(made, where)
    return made
