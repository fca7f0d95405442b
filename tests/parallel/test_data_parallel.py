"""What data-parallel ranks exchange in a step, byte by byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.graph import Graph, OpKind
from simcore.hardware import load_cluster
from simcore.run import run
from tests.parallel.jobs import model
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate
from workloads.parallel.job import Job

LAYERS = 4
DP = 4


def job(**training) -> Job:
    parallel = {name: training.pop(name) for name in ("dp", "dp_shard", "pp") if name in training}
    training = {"global_batch": 2 * DP, "seq": 128, **training}
    return Job(
        model(LAYERS), ParallelSpec(**{"dp": DP, **parallel}), TrainingSpec(**training), SoftwareSpec()
    )


def exchanged(made: Job) -> dict[tuple[str, str], tuple[int, int]]:
    """(collective, group) -> (how many, bytes) in one step of rank 0; scalars of clipping left out."""
    graph: Graph = generate(made.model, made.parallel, made.training, made.software)
    ops = graph.ops
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in graph.flat_ops(graph.programs[0]).row.tolist():
        if ops.kind[row] == OpKind.COLLECTIVE and ops.num_bytes[row] > 4:
            key = ops.collective[row], ops.group[row]
            count, size = found.get(key, (0, 0))
            found[key] = count + 1, size + int(ops.num_bytes[row])
    return found


def numel(made: Job, layers_only: bool = False) -> int:
    pieces = made.pieces.layers if layers_only else made.pieces.all_pieces
    return made.numel(tuple(pieces))


def test_ddp_reduces_every_gradient_once():
    made = job()
    # Two microbatches, one all_reduce of fp32 gradients at the end; without overlap a single bucket.
    assert exchanged(made) == {("all_reduce", "dp"): (1, 4 * numel(made))}


@pytest.mark.parametrize(("every", "times"), [(False, 1), (True, 2)])
def test_no_sync_or_a_reduction_for_each_microbatch(every, times):
    made = job(overlap_grad_reduce=True, reduce_every_microbatch=every)
    _, size = exchanged(made)["all_reduce", "dp"]
    assert size == times * 4 * numel(made)


def test_torch_closes_the_first_bucket_at_1_mib():
    made = job(overlap_grad_reduce=True, bucket_bytes=25 * 2**20, grad_dtype="fp32")
    count, size = exchanged(made)["all_reduce", "dp"]
    assert size == 4 * numel(made)
    assert size < 25 * 2**20
    assert count == 2  # more than 1 MiB, less than 26 MiB


def test_megatrons_buckets_hold_40_million_elements():
    made = job(overlap_grad_reduce=True)
    assert exchanged(made)["all_reduce", "dp"][0] == 1  # 3 million in all
    small = job(overlap_grad_reduce=True, bucket_parameters=numel(made) // 3)
    assert exchanged(small)["all_reduce", "dp"][0] in (2, 3)


@pytest.mark.parametrize("overlap", [False, True])
def test_zero1_scatters_gradients_and_gathers_parameters(overlap):
    made = job(sharding="zero1", overlap_param_gather=overlap)
    assert {key: size for key, (_, size) in exchanged(made).items()} == {
        ("reduce_scatter", "dp"): 4 * numel(made),
        ("all_gather", "dp"): 2 * numel(made),
    }


def test_zero2_scatters_each_microbatch():
    made = job(sharding="zero2")
    assert exchanged(made)["reduce_scatter", "dp"][1] == 2 * 4 * numel(made)


def test_fsdp_gathers_layers_twice_and_the_ends_once():
    made = job(sharding="fsdp2")
    layers = numel(made, layers_only=True)
    ends = numel(made) - layers
    found = exchanged(made)
    # Both microbatches gather every layer in forward, all but the last one again in backward.  The root
    # (embedding and head) stays from forward to the end of backward, which frees everything.
    assert found["all_gather", "dp"][1] == 2 * 2 * (ends + layers + layers * (LAYERS - 1) // LAYERS)
    assert found["reduce_scatter", "dp"][1] == 2 * 4 * numel(made)


def test_fsdp1_gathers_the_last_layer_again():
    made = job(sharding="fsdp1")
    ends = numel(made) - numel(made, layers_only=True)
    assert exchanged(made)["all_gather", "dp"][1] == 2 * 2 * (ends + 2 * numel(made, layers_only=True))


def test_fsdp_without_resharding_gathers_once_a_microbatch():
    found = exchanged(job(sharding="fsdp2", reshard_after_forward=False))
    made = job(sharding="fsdp2")
    assert found["all_gather", "dp"] == (2 * (LAYERS + 1), 2 * 2 * numel(made))


def test_fsdp2_in_a_pipeline_reduces_once_behind_the_last_backward():
    made = replace(
        job(sharding="fsdp2", pp=2, reshard_after_forward=False),
        software=SoftwareSpec(grad_accumulation_fusion=False),
    )
    graph = generate(made.model, made.parallel, made.training, made.software)
    rows = graph.flat_ops(graph.programs[0]).row.tolist()
    names = [graph.ops.name[row] for row in rows]
    reductions = [place for place, name in enumerate(names) if name == "nccl::reduce_scatter"]
    # The embedding and two layers; two microbatches, of which only the first gathers.
    assert len(reductions) == names.count("nccl::all_gather") == 3
    assert min(reductions) > max(place for place, name in enumerate(names) if name.endswith("aten::mm"))
    # A first gradient of a product is copied to fp32 (2 bytes read, 4 written), a second added to it.
    chunk = made.chunks[0][0]
    elements = made.numel(chunk.pieces)
    ops = graph.ops
    copies, additions = (
        [row for row in rows if ops.name[row] == name and ops.phase[row] == "bwd" and ops.flops[row] == 0]
        for name in ("aten::_to_copy", "aten::add_.Tensor")
    )
    assert sum(int(ops.bytes_written[row]) for row in copies) == 4 * elements
    assert sum(int(ops.bytes_read[row]) for row in additions) == 6 * elements


def test_hsdp_reduces_shards_over_replicas():
    made = job(sharding="fsdp2", dp_shard=2)
    found = exchanged(made)
    assert found["reduce_scatter", "dp_shard"][1] == 2 * 4 * numel(made)
    assert found["all_reduce", "dp_replicate"][1] == found["reduce_scatter", "dp_shard"][1] // 2
    assert ("all_gather", "dp") not in found


def test_the_next_unit_is_gathered_before_the_last_is_reduced():
    # One communicator: in backward the gather of the unit ahead must not queue behind a reduction.
    made = job(sharding="fsdp2")
    graph = generate(made.model, made.parallel, made.training, made.software)
    ops = graph.ops
    order = [
        ops.collective[row]
        for row in graph.flat_ops(graph.programs[0]).row.tolist()
        if ops.kind[row] == OpKind.COLLECTIVE and ops.stream[row] == "fsdp" and ops.phase[row] != "fwd"
    ]
    # Of four layers the last is there: gathers of 3, 2 and 1 are each issued ahead of the reduction of the
    # layer above, then what is left: layer 1 and the root.  Twice: two microbatches.
    one = ["all_gather", "reduce_scatter"] * (LAYERS - 1) + ["reduce_scatter"] * 2
    assert order == one * 2


def test_lists_gather_parameter_by_parameter_and_again_after_recomputation():
    # Hidden 256, FFN 512: products hold 768 x 256, 256 x 256 (65,536: kept), 512 x 256 twice; biases, norms
    # and positions (128 x 256) are kept; the embedding (1000 x 256, tied) is in the root unit.
    sizes = [768 * 256, 512 * 256, 512 * 256]
    common = {"sharding": "zero3", "global_batch": DP, "precision": "bf16", "list_collectives": True}
    made = job(**common)
    parameters = [p for piece in made.pieces.all_pieces for p in piece.parameters]
    vocab = max(p.numel for p in parameters)
    found = exchanged(made)
    # Forward: root and all layers; backward: all layers but the last, which is still there.
    count, size = found["all_gather", "dp"]
    assert count == 1 + 3 * LAYERS + 3 * (LAYERS - 1)
    assert size == 2 * (vocab + sum(sizes) * (2 * LAYERS - 1))
    assert found["reduce_scatter", "dp"][0] == 1 + 3 * LAYERS
    again = exchanged(job(**common, recompute="full"))["all_gather", "dp"]
    assert again[0] == count + 3 * (LAYERS - 1)


def test_the_host_makes_a_tensor_of_a_list_for_each_rank():
    def host_ps(dp: int) -> int:
        made = job(sharding="zero3", dp=dp, global_batch=dp, list_collectives=True)
        ops = generate(made.model, made.parallel, made.training, made.software).ops
        return int(ops.recorded_ps[ops.name.equals("list")].sum())

    assert host_ps(8) == 2 * host_ps(4) > 0


def test_adam_pass_by_pass_moves_twenty_numbers_per_parameter():
    """Eight passes read 12 and write 8 tensors of fp32; fused, 4 are read and 3 written."""

    def moved(kernels: str) -> int:
        graph = generate(
            model(2), ParallelSpec(dp=4), TrainingSpec(seq=128, global_batch=4, sharding="fsdp2"),
            SoftwareSpec(optimizer_kernels=kernels),
        )  # fmt: skip
        ops = graph.ops
        rows = [r for r in range(len(ops)) if "_foreach" in ops.name[r] or ops.name[r] == "fused_adam"]
        return sum(int(ops.bytes_read[r] + ops.bytes_written[r]) for r in rows)

    assert moved("foreach") * 7 == moved("fused") * 20


def test_deepspeed_without_overlap_leaves_nothing_under_way():
    # Reduced in line, microbatch by microbatch: the end of the step waits for no stream of reductions.
    made = job(sharding="ddp", engine="deepspeed", reduce_every_microbatch=True, bucket_parameters=1000)
    graph = generate(made.model, made.parallel, made.training, made.software)
    sums = [row for row in range(len(graph.ops)) if graph.ops.collective[row] == "all_reduce"]
    assert {graph.ops.stream[row] for row in sums} == {"compute"}
    assert not [name for name in graph.edges.ext_stream.values if name == "dp"]
    assert run(graph, load_cluster("h100-8")).step_s > 0
