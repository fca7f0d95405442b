"""What tensor-parallel ranks exchange around a product, and what of it moves beside products.

Note [Exchange beside products]
    Backward reduces the gradient of the input on another stream while the weight gradient is computed, and
    gathers the input again while the input gradient is.  With ``Shard.tp_overlap`` (Transformer Engine's user
    buffers, async tensor parallelism) exchanges that feed or follow a product move beside it, too, chunk by
    chunk; here both begin together and both must end.  What is gathered moves by copies between GPUs.  Sums
    take SMs from the products ("splits", Transformer Engine: a product in ``SUM_SPLITS`` parts, each summed
    by a kernel while the next is computed, so the last sum is exposed; NVIDIA/NeMo nemo/collections/llm/
    recipes/tp_overlap_configs/userbuffers.py: 8 to 24 SMs, num_splits=4, fp8 buffers where products are fp8),
    or parts are copied to their owners, who add them up in a kernel of its own ("copies", PyTorch's symmetric
    memory: torch/distributed/_symmetric_memory, _fused_matmul_reduce_scatter).

Note [Slices of several sequences]
    Where activations are [batch, sequence, hidden], a rank's slice of the sequences of a microbatch is not
    one piece: what is gathered is copied into order, and what is scattered is copied into the order of ranks
    first (torch/distributed/_functional_collectives.py: all_gather_tensor and reduce_scatter_tensor cut
    another dimension than the first by ``torch.cat`` of chunks).  Megatron's [sequence, batch, hidden] needs
    neither, nor do products that gather themselves.

Note [fp8 across ranks]
    What is gathered in fp8 was cast as a slice.  Hopper's fp8 products read both operands along the sum, so
    the product of the weight gradient needs the gathered tensor transposed: a pass after the gather
    (TransformerEngine pytorch/module/linear.py, fp8_transpose; pytorch/ao float8_ops.py, preprocess_addmm).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace

from simcore.records import dataclass
from workloads.models.fp8 import operand
from workloads.models.local import NARROW, Shard
from workloads.models.op_tape import Op, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tensors import Tensor, compute

#: The stream on which exchanges run beside the products that they do not feed.
TP_STREAM = "tp"
#: Parts of a product whose sums run beside it (Transformer Engine's user buffers).
SUM_SPLITS = 4


@dataclass
class ProductExchange:
    """What surrounds a product: collectives by name, empty for none.

    ``gathered_from``: the slice of the tokens that the input is gathered from.  ``output_grad``: label of a
    gather of the output's gradient that runs beside the products of backward.
    """

    output: str = ""
    reduce_input_grad: str = ""
    gathered_from: Tensor | None = None
    output_grad: list[Hashable] = field(default_factory=list)


def beside_or_before(
    op: Op, shard: Shard, kernel: KernelLaunch, *, fed_by_cast: bool = False
) -> list[Hashable]:
    """An exchange before its product, or beside it: the labels that the launch behind the product awaits.

    ``fed_by_cast``: what arrives is cast before it is multiplied, so that the product can't begin earlier.
    """
    if fed_by_cast or not shard.tp_overlap:
        op.launch(TapedLaunch(kernel))
        return []
    before, label = op.tape.last_label(), op.tape.new_label()
    waits = (before,) if before is not None else ()
    op.launch(TapedLaunch(aside(shard, kernel), label, waits))
    return [label]


def aside(shard: Shard, exchange: KernelLaunch) -> KernelLaunch:
    """On the exchanges' own stream; copies take no SMs, see Note [Exchange beside products]."""
    by_copies = exchange.collective == "all_gather" or shard.software.tp_overlap_sums == "copies"
    op_class = "copy_engine" if shard.tp_overlap and by_copies else ""
    return replace(exchange, stream=TP_STREAM, op_class=op_class)


def reorders(shard: Shard) -> bool:
    """Whether exchanged tensors are copied; see Note [Slices of several sequences]."""
    scattered = shard.sequence_parallel and shard.tp > 1 and not shard.tp_overlap
    return shard.software.batch_first and scattered and shard.micro_batch > 1


def in_order(shard: Shard, tensor: Tensor, module: str) -> KernelLaunch:
    """The copy of Note [Slices of several sequences]; compiled, it knows where its chunks are."""
    name = "pointwise_copy" if shard.software.compiled else "aten::cat"
    return compute(name, [tensor], [tensor], op_class="copy", module=module)


def sums(shard: Shard, y: Tensor, narrow: str) -> tuple[Tensor, Tensor | None]:
    """What of a product's partial sums is exchanged beside it, and what behind it."""
    if shard.software.tp_overlap_sums == "copies":
        return y, None
    sent = operand(y, NARROW["fp8"] if narrow else "")  # no sum is as narrow as 4 bits
    rows, columns = sent.shape
    last = rows // SUM_SPLITS
    return sent.like(rows - last, columns), sent.like(last, columns)
