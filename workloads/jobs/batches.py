"""How many samples a step has, and how many at once, where that is left open."""

from __future__ import annotations

from workloads.jobs.draft import Draft
from workloads.models.check import nearest_divisors
from workloads.parallel.check import MOST_MICROBATCHES

#: Tokens of a usual step: 4 M, as Llama 2 and 3 began with (arXiv 2307.09288, section 2.2; 2407.21783,
#: section 3.4.1), of few GPUs 128 K each (NVIDIA's recipes have 128 sequences of 8,192 tokens on 8: DGX Cloud
#: Benchmarking, Llama 3 8B), of very many 4 K each up to 16 M, as Llama 3 405B ended with.
_STEP, _FEW_EACH, _MANY_EACH, _MOST_STEP = 4 << 20, 128 << 10, 4 << 10, 16 << 20


def usual_batch(num_gpus: int, tokens: int) -> int:
    """Samples of ``tokens`` in a usual step: a power of two times what of ``num_gpus`` is odd.

    So many layouts divide it, replicas of one GPU among them.
    """
    wanted = max(min(_STEP, _FEW_EACH * num_gpus), min(_MOST_STEP, _MANY_EACH * num_gpus))
    odd = num_gpus // (num_gpus & -num_gpus)
    return odd << max(1, wanted // max(1, tokens) // odd).bit_length() - 1


def batches(draft: Draft) -> None:
    """Micro batch and global batch."""
    parallel, training = draft.parallel, draft.training
    if draft.is_open("training.micro_batch"):
        usual = draft.model.usual_samples
        usual = usual or int(draft.preset.values("unpublished").get("micro_batch", [1])[0])
        samples = (
            training.global_batch // parallel.batch_ways if draft.is_said("training.global_batch") else usual
        )
        micro = max((size for size in range(1, usual + 1) if samples % size == 0), default=1)
        draft.assume("training.micro_batch", micro, f"the usual one of {draft.preset.name} that divides")
    if draft.is_open("training.global_batch") and draft.model.usual_samples:
        each = draft.training.micro_batch * parallel.batch_ways
        draft.assume("training.global_batch", each, "one batch of each replica, as such models are trained")
    if draft.is_open("training.global_batch"):
        tokens = draft.model.sequence(training.seq)
        each = draft.training.micro_batch * parallel.batch_ways
        fewest = 4 * parallel.pp if parallel.pp > 1 else 2
        count = max(fewest, usual_batch(parallel.world_size, tokens) // each)
        count += -count % parallel.pp
        draft.assume(
            "training.global_batch", count * each,
            f"{count * each * tokens / 1e6:.3g} million tokens a step, as is usual on {parallel.world_size}"
            f" GPUs: {count} microbatches for each replica",
        )  # fmt: skip


def groups_of_microbatches(draft: Draft) -> None:
    """Interleaving takes as many microbatches at once as there are stages, or the next number that divides.

    Megatron-Core's schedules.py refuses a remainder smaller than the pipeline.
    """
    spec, training = draft.parallel, draft.training
    count = training.num_microbatches(spec)
    if spec.virtual_stages == 1 or not spec.pipeline.loops or spec.microbatch_group or count % spec.pp == 0:
        return
    if count > MOST_MICROBATCHES:  # refused where the whole job is checked
        return
    _, group = nearest_divisors(count, spec.pp)
    if group is not None:
        draft.assume(
            "parallel.microbatch_group", group,
            f"{count} microbatches are no multiple of {spec.pp} stages: the next larger group that divides",
        )  # fmt: skip
