"""Megatron's gradient buckets: which parameters are reduced together, and when they are ready."""

from __future__ import annotations

from typing import NamedTuple

from simcore.errors import InputError
from simcore.graph import Graph, OpKind
from workloads.edits.megatron import Sizes

#: megatron.core.distributed: bucket_size = max(40 M, 1 M per data-parallel rank) elements with overlap.
_LEAST_ELEMENTS = 40_000_000
_ELEMENTS_PER_RANK = 1_000_000


class Parameter(NamedTuple):
    """A parameter tensor of a stage: layer (-1: none), its module's last name, its shape on a rank."""

    layer: int
    module: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product


class Bucket(NamedTuple):
    """Parameters that are reduced together."""

    parameters: tuple[Parameter, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return sum(parameter.numel for parameter in self.parameters)


def first_stage_parameters(sizes: Sizes, layers: int) -> list[Parameter]:
    """Parameters of the first stage in the order in which the model defines them."""
    h, qkv, f = sizes.hidden, 3 * sizes.hidden // sizes.tp, sizes.ffn // sizes.tp
    found = [
        Parameter(-1, "word_embeddings", (sizes.vocab // sizes.tp, h)),
        Parameter(-1, "position_embeddings", (sizes.seq, h)),
    ]
    for layer in range(layers):
        for module, shapes in (
            ("input_layernorm", ((h,), (h,))),
            ("linear_proj", ((h, h // sizes.tp), (h,))),
            ("linear_qkv", ((qkv, h), (qkv,))),
            ("pre_mlp_layernorm", ((h,), (h,))),
            ("linear_fc1", ((f, h), (f,))),
            ("linear_fc2", ((h, f), (h,))),
        ):
            found += [Parameter(layer, module, shape) for shape in shapes]
    return found


def buckets(parameters: list[Parameter], dp: int) -> list[Bucket]:
    """Buckets in the order of reduction: parameters in reverse, a bucket ends once it is large enough.

    Source: megatron.core.distributed.param_and_grad_buffer (buckets filled in reverse order of definition).
    """
    least = max(_LEAST_ELEMENTS, _ELEMENTS_PER_RANK * dp)
    found: list[Bucket] = []
    current: list[Parameter] = []
    for parameter in reversed(parameters):
        current.append(parameter)
        if sum(one.numel for one in current) >= least:
            found.append(Bucket(tuple(current)))
            current = []
    return [*found, Bucket(tuple(current))] if current else found


def ready_rows(graph: Graph, rows: list[int]) -> dict[Parameter, int]:
    """Where in a backward (positions in ``rows``) each parameter's gradient has been accumulated."""
    ops = graph.ops
    found: dict[Parameter, int] = {}
    for place, row in enumerate(rows):
        if ops.kind[row] != OpKind.COMPUTE or not ops.name[row].startswith("aten::add_"):
            continue
        shapes = ops.in_shapes[row].replace(" ", "")
        half = shapes[1:-1].split("],[")[0].strip("[]")
        if shapes != f"[[{half}],[{half}]]" or not half:
            continue
        module = ops.module[row].rpartition(".")[2].split("/")[0]
        found[Parameter(int(ops.layer[row]), module, tuple(map(int, half.split(","))))] = place
    return found


def reduced_after(graph: Graph, rows: list[int], wanted: list[Bucket]) -> dict[int, list[Bucket]]:
    """Position in a backward -> buckets that are complete after it.

    InputError when the accumulation of a gradient is not found.
    """
    ready = ready_rows(graph, rows)
    places: dict[int, list[Bucket]] = {}
    for bucket in wanted:
        missing = [parameter for parameter in bucket.parameters if parameter not in ready]
        if missing:
            raise InputError(
                f"no op accumulates the gradient of {missing[0].module} {missing[0].shape}:"
                " when its bucket is reduced is not known"
            )
        places.setdefault(max(ready[parameter] for parameter in bucket.parameters), []).append(bucket)
    return places
