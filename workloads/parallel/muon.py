"""Muon: the momentum of each matrix made orthogonal by Newton-Schulz iterations; Adam for all else.

Sources: megatron/core/optimizer/emerging_optimizers.py and layer_wise_optimizer.py of NVIDIA/Megatron-LM;
Keller Jordan, "Muon" (2024), for the iteration: A = X X', B = b A + c A A, X = a X + B X, five times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from workloads.models.pieces import KernelLaunch, ModelPiece, Parameter
from workloads.models.tensors import Tensor, compute

_ITERATIONS: Final = 5
#: Matrices that Adam updates.
_ENDS: Final = ("embedding.", "output_layer.")


def is_orthogonalised(parameter: Parameter) -> bool:
    """Whether a parameter is a matrix (or one for each expert) between embedding and head."""
    return parameter.trainable and len(parameter.shape) > 1 and not parameter.name.startswith(_ENDS)


def orthogonalised_numel(pieces: Iterable[ModelPiece]) -> int:
    """Elements of all such matrices."""
    return sum(one.numel for piece in pieces for one in piece.parameters if is_orthogonalised(one))


def newton_schulz(pieces: Sequence[ModelPiece], owned_share: float, dtype: str) -> list[KernelLaunch]:
    """Products of the iterations over a rank's matrices, of which it owns ``owned_share``: whole ones, so
    that of each shape as many launches are made as it has of them on average.
    """
    count: dict[tuple[int, int], int] = {}
    for piece in pieces:
        for parameter in piece.parameters:
            if is_orthogonalised(parameter):
                rows, columns = sorted(parameter.shape[-2:])
                count[rows, columns] = count.get((rows, columns), 0) + prod(parameter.shape[:-2])
    found: list[KernelLaunch] = []
    for (rows, columns), number in count.items():
        launches = max(1, round(number * owned_share * _ITERATIONS))
        x, square = Tensor((launches, rows, columns), dtype), Tensor((launches, rows, rows), dtype)
        turned = Tensor((launches, columns, rows), dtype)
        for ins, out in (([x, turned], square), ([square, square], square), ([square, x], x)):
            flops = 2 * out.numel * ins[0].shape[-1]
            kernel = compute("aten::bmm", ins, [out], op_class="bgemm", flops=flops, module="optimizer")
            found.append(replace(kernel, launches=launches))
    return found
