"""The end of a step: gradients that are still to be reduced, clipping, the optimizer, parameters back."""

from __future__ import annotations

from dataclasses import replace

from simcore.graph.template_builder import Source
from workloads.models.pieces import OFFLOAD, OFFLOAD_STREAM, RELOAD, KernelLaunch, ModelPiece
from workloads.models.tables import WIDE_NAMES, weights_of
from workloads.models.tensors import Tensor, collective, compute
from workloads.parallel import by_class
from workloads.parallel.axis import AXES
from workloads.parallel.emit import COMPUTE, OpWriter
from workloads.parallel.job import MOMENTS, Job, element_bytes
from workloads.parallel.megatron_step import adam, clip, side_by_side
from workloads.parallel.members import tables_of
from workloads.parallel.muon import newton_schulz
from workloads.parallel.replicated import DP_STREAM, buckets_of, left_over, reduce_gradients
from workloads.parallel.stages import Chunk


def finish_step(writer: OpWriter, job: Job, stage: int, under_way: list[Source]) -> None:
    """Write the end of a stage's step; ``under_way``: what earlier templates left on other streams."""
    chunks = job.chunks[stage]
    writer.wait_for(*under_way)
    if not (job.is_fsdp or job.by_class):
        stream = DP_STREAM if job.batches_p2p and job.training.overlap_grad_reduce else COMPUTE
        handles = reduce_gradients(writer, job, list(left_over(job, chunks)), stream=stream)
        writer.wait_for(*(handle for handle in handles if stream != COMPUTE))
    _average_tables(writer, job)
    _sum_duplicated(writer, job, chunks)
    _sum_tied(writer, job, stage)
    if job.training.optimizer == "none":
        return
    if not any(job.numel((piece,), trainable=True) for piece in job.pieces.all_pieces):
        return
    local = local_numel(job, stage)
    if job.parallel.copies > 1:
        _with_other_copy(writer, job, stage, local, element_bytes(job.training.grad_reduce_dtype))
    _clip(writer, job, chunks, local)
    hosted = offloaded_numel(job, local)
    there = _update_on_host(writer, job, hosted) if hosted else []
    if local > hosted:
        if job.as_launched:
            writer.kernels(adam(job, chunks, local - hosted), phase="optimizer")
        else:
            _update(writer, job, chunks, local - hosted)
    writer.wait_for(*there)
    if local and job.parallel.copies > 1 and job.training.sharding != "ddp":
        _with_other_copy(writer, job, stage, local, element_bytes(job.training.param_gather_dtype))
    if job.training.sharding in ("zero1", "zero2") and not job.training.overlap_param_gather:
        _gather_parameters(writer, job, chunks)
    for axis in AXES.values():
        if axis.end_of_step is not None and job.parallel.degree(axis.name) > 1:
            axis.end_of_step(writer, job, stage)


def _average_tables(writer: OpWriter, job: Job) -> None:
    """Tables that other ranks hold, too, and have updated for other samples; see ``TablesView.copies``."""
    for name, block in tables_of(job):
        view = dict(job.views).get(name)
        if view is None or not view.copies or not job.shard.of_class("embedding").trains(f"{name}.weight"):
            continue
        tensors = weights_of(view.held, WIDE_NAMES[block.dtype])
        if tensors:
            whole = Tensor((sum(one.numel for one in tensors),), tensors[0].dtype)
            launch = collective("all_reduce", whole, view.copies, module=name)
            writer.kernels([launch], phase="grad_sync")


def local_numel(job: Job, stage: int) -> int:
    """Elements whose optimizer states this rank keeps."""
    return owned_numel(job, tuple(piece for chunk in job.chunks[stage] for piece in chunk.pieces))


def offloaded_numel(job: Job, owned: int) -> int:
    """Of ``owned`` elements those whose states are the host's."""
    return round(owned * job.training.optimizer_offload)


def _update_on_host(writer: OpWriter, job: Job, numel: int) -> list[Source]:
    """Gradients to the host, a pass over them and the states there, parameters back, beside the GPU's part.

    ``--optimizer-cpu-offload``: megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py.
    """
    states = job.training.optimizer_bytes_per_parameter
    passes = (
        (OFFLOAD, element_bytes(job.training.grad_dtype)),
        ("cpu_adam", 4 + 2 * states),  # gradient and states are read, states are written
        (RELOAD, element_bytes(job.training.param_gather_dtype)),
    )
    open_still = writer.taken()
    writer.wait_for(*open_still)
    after = [*open_still, *([] if writer.last is None else [writer.last])]
    for name, size in passes:
        after = [
            writer.template.memcpy(
                name, numel * size, stream=OFFLOAD_STREAM, waits=after, phase="optimizer", module="optimizer"
            )
        ]
    return after


def owned_numel(job: Job, pieces: tuple[ModelPiece, ...]) -> int:
    """Of ``pieces`` alone."""
    if job.by_class:
        return by_class.owned_numel(job, pieces)
    dense, experts = (job.numel(pieces, group, trainable=True) for group in ("dp", "expert_dp"))
    if job.training.sharding == "ddp":
        return dense + experts
    of_experts = job.mesh.expert_replicas if job.is_fsdp else job.mesh.expert_shard_ranks
    owned = -(-dense // job.mesh.shard_ranks) + -(-experts // of_experts)
    return -(-owned // job.parallel.copies)


def _with_other_copy(writer: OpWriter, job: Job, stage: int, numel: int, size: int) -> None:
    """Swap shards with the stage that holds the other copy of the same parameters (DualPipe).

    Each of the two owns half of what its data-parallel shard of both chunks is: it gets the other's sums of
    gradients of its half, adds them, and hands out what it has updated.
    """
    to = (job.parallel.pp - 1 - 2 * stage) % job.parallel.pp
    waits = writer.taken() + ([writer.last] if writer.last is not None else [])
    for what in (writer.template.send, writer.template.recv):
        got = what("pp", to, numel * size, stream=f"pp.copy.{what.__name__}", waits=waits, phase="grad_sync")
        writer.wait_for(got)


def _sum_duplicated(writer: OpWriter, job: Job, chunks: list[Chunk]) -> None:
    """Sequence parallelism: norms saw a slice of the tokens each; their gradients are added over tp."""
    if not job.shard.sequence_parallel:
        return
    duplicated = [
        parameter
        for chunk in chunks
        for piece in chunk.pieces
        for parameter in piece.parameters
        if parameter.tp_duplicated and parameter.trainable
    ]
    if not duplicated:
        return
    grads = Tensor((sum(parameter.numel for parameter in duplicated),), job.shard.main_grad_dtype)
    summed = collective("all_reduce", grads, "tp", module="finalize_grads")
    kernels = side_by_side(summed, duplicated, grads.dtype) if job.as_launched else [summed]
    writer.kernels(kernels, phase="grad_sync")


def _sum_tied(writer: OpWriter, job: Job, stage: int) -> None:
    """First and last stage add up the gradients of the embedding that they share."""
    if not job.model.ties_ends or job.parallel.pp == 1 or job.parallel.pipeline.ends_meet:
        return
    if stage in (0, job.parallel.pp - 1):
        weight = job.pieces.embedding.parameters[0]
        if not weight.trainable:
            return
        grads = Tensor(weight.shape, job.shard.main_grad_dtype)
        writer.kernels([collective("all_reduce", grads, "embd", module="tied embedding")], phase="grad_sync")


def _clip(writer: OpWriter, job: Job, chunks: list[Chunk], numel: int) -> None:
    """The norm of all gradients, those of a tied weight counted once, and their scaling."""
    if not job.training.clip_gradients:
        return
    pieces = [piece for chunk in chunks for piece in chunk.pieces]
    copies = sum(
        parameter.numel
        for piece in pieces
        for parameter in piece.parameters
        if parameter.trainable and parameter.name.endswith(" (tied)")
    )
    shards = 1 if job.training.sharding == "ddp" else job.mesh.shard_ranks
    counted = Tensor((numel - copies // shards,), job.shard.main_grad_dtype)
    grads = Tensor((numel,), job.shard.main_grad_dtype)
    scalar = Tensor((1,), "float32")
    # A stage without gradients still learns what the others' add up to.
    kernels = []
    if numel:
        kernels = [compute("multi_tensor_l2norm", [counted], [scalar], op_class="reduction", module="clip")]
    group = "mp" if job.training.sharding == "ddp" else "world"
    size = job.parallel.tp * job.parallel.pp if group == "mp" else job.parallel.world_size
    if size > 1:
        kernels.append(collective("all_reduce", scalar, group, module="clip"))
    if job.as_launched:
        kernels = clip(kernels, grads)
    elif numel:
        kernels.append(compute("multi_tensor_scale", [grads], [grads], op_class="foreach", module="clip"))
    writer.kernels(kernels, phase="optimizer")


def _update(writer: OpWriter, job: Job, chunks: list[Chunk], numel: int) -> None:
    """Read gradient, master weight and moments, write the latter; then weights are copied back.

    Without a master copy (fp32, or plain SGD without states) the weight itself is read and written.
    """
    training = job.training
    moments = MOMENTS[training.optimizer]
    states = training.optimizer_bytes_per_parameter // 4
    has_master = states > moments
    weights = job.shard.wide_dtype
    grads, weight = Tensor((numel,), job.shard.main_grad_dtype), Tensor((numel,), weights)
    state = [Tensor((numel,), "float32")] * states + ([] if has_master else [weight])
    name = "fused_sgd" if training.optimizer in ("sgd", "momentum") else f"fused_{training.optimizer}"
    kernels = [compute(name, [grads, *state], state, op_class="optimizer", module="optimizer")]
    passes = {"adam": _foreach_adam, "momentum": _foreach_momentum}.get(training.optimizer)
    if job.shard.software.optimizer_kernels != "fused" and passes is not None:
        kernels = passes(grads, Tensor((numel,), "float32" if has_master else weights))
    if job.shard.software.optimizer_kernels == "loop":
        kernels = _each_tensor(job, kernels, numel)
    if training.optimizer == "lars":  # norms of weight and gradient, tensor by tensor
        norm = Tensor((1,), "float32")
        norms = compute(
            "multi_tensor_l2norm", [grads, state[0]], [norm], op_class="reduction", module="optimizer"
        )
        kernels.insert(0, norms)
    if has_master and weights != "float32":
        kernels.append(
            compute("multi_tensor_copy", state[:1], [weight], op_class="foreach", module="optimizer")
        )
    if training.optimizer == "muon":
        pieces = tuple(piece for chunk in chunks for piece in chunk.pieces)
        share = numel / job.numel(pieces, trainable=True)
        kernels = [*newton_schulz(pieces, share, job.shard.dtype), *kernels]
    writer.kernels(kernels, phase="optimizer")


def _foreach_momentum(grads: Tensor, x: Tensor) -> list[KernelLaunch]:
    """SGD with momentum pass by pass (torch/optim/sgd.py, _multi_tensor_sgd): momentum decays, gradient is
    added, weights move.
    """
    passes = (("mul_", [x], x), ("add_", [x, grads], x), ("add_", [x, x], x))
    return [
        compute(f"aten::_foreach_{name}", ins, [out], op_class="foreach", module="optimizer")
        for name, ins, out in passes
    ]


def _each_tensor(job: Job, kernels: list[KernelLaunch], numel: int) -> list[KernelLaunch]:
    """The same passes over each parameter alone."""
    parameters = [
        p for piece in job.pieces.all_pieces for p in piece.parameters if p.trainable and p.group != "table"
    ]
    total = sum(parameter.numel for parameter in parameters)
    found = []
    for parameter in parameters:
        share = parameter.numel * numel // total
        for kernel in kernels:
            ins, outs = (((share,),) * len(shapes) for shapes in (kernel.in_shapes, kernel.out_shapes))
            name = kernel.name.replace("_foreach_", "")
            found.append(
                replace(
                    kernel, name=name, op_class="elementwise", in_shapes=ins, out_shapes=outs,
                    bytes_read=kernel.bytes_read * share // numel,
                    bytes_written=kernel.bytes_written * share // numel,
                )
            )  # fmt: skip
    return found


def _foreach_adam(grads: Tensor, x: Tensor) -> list[KernelLaunch]:
    """AdamW pass by pass over all tensors (torch/optim/adam.py, _multi_tensor_adam); ``x`` as the weights.

    Decay, first moment, second moment in two passes, its root, two corrections, the step itself.
    """
    passes = (
        ("mul_", [x], x), ("lerp_", [x, grads], x), ("mul_", [x], x), ("addcmul_", [x, grads], x),
        ("sqrt", [x], x), ("div_", [x], x), ("add_", [x], x), ("addcdiv_", [x, x, x], x),
    )  # fmt: skip
    return [
        compute(f"aten::_foreach_{name}", ins, [out], op_class="foreach", module="optimizer")
        for name, ins, out in passes
    ]


def _gather_parameters(writer: OpWriter, job: Job, chunks: list[Chunk]) -> None:
    """What each rank has updated, bucket by bucket as gradients were reduced."""
    size = element_bytes(job.training.param_gather_dtype)
    for chunk in chunks:
        for bucket in buckets_of(job, chunk):
            writer.collective(
                "all_gather", bucket.group, bucket.numel * size, stream=COMPUTE, phase="optimizer"
            )
