"""Models by name as lists of blocks: what their papers' tables say, one family a file.

Each file registers a :class:`Family` of names.  Sizes were checked against the parameters and multiply-adds
that timm (github.com/huggingface/pytorch-image-models, results/) publishes for the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simcore.records import dataclass
from simcore.registry import Registry
from workloads.models.listed import BlockModel

#: A block as a description has it.
Block = Mapping[str, Any]


@dataclass(frozen=True)
class Zoo:
    """Names of one kind of model.

    ``blocks(name, image_size)``: its blocks, ``image_size`` 0 for the usual one; None for a name that is none
    of its own.  ``names``: those that are listed.
    """

    name: str
    blocks: Callable[[str, int], Sequence[Block] | None]
    names: tuple[str, ...]


#: Kinds of models by name.
ZOOS: Registry[Zoo] = Registry("kind of model", "workloads.models.zoo")


def register(zoo: Zoo) -> Zoo:
    """Make a kind of model known."""
    return ZOOS.register(zoo.name, zoo)


def listed_model(name: str, image_size: int = 0) -> BlockModel | None:
    """The model of that name for images of ``image_size`` (0: the usual); None when there is none."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    for zoo in ZOOS.values():
        found = zoo.blocks(plain, image_size)
        if found is not None:
            return BlockModel(name=name, blocks=tuple(found))
    return None


def listed_names() -> tuple[str, ...]:
    """Names that are known without reading a pattern."""
    return tuple(name for zoo in ZOOS.values() for name in zoo.names)
