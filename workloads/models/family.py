"""Families: what a model begins and ends with.  Each stands in a file of ``families/``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simcore.records import dataclass
from simcore.registry import Registry

if TYPE_CHECKING:
    from workloads.models.local import Shard
    from workloads.models.op_tape import OpTape
    from workloads.models.spec import ModelSpec
    from workloads.models.tensors import Tensor


@dataclass(frozen=True)
class Family:
    """A family by ``name``, as ``model.family`` says it.

    ``begin(tape, shard, model, x)`` writes what makes activations ``x``; returns bytes of what it reads.
    ``end(tape, shard, model, x)`` writes what follows the last norm.
    ``multiply_adds(model, seq, decoder_seq, causal_once)``: of a sample's forward beside the first stack of
    layers.  ``causal``: a token attends to earlier ones only.  ``has_tokens``: it begins with ids and ends
    with logits; ``has_decoder``: a second stack attends to the first.  ``last_stack``: what modules call the
    last one.  ``sequence(model, seq)``: tokens of a sample.
    ``check(model, where)``: InputError for dimensions that do not fit.
    """

    name: str
    begin: Callable[[OpTape, Shard, ModelSpec, Tensor], int]
    end: Callable[[OpTape, Shard, ModelSpec, Tensor], None]
    multiply_adds: Callable[[ModelSpec, int, int, bool], float]
    causal: bool = False
    has_tokens: bool = True
    has_decoder: bool = False
    last_stack: str = "decoder"
    sequence: Callable[[ModelSpec, int], int] = lambda _, seq: seq
    check: Callable[[ModelSpec, str], None] = lambda *_: None


#: Families by name.
FAMILIES: Registry[Family] = Registry("family", "workloads.models.families")


def register(family: Family) -> Family:
    """Make a family known."""
    return FAMILIES.register(family.name, family)
