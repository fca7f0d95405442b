"""Small programs as a recorder would write them, op by op with shapes, bytes and lifetimes."""

from __future__ import annotations

import json
import math

import numpy as np

from simcore.graph import GraphBuilder

B, S, H = 2, 128, 64  # batch, sequence, hidden: activations of B * S * H fp32 elements
ACT = [S, B, H]
ACT_BYTES = 4 * S * B * H


class Writer:
    """Writes aten ops with shapes, bytes and data edges, as a recorder does."""

    def __init__(self, template, *, layer=0, phase="fwd", dtype="float32"):
        self.template, self.layer, self.phase, self.dtype = template, layer, phase, dtype

    def op(self, name, inputs, outputs, *, data=(), alloc=True, read=None, **columns):
        width = {"float32": 4, "bfloat16": 2}[self.dtype]
        written = width * sum(math.prod(shape) for shape in outputs)
        if read is None:
            read = width * sum(math.prod(shape) for shape in inputs)
        return self.template.compute(
            f"aten::{name}",
            data=data,
            layer=self.layer,
            phase=columns.pop("phase", self.phase),
            dtype=self.dtype,
            in_shapes=json.dumps(inputs, separators=(",", ":")),
            out_shapes=json.dumps(outputs, separators=(",", ":")),
            bytes_read=read,
            bytes_written=written,
            alloc_bytes=written if alloc else 0,
            **columns,
        )


def single(template_ops, name="fwd"):
    """A one-rank graph of one template; ``template_ops(writer, template)`` writes it."""
    build = GraphBuilder(1)
    template = build.template(name)
    template_ops(Writer(template, phase="fwd" if name == "fwd" else name), template)
    build.program([0], [(template, 0, 0)])
    return build.build()


def names(graph):
    return [name.removeprefix("aten::") for name in graph.ops.name.tolist()]


def row_of(graph, name):
    return graph.ops.name.tolist().index(name)


def column(graph, name, op):
    return getattr(graph.ops, name)[row_of(graph, op)]


def left_at_the_end(graph):
    """Bytes allocated in the step and not released in it."""
    program = graph.programs[0]
    played = np.bincount(program.template, minlength=graph.num_templates)
    born = graph.ops.alloc_bytes[graph.flat_ops(program).row].sum()
    return int(born - (graph.frees.num_bytes * played[graph.frees.template]).sum())


def bias_dropout_add(writer, template):
    gemm = writer.op("mm.default", [[S * B, H], [H, H]], [[S * B, H]], flops=2 * S * B * H * H)
    bias = writer.op("add.Tensor", [ACT, [H]], [ACT], data=(gemm,))
    dropped = writer.op("native_dropout.default", [ACT], [ACT, ACT], data=(bias,))
    template.free(dropped, ACT_BYTES, owner=bias)
    out = writer.op("add.Tensor", [ACT, ACT], [ACT], data=(dropped,))
    template.free(out, ACT_BYTES, owner=dropped)
    writer.op("native_layer_norm.default", [ACT, [H], [H]], [ACT], data=(out,))


def weight_gradient(*, overlapped):
    """Backward of a linear layer: input gradient, its all_reduce, weight gradient into main_grad."""
    build = GraphBuilder(2)
    build.group("tp", dims=((2, 1),))
    template = build.template("bwd")
    writer = Writer(template, phase="bwd")
    grad = writer.op("mm.default", [[S, H], [H, H]], [[S, H]], flops=2 * S * H * H)
    stream = "tp" if overlapped else "compute"
    reduced = template.collective("all_reduce", "tp", 4 * S * H, stream=stream, waits=(grad,), data=(grad,))
    weight = writer.op("mm.default", [[H, S], [S, H]], [[H, H]], flops=2 * S * H * H)
    waits = (reduced,) if overlapped else ()
    added = template.compute(
        "aten::add_.Tensor",
        phase="bwd",
        layer=0,
        dtype="float32",
        waits=waits,
        data=(weight,),
        in_shapes=f"[[{H},{H}],[{H},{H}]]",
        out_shapes=f"[[{H},{H}]]",
        bytes_read=8 * H * H,
        bytes_written=4 * H * H,
    )
    template.free(added, 4 * H * H, owner=weight)
    writer.op("native_layer_norm_backward.default", [[S, H]], [[S, H]], data=(reduced,))
    build.program([0, 1], [(template, 0, 0)])
    return build.build()


HEADS, SEQ, DIM = 3, 32, 16
SCORES = [1, HEADS, SEQ, SEQ]
QKV = [HEADS, SEQ, DIM]
SCORE_BYTES, QKV_BYTES = 2 * HEADS * SEQ * SEQ, 2 * HEADS * SEQ * DIM
PRODUCT = 2 * HEADS * SEQ * SEQ * DIM


def attention(*, masked=True, dtype="bfloat16", leaves=False):
    """Forward and backward of one attention, two microbatches.

    ``leaves``: q, k, v are leaves of a recomputed region, whose gradients are copied to be contiguous.
    """
    build = GraphBuilder(1)
    forward, backward = build.template("fwd"), build.template("bwd")
    writer = Writer(forward, dtype=dtype)
    matrix = [HEADS, SEQ, SEQ]
    projected = writer.op("mm.default", [[SEQ, 8], [8, 3 * HEADS * DIM]], [[SEQ, 3 * HEADS * DIM]])
    scores = writer.op("baddbmm.default", [matrix, QKV, QKV], [matrix], data=(projected,), flops=PRODUCT)
    kept = scores
    if masked:
        kept = writer.op(
            "masked_fill_.Scalar", [SCORES, [1, 1, SEQ, SEQ]], [SCORES], data=(scores,), alloc=False
        )
    probs = writer.op("_softmax.default", [SCORES], [SCORES], data=(kept,))
    mixed = writer.op("bmm.default", [matrix, QKV], [QKV], data=(probs,), flops=PRODUCT)
    width = 2 if dtype == "bfloat16" else 4
    forward.free(mixed, width * HEADS * SEQ * SEQ, owner=scores)
    out = writer.op("clone.default", [QKV], [QKV], data=(mixed,))
    forward.free(out, width * HEADS * SEQ * DIM, owner=mixed)
    done = writer.op("mm.default", [[SEQ, HEADS * DIM], [HEADS * DIM, 8]], [[SEQ, 8]], data=(out,))

    writer = Writer(backward, phase="bwd", dtype=dtype)
    seed = writer.op("mm.default", [[SEQ, 8], [8, HEADS * DIM]], [QKV], forward_op=out.position)
    link = {"forward_op": probs.position}

    def copied(gradient):
        if not leaves:
            return gradient
        copy = writer.op("clone.default", [QKV], [QKV], data=(gradient,))
        backward.free(copy, width * HEADS * SEQ * DIM, owner=gradient)
        return copy

    values = writer.op("bmm.default", [matrix, QKV], [QKV], data=(seed,), flops=PRODUCT, **link)
    weights = writer.op("bmm.default", [QKV, QKV], [matrix], data=(seed,), flops=PRODUCT, **link)
    backward.free(weights, width * HEADS * SEQ * DIM, owner=seed)
    values = copied(values)
    back = writer.op("_softmax_backward_data.default", [SCORES, SCORES], [SCORES], data=(weights,))
    backward.free(back, width * HEADS * SEQ * SEQ, owner=probs)
    backward.free(back, width * HEADS * SEQ * SEQ, owner=weights)
    last = back
    if masked:
        last = writer.op("masked_fill.Scalar", [SCORES, [1, 1, SEQ, SEQ]], [SCORES], data=(back,))
        backward.free(last, width * HEADS * SEQ * SEQ, owner=back)
    query = writer.op("bmm.default", [matrix, QKV], [QKV], data=(last,), flops=PRODUCT)
    scaled = writer.op("mul.Scalar", [QKV], [QKV], data=(query,))
    backward.free(scaled, width * HEADS * SEQ * DIM, owner=query)
    key = writer.op("bmm.default", [QKV, matrix], [QKV], data=(last,), flops=PRODUCT)
    key_scaled = writer.op("mul.Scalar", [QKV], [QKV], data=(key,))
    backward.free(key_scaled, width * HEADS * SEQ * SEQ, owner=last)
    backward.free(key_scaled, width * HEADS * SEQ * DIM, owner=key)
    backward.free(None, width * HEADS * SEQ * DIM, owner=out)
    gradients = (copied(scaled), copied(key_scaled), values)
    packed = writer.op("cat.default", [QKV] * 3, [[SEQ, 3 * HEADS * DIM]], data=gradients)
    for owner in gradients:
        backward.free(packed, width * HEADS * SEQ * DIM, owner=owner)
    for owner in (packed, projected):
        backward.free(packed, width * 3 * HEADS * SEQ * DIM, owner=owner)
    backward.free(packed, width * SEQ * 8, owner=done)
    build.program([0], [(forward, 0, 0), (forward, 1, 0), (backward, 0, 0), (backward, 1, 0)])
    return build.build()
