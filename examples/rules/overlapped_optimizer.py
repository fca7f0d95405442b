"""The optimizer of a bucket runs as soon as its gradients are reduced, beside the backward that is left.

    python scripts/run_sim.py llama3-8b --cluster h100-8 --set software.preset=torchtitan-fsdp2
        --set training.seq=4096 --set training.global_batch=16 --rules examples/rules/overlapped_optimizer.py

As torch.distributed.optim._apply_optimizer_in_backward does it: gradients cannot be clipped by the norm of
all of them, so that goes, too.  A fused Adam on fp32 shards reads parameter, gradient and two moments and
writes all but the gradient: 16 and 12 bytes per parameter.
"""

from simcore.rules import RuleGraph, rule


@rule("the optimizer steps in backward, bucket by bucket, without clipping")
def in_backward(graph: RuleGraph) -> None:
    """Behind each reduction of the last microbatch a step of its own; what came at the end goes."""
    reduced = graph.ops(collective="reduce_scatter", phase="grad_sync", microbatch=-1)
    ranks = graph.graph.groups["dp"].size

    def parameters(op) -> float:
        return op.num_bytes / 4 / ranks  # of the shard; gradients are reduced in fp32

    reduced.insert_after(
        "adam of a bucket", stream="optimizer", phase="optimizer", op_class="optimizer", dtype="float32",
        bytes_read=lambda op: 16 * parameters(op), bytes_written=lambda op: 12 * parameters(op),
    )  # fmt: skip
    graph.ops(phase="optimizer").remove()
