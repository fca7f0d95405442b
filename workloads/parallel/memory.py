"""Memory of a rank in closed form: what it holds through the step, and the most beside it."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.graph import MemoryProfile
from simcore.graph.schedules import Action
from workloads.parallel.finish import local_numel
from workloads.parallel.job import Job, element_bytes


def memory_profile(job: Job, stage: int, actions: Sequence[Action]) -> MemoryProfile:
    """Parameters, gradients and optimizer states, and the activations of the microbatches in flight."""
    chunks = job.chunks[stage]
    pieces = tuple(piece for chunk in chunks for piece in chunk.pieces)
    numel = job.numel(pieces)
    training = job.training
    parameter_bytes = element_bytes("bf16" if training.precision == "fp8" else training.precision)
    grad_bytes = element_bytes(training.grad_dtype)
    local = local_numel(job, stage)
    states = local * training.optimizer_bytes_per_parameter
    gathered = 0
    if job.is_fsdp:
        unit = max((job.numel((piece,)) for piece in pieces), default=0)
        kept = numel if not training.reshard_after_forward else (training.prefetch + 1) * unit
        gathered = kept * element_bytes(training.param_gather_dtype)
        parameters = 0 if training.optimizer_bytes_per_parameter >= 12 else local * 4
        gradients = local * 4
    else:
        parameters = numel * parameter_bytes
        gradients = (local if training.sharding == "zero2" else numel) * grad_bytes
    saved = [sum(piece.saved_bytes for piece in chunk.pieces) for chunk in chunks]
    live = peak_live = 0
    for action in actions:
        live += saved[action.chunk] if action.kind == "F" else 0
        peak_live = max(peak_live, live)
        live -= saved[action.chunk] if action.kind == "B" else 0
    working = max((piece.peak_bytes for piece in pieces), default=0)
    activations = peak_live + working + gathered
    static = parameters + gradients + states
    return MemoryProfile(
        parameters=parameters,
        gradients=gradients,
        optimizer_states=states,
        activations_peak=activations,
        peak=static + activations,
    )
