"""A list of blocks as pieces: each repetition of each block is one."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import replace

from simcore.elementary import plain_sum
from simcore.records import dataclass
from workloads.models.listed import KINDS, BlockModel, Passage, module_of
from workloads.models.local import Shard
from workloads.models.op_tape import Recompute
from workloads.models.pieces import KernelLaunch, ModelPiece, ModelPieces
from workloads.models.tensors import Tensor

#: Kernels whose flops are the model's.
_PRODUCTS = ("gemm", "bgemm", "conv", "attention_fwd")


@dataclass(frozen=True)
class _Reached:
    """What decides how a block writes itself, beside the block."""

    x: Tensor
    trains: bool
    scattered: bool
    beside: tuple[tuple[str, tuple[Tensor, ...]], ...]


def listed_pieces(
    model: BlockModel, shard: Shard, *, recomputed: Collection[int] | None = None
) -> ModelPieces:
    """All pieces of ``model``; equal repetitions are one object.  InputError where blocks do not fit.

    ``shard.recompute`` holds for the pieces ``recomputed`` between the first and the last (None: all).
    Model flops are those of products forward, and twice as many in backward (once for frozen weights).
    """
    state = _Reached(
        Tensor((shard.micro_batch, 1), shard.wide_dtype), trains=False, scattered=False, beside=()
    )
    made: dict[Hashable, tuple[ModelPiece, _Reached]] = {}
    pieces: list[ModelPiece] = []
    last = model.num_layers + 1
    for number, block in enumerate(model.blocks):
        if KINDS[block.block].inputs:
            state = _piece(model, number, 0, shard, "none", state)[1]
            continue
        for index in range(block.times):
            again: Recompute = "none"
            if 0 < len(pieces) < last and (recomputed is None or len(pieces) - 1 in recomputed):
                again = shard.recompute
            own = index if shard.trainable not in ("all", "none", "lora") else min(index, 1) + index % 2
            key = number, own, again, state
            if key not in made:
                made[key] = _piece(model, number, index, shard, again, state)
            piece, state = made[key]
            pieces.append(piece)
    passes = {"all": 3.0, "none": 1.0}.get(shard.trainable, 2.0)
    flops = plain_sum(
        kernel.flops * (min(passes, 2.0) if piece.layer_class in shard.frozen else passes)
        for piece in pieces
        for kernel in piece.forward
        if kernel.op_class in _PRODUCTS
    )
    flops /= shard.micro_batch
    # Whoever walks them knows the ends by these names.
    first, end = replace(pieces[0], name="embedding"), replace(pieces[-1], name="head")
    return ModelPieces(first, tuple(pieces[1:-1]), end, flops, flops)


def _piece(
    model: BlockModel, number: int, index: int, shard: Shard, again: Recompute, state: _Reached
) -> tuple[ModelPiece, _Reached]:
    block = model.blocks[number]
    kind = KINDS[block.block]
    name = module_of(number, block)
    shard = shard.of_class(kind.layer_class)
    tape = shard.tape()
    trains = state.trains
    at = Passage(
        replace(shard, recompute=again), tape, state.x, f"{name}.{index}" if block.times > 1 else name, index,
        trains, state.scattered, {key: list(tensors) for key, tensors in state.beside},
    )  # fmt: skip
    kind.write(at, block)
    piece = tape.piece(
        name, at.x, input_bytes=state.x.num_bytes, recompute=again, input_grad=at.trains,
        early_stop=shard.software.recompute_early_stop,
    )  # fmt: skip
    piece = _on_groups(replace(piece, layer_class=kind.layer_class), shard, splits=kind.splits)
    beside = tuple((key, tuple(tensors)) for key, tensors in sorted(at.beside.items()))
    own = any(parameter.trainable for parameter in piece.parameters) and not kind.beside
    return piece, _Reached(at.x, at.trains or own, at.scattered, beside)


def _on_groups(piece: ModelPiece, shard: Shard, *, splits: bool) -> ModelPiece:
    """Where classes have strategies, a piece names the groups of its own class."""
    own = dict(shard.shared).get(piece.layer_class)
    if own is None:
        return piece
    named = {"tp": own.products, "ep": own.owners}

    def moved(kernels: tuple[KernelLaunch, ...]) -> tuple[KernelLaunch, ...]:
        return tuple(replace(one, group=named.get(one.group, one.group)) for one in kernels)

    # What experts have beside them (routers) is shared as dense layers are.
    owner = {"dp": "dense" if piece.layer_class == "expert" else piece.layer_class, "expert_dp": "expert"}
    parameters = tuple(
        one
        if one.group == "table"
        else replace(one, group=owner[one.group], tp_duplicated=one.tp_duplicated or not splits)
        for one in piece.parameters
    )
    return replace(
        piece, forward=moved(piece.forward), backward=moved(piece.backward),
        first_forward=moved(piece.first_forward), parameters=parameters,
    )  # fmt: skip
