"""The traced GPT against what Megatron-core is known to compute and to communicate."""

from collections import Counter

import pytest

from simcore.errors import InputError
from simcore.graph import load_graph
from simcore.graph.ops import OpKind
from tests.tracing.small_jobs import column, communication, gpt_traces, job, played
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.fake.expert_load import parse_load, token_counts
from workloads.tracing.record.assemble import RankTrace

S, B, H, V, TP = 64, 1, 128, 256, 2  # the small job: sequence, micro-batch, hidden, vocabulary, tp
ACTIVATION = S * B * H * 4  # fp32 bytes of one hidden state


def trace(pool: WorkerPool, rank: int, microbatches: int = 2, **changes: object) -> RankTrace:
    (found,) = gpt_traces(pool, job(**changes), [(rank, microbatches)])
    return found


def layer_flops() -> int:
    """One layer, forward: GEMMs 24 s b h^2 (qkv 6, projection 2, MLP 16), attention 4 s^2 b h; over tp."""
    return (24 * S * B * H**2 + 4 * S**2 * B * H) // TP


def test_flops_of_a_step_are_the_analytic_count(megatron_pool: WorkerPool) -> None:
    last = trace(megatron_pool, 2).program  # stage 1 of 2, tensor-parallel rank 0: two layers and the logits
    logits = 2 * S * B * H * V // TP
    forward = played(last, "fwd")
    backward = played(last, "bwd")
    assert sum(column(forward, "flops")) == 2 * layer_flops() + logits
    by_phase = Counter[str]()
    for phase, flops in zip(column(backward, "phase"), column(backward, "flops"), strict=True):
        by_phase[phase] += flops
    # Full recomputation repeats the layers' forward, and not the logits; backward costs twice the forward.
    assert by_phase["recompute"] == 2 * layer_flops()
    assert by_phase["bwd"] == 2 * (2 * layer_flops() + logits)


@pytest.mark.parametrize("name", ["gpt-175b-pp12-tp8-dp1", "echo-gpt-175b-pp12-tp8-dp1"])
def test_flops_of_the_headline_jobs(name: str) -> None:
    graph = load_graph(f"workloads/catalog/graphs/{name}")
    middle = next(program for program in graph.programs if program.stage == 5)
    forwards = {t for t in middle.template.tolist() if graph.template_names[t] == "fwd"}
    # 8 layers: (24 * 2048 * 12288^2 + 4 * 2048^2 * 12288) / 8 each = 953482739712
    for template in forwards:
        rows = graph.template_rows(template)
        assert int(graph.ops.flops[rows.start : rows.stop].sum()) == 8 * 953_482_739_712


def test_collectives_with_full_recomputation(megatron_pool: WorkerPool) -> None:
    program = trace(megatron_pool, 0).program
    # Per layer: one all_reduce behind the attention projection and one behind the MLP, forward and again
    # when recomputed; backward two of the input gradients, asynchronous, hence on the communicator's stream.
    assert communication(played(program, "fwd")) == {
        ("fwd", "all_reduce", "compute", ACTIVATION): 2 * 2 + 1,  # two layers; one behind the embedding
    }
    assert communication(played(program, "bwd")) == {
        ("recompute", "all_reduce", "compute", ACTIVATION): 2 * 2,
        ("bwd", "all_reduce", "tp", ACTIVATION): 2 * 2,
    }


def test_collectives_with_sequence_parallelism(megatron_pool: WorkerPool) -> None:
    program = trace(megatron_pool, 0, sequence_parallel=True, recompute="none").program
    # Per layer: all_gather before qkv and fc1, reduce_scatter behind the projection and fc2.
    # Behind the embedding an all_reduce: with learned positions Megatron sums first, then keeps its part.
    assert communication(played(program, "fwd")) == {
        ("fwd", "all_gather", "compute", ACTIVATION): 2 * 2,
        ("fwd", "reduce_scatter", "compute", ACTIVATION): 2 * 2,
        ("fwd", "all_reduce", "compute", ACTIVATION): 1,
    }
    # Backward: the mirror image, and the gathered input again (asynchronous) for the weight gradient.
    assert communication(played(program, "bwd")) == {
        ("bwd", "all_gather", "compute", ACTIVATION): 2 * 2 + 1,  # and before the embedding
        ("bwd", "all_gather", "tp", ACTIVATION): 2 * 2,
        ("bwd", "reduce_scatter", "tp", ACTIVATION): 2 * 2,
    }


def test_pipeline_exchange(megatron_pool: WorkerPool) -> None:
    found = trace(megatron_pool, 0, microbatches=4)
    steady = played(found.program, "exchange", microbatch=1)
    kinds = column(steady, "kind")
    assert kinds[-3:] == [OpKind.SEND, OpKind.RECV, OpKind.SYNC]
    # Activation to the next stage, gradient from it; one launch; stage 0 of 2, so the next is 1 further on.
    assert column(steady, "phase")[-3:-1] == ["fwd", "bwd"]
    assert column(steady, "peer_delta")[-3:-1] == [1, 1]
    assert column(steady, "batch")[-3:-1] == [0, 0]
    assert column(steady, "num_bytes")[-3:-1] == [ACTIVATION, ACTIVATION]
    # Megatron waits for the device behind every batch (batch_p2p_sync).
    assert column(steady, "blocking")[-1] == 1 and column(steady, "stream")[-1] == ""


def test_backward_ops_know_their_forward_op(megatron_pool: WorkerPool) -> None:
    program = trace(megatron_pool, 0).program
    forward, backward = played(program, "fwd"), played(program, "bwd")
    names, modules = column(forward, "name"), column(forward, "module")
    checked = 0
    for name, phase, module, link in zip(
        *(column(backward, key) for key in ("name", "phase", "module", "forward_op")), strict=True
    ):
        if phase == "recompute":
            assert (names[link], modules[link]) == (name, module)
        if name == "aten::native_layer_norm_backward":
            assert (names[link], modules[link]) == ("aten::native_layer_norm", module)
            checked += 1
    assert checked == 2 * 2  # two layer norms in each of two layers
    assert "" not in {m for m, p in zip(modules, column(forward, "phase"), strict=True) if p == "recompute"}


def test_memory_is_counted_to_the_byte(megatron_pool: WorkerPool) -> None:
    found = trace(megatron_pool, 0, microbatches=4)
    # Per layer: qkv (3h^2 + 3h)/tp, projection h^2/tp + h, MLP 8h^2/tp + 4h/tp + h, two layer norms 4h.
    layer = 12 * H * H // TP + 7 * H // TP + 6 * H
    parameters = 4 * (2 * layer + V * H // TP + S * H)  # two layers, word and position embedding, fp32
    assert found.memory.parameters == found.memory.gradients == parameters
    # Two Adam moments; besides, one 4-byte step count per parameter tensor.
    tensors = 2 * 12 + 2
    assert found.memory.optimizer_states == 2 * parameters + 4 * tensors
    # What a step brings to life it also releases.
    net = sum(found.program.templates[entry.template].memory()[0] for entry in found.program.skeleton)
    assert net == 0
    # Two microbatches are in flight on stage 0 of 2, each keeps two layers' inputs; one layer is recomputed.
    assert found.program.peak_memory() > 2 * 2 * ACTIVATION


@pytest.mark.parametrize(
    ("changes", "gradient", "states"),
    [
        # bf16: parameters 2 bytes, gradients accumulated in fp32; fp32 copy and two moments
        ({"precision": "bf16"}, 4, 12),
        # sharded over dp = 2: half the optimizer states
        ({"precision": "bf16", "dp": 2, "distributed_optimizer": True}, 4, 6),
    ],
)
def test_memory_of_mixed_precision(
    megatron_pool: WorkerPool, changes: dict[str, object], gradient: int, states: int
) -> None:
    memory = trace(megatron_pool, 0, microbatches=1, **changes).memory
    # Buffers are padded to whole shards and counters are small: within one percent.
    count = memory.parameters / 2
    assert memory.gradients == pytest.approx(gradient * count, rel=0.01)
    assert memory.optimizer_states == pytest.approx(states * count, rel=0.01)


def calls(found: RankTrace) -> Counter[tuple[str, str, str, int]]:
    """(phase, call, group, bytes) of everything that is communicated, counted."""
    counted: Counter[tuple[str, str, str, int]] = Counter()
    for entry in found.program.skeleton:
        template = found.program.templates[entry.template]
        names = ("phase", "name", "group", "num_bytes")
        rows = zip(*(column(template, name) for name in names), strict=True)
        counted.update((phase, name.removeprefix("nccl::"), *rest) for phase, name, *rest in rows if rest[0])
    return counted


FLAT = {"tp": 1, "pp": 1, "recompute": "none", "precision": "bf16"}
LAYERS = 4


def test_context_parallel_sends_keys_and_values_round(megatron_pool: WorkerPool) -> None:
    counted = calls(trace(megatron_pool, 1, cp=4, **FLAT))
    # Keys and values of a quarter of the sequence, bf16; 3 times forward, per layer and microbatch.
    pair = 2 * (S // 4) * B * H * 2
    assert counted["fwd", "send", "cp", pair] == counted["fwd", "recv", "cp", pair] == 3 * LAYERS * 2
    # Backward: keys and values alone first, with gradients twice, gradients alone last.
    for call in ("send", "recv"):
        assert counted["bwd", call, "cp", pair] == counted["bwd", call, "cp", 2 * pair] == 2 * LAYERS * 2
    # Gradients are shared among the ranks of a sequence as among replicas.
    assert {key[1:3] for key in counted if key[0] == "grad_sync"} == {("all_reduce", "dp")}


def test_context_parallel_attention_is_half_of_every_exchange(megatron_pool: WorkerPool) -> None:
    flops: dict[int, int] = {}
    for rank in (0, 3):
        template = played(trace(megatron_pool, rank, cp=4, **FLAT).program, "fwd")
        rows = zip(column(template, "name"), column(template, "flops"), strict=True)
        flops[rank] = sum(count for name, count in rows if "attention" in name)
    # 4 s_q s_k h each: the own quarter, which is causal, and half of three others.
    quarter = 4 * (S // 4) ** 2 * B * H
    assert flops[0] == flops[3] == LAYERS * (quarter + 3 * quarter // 2)


def test_experts_exchange_tokens_twice_each_way(megatron_pool: WorkerPool) -> None:
    found = trace(megatron_pool, 1, dp=4, ep=4, num_experts=8, **FLAT)
    counted = calls(found)
    tokens = 2 * S * B * H * 2  # every token visits two experts, evenly; bf16
    assert counted["fwd", "all_to_all", "ep", tokens] == 2 * LAYERS * 2
    assert counted["bwd", "all_to_all", "ep", tokens] == 2 * LAYERS * 2
    # Two experts' MLPs of h * 4h twice are here; each sees the tokens of one expert of every rank.
    template = played(found.program, "fwd")
    rows = zip(column(template, "module"), column(template, "flops"), strict=True)
    expert_flops = sum(count for module, count in rows if "local_experts" in module)
    assert expert_flops == LAYERS * (2 * S * B) * 2 * (2 * H * 4 * H)


def test_a_load_decides_what_experts_compute(megatron_pool: WorkerPool) -> None:
    counts = token_counts(parse_load("zipf:1").shares(8, 0), S * B, 2)  # from each of four ranks
    assert counts[0] > 4 * counts[7]
    for rank in (0, 3):
        found = trace(megatron_pool, rank, dp=4, ep=4, num_experts=8, expert_load="zipf:1", **FLAT)
        template = played(found.program, "fwd")
        rows = zip(column(template, "module"), column(template, "flops"), strict=True)
        expert_flops = sum(count for module, count in rows if "local_experts" in module)
        here = 4 * int(counts[2 * rank] + counts[2 * rank + 1])
        assert expert_flops == LAYERS * here * 2 * (2 * H * 4 * H)
    with pytest.raises(InputError, match="needs num_experts"):
        job(expert_load="zipf")


def test_distributed_optimizer_overlaps_what_it_reduces_and_gathers(megatron_pool: WorkerPool) -> None:
    overlap = {"distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    found = trace(megatron_pool, 1, dp=4, **FLAT, **overlap)
    counted = calls(found)
    scattered = sum(size * n for (_, call, group, size), n in counted.items() if call == "reduce_scatter")
    gathered = sum(size * n for (_, call, group, size), n in counted.items() if call == "all_gather")
    # Gradients are fp32, parameters bf16; buffers are padded to shards.
    count = found.memory.parameters / 2
    assert scattered == pytest.approx(4 * count, rel=0.01) and gathered == pytest.approx(2 * count, rel=0.01)
    streams = {
        (call, stream)
        for template in found.program.templates.values()
        for call, stream in zip(column(template, "collective"), column(template, "stream"), strict=True)
        if call in ("reduce_scatter", "all_gather")
    }
    assert "compute" not in {stream for _, stream in streams}  # beside the computation


def test_selective_recomputation_repeats_attention_alone(megatron_pool: WorkerPool) -> None:
    program = trace(megatron_pool, 0, tp=1, pp=1, recompute="selective").program
    backward = played(program, "bwd")
    rows = zip(column(backward, "phase"), column(backward, "flops"), strict=True)
    # Scores and their product with the values: 2 s^2 h each, per layer.
    assert sum(count for phase, count in rows if phase == "recompute") == LAYERS * 4 * S**2 * B * H


def test_interleaved_pipeline_plays_every_chunk(megatron_pool: WorkerPool) -> None:
    small = job(microbatches=4, virtual_pipeline=2, recompute="none")
    (found,) = gpt_traces(megatron_pool, small, [(0, 4)])
    templates = found.program.templates
    forward = [(e.microbatch, e.chunk) for e in found.program.skeleton if templates[e.template].name == "fwd"]
    # Rounds of two microbatches: chunk 0 of both, then chunk 1 of both.
    assert forward == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]
    counted = calls(found)
    sent = sum(n for (_, call, _, size), n in counted.items() if call == "send" and size == ACTIVATION)
    # Forward both chunks go on; backward the second chunk's input came from the other stage: 4 microbatches.
    assert sent == 4 * 2 + 4
