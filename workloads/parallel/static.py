"""What a rank holds all step long, in bytes, and what its optimizer has for the time of its step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Final

from simcore.records import dataclass
from workloads.models.local import NARROW
from workloads.models.lookups import STATES
from workloads.models.pieces import ModelPiece
from workloads.models.tables import row_bytes, whole_view
from workloads.models.tensors import Tensor
from workloads.parallel import by_class
from workloads.parallel.finish import local_numel, offloaded_numel, owned_numel
from workloads.parallel.handed import receive_buffers
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.members import members_of, tables_of
from workloads.parallel.muon import orthogonalised_numel

#: Bytes of an element of what optimizers work in.
WIDE: Final = 4
#: Weights of Transformer Engine's layers.
_OF_ENGINE: Final = re.compile(r"\.linear_\w+\.weight$")

Named = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StaticMemory:
    """Bytes of a stage's rank.

    ``gradients``: where they come with each backward and go behind the step (PyTorch's FSDP, and autograd's
    of one backward) 0, ``reduced`` has them.  ``masters``, ``moments``: optimizer states.  ``buckets`` that
    gradients are copied through.  ``kept`` by name: what libraries never give back.  ``step`` by name: what
    the optimizer's step has for its own time.  ``flat``: parameters that lie in buffers; ``copied`` of these
    are there twice while Megatron's distributed optimizer puts them there, before it has any state.
    """

    parameters: int
    gradients: int
    reduced: int
    masters: int
    moments: int
    buckets: int
    kept: Named
    step: Named
    flat: int
    copied: int

    @property
    def states(self) -> int:
        """Optimizer states."""
        return self.masters + self.moments

    @property
    def workspace(self) -> int:
        """All of ``kept``."""
        return sum(num_bytes for _, num_bytes in self.kept)

    @property
    def besides(self) -> tuple[int, int]:
        """Most bytes beside what lasts, in the optimizer or at the start, and of these reduced gradients."""
        in_step = self.reduced + sum(num_bytes for _, num_bytes in self.step)
        at_start = self.copied - self.states - self.buckets - self.workspace
        return (in_step, self.reduced) if in_step >= at_start else (at_start, 0)


def gradients_come_and_go(job: Job) -> bool:
    """Whether sharded gradients are made by each step's first reduction and released behind its end.

    So ``FSDPParamGroup`` and ``_post_backward_hook`` of torch/distributed/fsdp; Megatron's FSDP and DeepSpeed
    have buffers.
    """
    return job.is_fsdp and job.training.sharding in ("fsdp1", "fsdp2")


def _is_flat(job: Job) -> bool:
    """Whether what trains lies in buffers: Megatron's distributed optimizer, DeepSpeed's ZeRO-1 and 2."""
    return not job.is_fsdp and job.training.sharding != "ddp"


def static_memory(job: Job, stage: int) -> StaticMemory:
    """What a rank of ``stage`` holds."""
    training = job.training
    pieces = tuple(piece for chunk in job.chunks[stage] for piece in chunk.pieces)
    numel, trainable = job.numel(pieces), job.numel(pieces, trainable=True)
    owned = local_numel(job, stage) if trainable else 0
    updated = owned - offloaded_numel(job, owned)
    reduced = 0
    if job.by_class:
        return _by_class(job, pieces)
    if job.is_fsdp:
        # The master copy among the optimizer's bytes is the sharded parameter.
        frozen = (numel - trainable) // job.mesh.shard_ranks
        whole = owned if training.optimizer_bytes_per_parameter < 12 else 0
        parameters = (frozen + whole) * WIDE
        if job.by_megatron_fsdp and numel:  # beside masters what is gathered has shards of its own
            parameters = round(gathered_bytes(job, pieces) * owned / max(1, trainable))
        gradients = owned * element_bytes(training.grad_dtype)
        if gradients_come_and_go(job):
            gradients, reduced = 0, gradients
    else:
        parameters = numel * (WIDE if job.shard.casts else narrow_bytes(job))
        if training.precision == "fp8" and training.param_gather_dtype == "fp8":
            parameters -= _engine_numel(pieces) * (narrow_bytes(job) - _fp8_bytes(job))
        grad_bytes = element_bytes(training.grad_dtype)
        if training.engine == "deepspeed" and grad_bytes == WIDE and training.precision in ("bf16", "fp16"):
            grad_bytes += 2
        gradients = (owned if training.sharding == "zero2" else trainable) * grad_bytes
        if job.gradients_of_one_pass:
            gradients, reduced = 0, gradients
    flat = parameters * trainable // numel if _is_flat(job) and numel else 0
    states = training.optimizer_bytes_per_parameter
    has_master = job.is_fsdp or _has_copies(job)
    masters = min(states, WIDE) if has_master else 0
    weights, moments = table_bytes(job)
    parameters += weights
    wide_gradients, wide_states = _wide_ends(job, pieces) if training.wide_ends else (0, 0)
    gradients += wide_gradients
    moments += wide_states
    return StaticMemory(
        parameters=parameters,
        gradients=gradients,
        reduced=reduced,
        masters=updated * masters,
        moments=updated * (states - masters) + _adams(job, pieces, owned, trainable) + moments,
        buckets=_buckets(job, trainable),
        kept=(*_kept(job, pieces), *_received(job, stage)),
        step=_step(job, pieces, updated),
        flat=flat,
        copied=flat if training.engine == "megatron" else 0,
    )


def _by_class(job: Job, pieces: Sequence[ModelPiece]) -> StaticMemory:
    """Where classes have strategies: shards in fp32 are their own masters, what is whole has a copy."""
    training, trained = job.training, by_class.owned_numel(job, pieces)
    states, (weights, moments) = training.optimizer_bytes_per_parameter, table_bytes(job)
    narrow = _has_copies(job)
    masters = min(states, WIDE) if narrow else 0
    shards, whole = (
        by_class.static_numel(job, pieces, in_shards=there, trainable=False) for there in (True, False)
    )
    whole_trained = by_class.static_numel(job, pieces, in_shards=False, trainable=True)
    return StaticMemory(
        parameters=shards * WIDE + whole * (narrow_bytes(job) if narrow else WIDE) + weights,
        gradients=trained * element_bytes(training.grad_dtype),
        reduced=0,
        masters=whole_trained * masters,
        moments=trained * (states - masters) + moments,
        buckets=max((by_class.gathered_bytes(job, chunk) for chunk in job.chunks[0]), default=0),
        kept=_kept(job, pieces),
        step=_step(job, tuple(pieces), trained),
        flat=0,
        copied=0,
    )


def _wide_ends(job: Job, pieces: Sequence[ModelPiece]) -> tuple[int, int]:
    """What gradients and states of embedding and head take more than others'.

    NVIDIA/NeMo megatron_base_model.py, ``_with_fp32_optimizer``: a master copy and two moments.
    """
    ends = tuple(piece for piece in pieces if piece.name in ("embedding", "head"))
    narrow = element_bytes(job.training.grad_dtype)
    states = 3 * WIDE - job.training.optimizer_bytes_per_parameter
    return job.numel(ends, trainable=True) * (WIDE - narrow), owned_numel(job, ends) * max(0, states)


def _adams(job: Job, pieces: Sequence[ModelPiece], owned: int, trainable: int) -> int:
    """Muon's second moments, of what Adam updates."""
    if job.training.optimizer != "muon" or not trainable:
        return 0
    return WIDE * owned * (trainable - orthogonalised_numel(pieces)) // trainable


def _engine_numel(pieces: Sequence[ModelPiece]) -> int:
    """Elements of the weights that Transformer Engine multiplies in fp8."""
    return sum(
        parameter.numel
        for piece in pieces
        for parameter in piece.parameters
        if _OF_ENGINE.search(parameter.name)
    )


def gathered_bytes(job: Job, pieces: Sequence[ModelPiece]) -> int:
    """Of whole parameters as FSDP gathers them: in 8 bits weights of products alone."""
    own = tuple(pieces)
    if job.training.param_gather_dtype != "fp8":
        return job.numel(own) * element_bytes(job.training.param_gather_dtype)
    return job.numel(own) * narrow_bytes(job) - _engine_numel(own) * (narrow_bytes(job) - 1)


def _narrow_weights(job: Job, pieces: Sequence[ModelPiece]) -> int:
    one = Tensor((_engine_numel(pieces),), job.shard.narrow).num_bytes
    return one * _fp8_bytes(job)


def _fp8_bytes(job: Job) -> int:
    """Of a weight's element: itself, and where it has one that of its transpose."""
    return 2 if job.software.fp8_weight_transposes else 1


def fullest(job: Job) -> Job:
    """The job as those of its ranks see it that hold most of its tables."""
    if job.views or not tables_of(job):
        return job
    return max((own for _, own in members_of(job)), key=lambda own: sum(table_bytes(own)))


def table_bytes(job: Job) -> tuple[int, int]:
    """Bytes in HBM of the tables that a rank holds alone, and of what an optimizer keeps of them."""
    weights = states = 0
    for name, block in tables_of(job):
        view = dict(job.views).get(name) or whole_view(block.tables)
        near = block.cached if block.memory == "uvm" else 1.0
        columns, single = STATES.get(block.optimizer or job.training.optimizer, (0, 0))
        for one in view.held:
            weights += round(near * one.numel * row_bytes(block.dtype))
            if job.shard.of_class("embedding").trains(f"{name}.weight"):
                states += round(near * WIDE * (columns * one.numel + single * one.rows * one.count))
    return weights, states


def narrow_bytes(job: Job) -> int:
    """Of an element of what is multiplied, before any cast to 8 bits."""
    precision = job.training.precision
    return element_bytes(job.software.fp8_beside if precision in NARROW else precision)


def _has_copies(job: Job) -> bool:
    """Whether the optimizer updates copies in fp32 of weights that are narrower."""
    training = job.training
    gathered = "fp8" if training.param_gather_dtype == "fp8" else job.software.fp8_beside
    kept = gathered if training.precision in NARROW else training.precision
    return kept not in ("fp32", "tf32", "int8") and not job.shard.casts


def _buckets(job: Job, trainable: int) -> int:
    """What gradients are copied through.

    PyTorch's DDP has buckets for all of them (``Reducer::initialize_buckets`` of reducer.cpp).  DeepSpeed's
    ZeRO-2 and 3, and ZeRO-1 of today, have a buffer of as many as a bucket may hold, however few there are,
    and a second one to reduce beside (``setup_buckets`` of stage_1_and_2.py, stage3.py; from a step's first
    gradient to its last reduction, here all the time); sums in fp32 are copied to be reduced, and parameters
    to be gathered.  ZeRO-1 of before on narrow gradients copies what it reduces in its step.
    """
    training, most = job.training, job.training.bucket_parameters
    if job.by_ddp and job.mesh.replicas > 1:
        return trainable * element_bytes(training.grad_dtype)
    if training.engine != "deepspeed" or most <= 0 or not trainable or training.sharding == "ddp":
        return 0
    if training.sharding in ("zero2", "zero3") or training.bucket_buffer:
        twice = training.sharding == "zero2" and training.overlap_grad_reduce
        return most * narrow_bytes(job) * (2 if twice else 1)
    if job.gradients_go_in_step:
        return 0
    widths = element_bytes(training.grad_dtype) + element_bytes(training.param_gather_dtype)
    return min(trainable, most) * widths


def _received(job: Job, stage: int) -> Named:
    num_bytes = sum(receive_buffers(job, chunk) for chunk in job.chunks[stage])
    return (("messages of all microbatches", num_bytes),) if num_bytes else ()


def _kept(job: Job, pieces: Sequence[ModelPiece]) -> Named:
    once = bool(job.shard.narrow) and job.software.fp8_weight_cast == "first" and not job.is_fsdp
    found = {
        "workspace of products": job.software.workspace_bytes,
        f"weights in {job.training.precision}": _narrow_weights(job, pieces) if once else 0,
        "gradients that nobody reads": _unread_gradients(job, pieces),
        "buffer of gathered inputs": max(
            (
                kernel.num_bytes or kernel.bytes_written
                for piece in dict.fromkeys(pieces)
                for kernel in (*piece.forward, *piece.backward)
                if kernel.buffered
            ),
            default=0,
        ),
    }
    return tuple((name, num_bytes) for name, num_bytes in found.items() if num_bytes)


def _unread_gradients(job: Job, pieces: Sequence[ModelPiece]) -> int:
    """Tensors that Transformer Engine hands to autograd for gradients which products have added already.

    One of each weight's shape is kept (get_dummy_wgrad of transformer_engine/pytorch/module/base.py).
    """
    if not (job.software.transformer_engine and job.software.grad_accumulation_fusion) or job.is_fsdp:
        return 0
    shapes = {
        parameter.shape[-2:]
        for piece in dict.fromkeys(pieces)
        for parameter in piece.parameters
        if parameter.trainable and _OF_ENGINE.search(parameter.name)
    }
    return sum(map(prod, shapes)) * narrow_bytes(job)


def _step(job: Job, pieces: tuple[ModelPiece, ...], owned: int) -> Named:
    """Copies of narrow gradients in fp32 (``_copy_model_grads_to_main_grads`` of Megatron-Core,
    ``single_partition_of_fp32_groups`` of DeepSpeed, without ZeRO once more flat: ``step`` of its
    fused_optimizer.py), and the roots of all second moments where no kernel fuses Adam
    (``_multi_tensor_adam`` of torch/optim/adam.py).
    """
    training = job.training
    found: dict[str, int] = {}
    if job.by_zero1 and job.gradients_go_in_step:
        return (("gradients on their way to fp32", _zero1_step(job, pieces, owned)),)
    narrow = element_bytes(training.grad_dtype) < WIDE and training.optimizer != "none"
    if owned and narrow and training.optimizer_bytes_per_parameter >= 12:
        found["gradient in fp32"] = owned * WIDE
        if job.by_deepspeed and training.sharding == "ddp":
            found["flat gradient in fp32"] = owned * WIDE
    if job.software.optimizer_kernels == "foreach" and training.optimizer == "adam":
        found["root of the second moment"] = owned * WIDE
    return tuple((name, num_bytes) for name, num_bytes in found.items() if num_bytes)


def _zero1_step(job: Job, pieces: tuple[ModelPiece, ...], owned: int) -> int:
    """Most bytes beside all gradients in the step of DeepSpeed's ZeRO-1, see Note [The step of ZeRO-1] of
    ``lasting.py``.
    """
    narrow, trainable = narrow_bytes(job), job.numel(pieces, trainable=True)
    largest = max((one.numel for piece in pieces for one in piece.parameters if one.trainable), default=0)
    copied = 0 if job.training.bucket_buffer else max(job.training.bucket_parameters, largest)
    reduced = narrow * min(trainable, copied)
    wide = (2 * narrow + WIDE) * owned - narrow * trainable
    return max(reduced, 2 * WIDE * min(largest, owned), wide)
