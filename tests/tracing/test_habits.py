"""What programs do on their way: moves of parameters, loss scales, loaders, meshes, stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tracing.against import events
from tests.tracing.small_jobs import rows
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import Rounds, workers
from workloads.tracing.drive.script_job import ScriptJob

COLUMNS = ("name", "op_class", "flops", "bytes_read", "bytes_written")
SCRIPT = Path(__file__).parent / "scripts" / "habits.py"


def trace(pool: WorkerPool, habit: str, mail: Path, rank: int = 1, script: str = "habits") -> Any:
    """The RankTrace of one rank of two, and of those whose messages it needs."""
    job = ScriptJob(SCRIPT.with_stem(script), (habit,), world_size=2)
    rounds = Rounds(pool, lambda _: job, mail)
    rounds.run([rank])
    return rounds.seen


def names(found: Any) -> list[str]:
    """The ops of a step, in order."""
    return [name for (name,) in rows(found, "name")]


def flops(found: Any, phase: str = "") -> int:
    """Of a step, or of one phase."""
    return sum(number for number, name in rows(found, "flops", "phase") if phase in ("", name))


def communication(found: Any, *what: str) -> int:
    """Bytes of the collectives of a phase, kind and group."""
    columns = ("phase", "collective", "group", "num_bytes")
    return sum(size for *call, size in rows(found, *columns) if tuple(call) == what)


def test_parameters_move_by_their_data(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "moved", tmp_path).values()
    assert found.memory.parameters == 4 * (4 * 4 + 4)
    assert flops(found) == 2 * (2 * 2 * 4 * 4)  # forward and the weight's gradient: batch 2, 4 -> 4


def test_a_model_of_no_device_gets_memory_of_the_gpu(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "emptied", tmp_path).values()
    assert found.memory.parameters == 4 * (4 * 4 + 4 + 2 * 4)
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


def test_parameters_made_of_others_and_gradients_in_parts_of_a_storage(
    pool: WorkerPool, tmp_path: Path
) -> None:
    (found,) = trace(pool, "rebuilt", tmp_path).values()
    assert found.memory.parameters == found.memory.gradients == 4 * (4 * 4 + 4)
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


def test_a_scaled_step_of_an_optimizer_that_is_not_fused(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "scaled", tmp_path).values()
    ops = names(found)
    assert ops.count("aten::addcdiv_") == 2  # one for each parameter
    unscaled = ops.index("aten::_amp_foreach_non_finite_check_and_unscale_")
    assert unscaled < ops.index("aten::item") < ops.index("aten::addcdiv_")
    (overflow,) = [one for one, _ in found.asked if one.kind == "overflow"]
    assert overflow.answer == 0


def test_loaders_keep_what_is_given_by_position(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "loaded", tmp_path).values()
    assert flops(found) == 2 * (2 * 3 * 4 * 4)  # three rows a batch


def test_workers_of_a_loader_give_what_processes_would(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "", tmp_path, script="loaders").values()
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


def test_a_mesh_sets_the_device_of_a_rank(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "mesh", tmp_path).values()
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


@pytest.mark.parametrize("habit", ["store", "flags"])
def test_a_store_and_a_broadcast_hand_on_what_another_rank_has(
    pool: WorkerPool, habit: str, tmp_path: Path
) -> None:
    seen = trace(pool, habit, tmp_path)
    assert sorted(seen) == [0, 1]  # rank 0 was needed
    first, second = 2 * 2 * 4 * 4, 2 * 2 * 4 * 6
    # The second layer's backward pass is two products, the first's one: its input needs no gradient.
    assert {flops(found) for found in seen.values()} == {2 * first + 3 * second}


def test_what_nccl_would_refuse_is_doubted(pool: WorkerPool, tmp_path: Path) -> None:
    asked = [(one.kind, one.rule) for one, _ in trace(pool, "flags", tmp_path)[1].asked]
    assert ("refused", "NCCL refuses all_reduce of tensors that are not contiguous") in asked


def test_an_extension_that_is_missing_is_stood_in_for(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "extension", tmp_path).values()
    assert found.stand_ins == ("fused_weight_gradient_mlp_cuda",)
    (row,) = [row for row in rows(found, *COLUMNS) if row[0] == "wgrad_gemm_accum"]
    # Batch 2, 4 -> 6: reads input, gradient (of a sum: one number) and what it adds to, writes the last.
    added = 4 * 6 * 4
    assert row[1:] == ("gemm", 2 * 2 * 4 * 6, 4 * 2 * 4 + 4 + added, added)


@pytest.mark.parametrize("habit", ["timeouts", "compilers"])
def test_classes_that_this_build_lacks(pool: WorkerPool, habit: str, tmp_path: Path) -> None:
    (found,) = trace(pool, habit, tmp_path).values()
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


def test_flash_attention_of_an_extension(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "attention", tmp_path).values()
    ops = names(found)
    product = 2 * 2 * 4 * 8 * 8 * 64  # batch 2, 4 heads, 8 queries, 8 keys, width 64
    assert flops(found) == (2 + 5) * product  # flash attention's backward pass makes the scores anew
    assert len([op for op in ops if "scaled_dot_product" in op and "backward" not in op]) == 1
    for name in ("rotary_kernel", "layer_norm_fwd_1pass_kernel", "layer_norm_bwd_kernel"):
        assert name in ops
    assert found.stand_ins == ("flash_attn",)


def test_products_of_experts_by_an_extension(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "grouped", tmp_path).values()
    calls = [row for row in rows(found, "name", "flops") if row[1] or row[0].startswith("moe")]
    product = 2 * 8 * 4  # a token's
    assert calls == [
        ("moe_permute_topK_kernel", 0),
        ("aten::mm.out", 4 * product),
        ("aten::mm.out", 2 * product),
        ("moe_recover_topK_kernel", 0),
        ("moe_recover_topK_bwd_kernel", 0),
        *(
            ("aten::mm.out", tokens * product) for tokens in (4, 2, 4, 2)
        ),  # of the tokens, then of the weights
        ("moe_recover_topK_kernel", 0),
    ]


def test_states_of_eight_bits(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "blocks", tmp_path).values()
    columns = ("name", "bytes_read", "bytes_written")
    calls = [row for row in rows(found, *columns) if row[0].startswith("kOpt")]
    # Of 64 x 64: parameter and gradient in fp32, two states of a byte, a scale in fp32 for 256 of each.
    states = 2 * (64 * 64 + 64 * 64 // 256 * 4)
    assert calls == [
        ("kOptimizerStatic8bit2StateBlockwise", 2 * 64 * 64 * 4 + states, 64 * 64 * 4 + states),
        ("kOptimizer32bit2State", (2 + 2) * 64 * 4, (1 + 2) * 64 * 4),
    ]
    assert found.memory.optimizer_states == states + 2 * 64 * 4


@pytest.mark.parametrize("habit", ["replaced", "marked"])
def test_constructors_and_parameters_of_a_programs_own(pool: WorkerPool, habit: str, tmp_path: Path) -> None:
    (found,) = trace(pool, habit, tmp_path).values()
    assert flops(found) == 2 * (2 * 2 * 4 * 4)
    assert found.memory.parameters == 4 * (4 * 4 + 4)


def test_what_hangs_on_a_programs_class_of_tensors(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "hung", tmp_path, script="own_classes").values()
    assert flops(found) == 2 * (2 * 2 * (6 * 6) * 4 * (3 * 3 * 3))  # forward and the weight's gradient


def test_flash_attention_over_packed_sequences_and_in_a_window(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "packed", tmp_path).values()
    product = 2 * 64  # of a query and a key
    packed = 4 * (4 * 4 + 8 * 8) * product  # 4 heads, sequences of 4 and 8: every score of a causal kernel
    window = 2 * 4 * (1 + 2 + 3 + 5 * 4) * product  # 2 sequences of 8 queries that see up to 4 keys
    calls = [row for row in rows(found, "name", "op_class", "flops") if "attention" in row[1]]
    assert calls == [
        ("flash_fwd_causal", "attention_fwd", 2 * packed),
        ("flash_fwd_window", "attention_fwd", 2 * window),
        ("flash_bwd_window", "attention_bwd", 5 * window),
        ("flash_bwd_causal", "attention_bwd", 5 * packed),
        ("flash_fwd_causal", "attention_fwd", 2 * packed),
        ("flash_bwd_causal", "attention_bwd", 5 * packed),
    ]


def test_routes_are_known_of_scores_that_are_not(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "routed", tmp_path).values()
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


def test_a_backward_pass_that_the_engine_is_asked_for(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "engine", tmp_path).values()
    kinds = [found.program.templates[entry.template].name for entry in found.program.skeleton]
    assert kinds == ["begin", "fwd", "bwd", "optimizer"]


def test_batch_norm_over_all_ranks(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "synchronised", tmp_path)[1]
    calls = [row for row in rows(found, "phase", "collective", "num_bytes") if row[1]]
    # Forward: of 8 channels mean, inverse deviation and the count, of each of two ranks; backward: two sums.
    assert calls == [("fwd", "all_gather", 2 * (2 * 8 + 1) * 4), ("bwd", "all_reduce", 2 * 8 * 4)]
    # That both ranks have samples is no doubt of the program's.
    assert not [one for one, _ in found.asked if one.kind == "share"]


def test_gradients_in_bfloat16(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "compressed", tmp_path)[1]
    calls = [row for row in rows(found, "phase", "collective", "num_bytes") if row[1]]
    assert calls == [("grad_sync", "all_reduce", 2 * (4 * 4 + 4))]


def test_what_is_done_behind_a_reduction_holds_up_nobody(pool: WorkerPool, tmp_path: Path) -> None:
    trace_of = events(trace(pool, "compressed", tmp_path)[1].program)
    (reduced,) = [index for index, one in enumerate(trace_of) if one.is_call]
    back, out = trace_of[reduced + 1 : reduced + 3]
    # Gradients return to fp32 on a stream of torch's pool; then DDP copies them out of its bucket.
    assert (back.name, back.stream, back.waits) == ("aten::copy_", "side.1", [reduced])
    assert (out.name, out.stream, out.waits) == ("aten::copy_", "compute", [reduced + 1])


def test_passes_that_are_captured_are_launched_by_each_replay(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "graphed", tmp_path).values()
    product = 2 * 2 * 4 * 4
    assert (flops(found, "fwd"), flops(found, "bwd")) == (product, 2 * product)  # of input and weight
    kinds = [found.program.templates[entry.template].name for entry in found.program.skeleton]
    assert kinds == ["begin", "fwd", "bwd", "optimizer"]


def test_a_step_that_is_captured_is_a_step(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "captured", tmp_path).values()
    product = 2 * 2 * 4 * 4
    assert (flops(found, "fwd"), flops(found, "bwd")) == (product, product)  # of the weight alone
    streams = dict(rows(found, "name", "stream"))
    assert streams["aten::exp"] != streams["aten::addmm"] == streams["aten::copy_"]
    assert names(found).count("aten::addmm") == 1 and "optimizer" in {
        kind for (kind,) in rows(found, "phase")
    }


def test_weights_of_elsewhere_decide_nothing(pool: WorkerPool, tmp_path: Path) -> None:
    found = trace(pool, "downloaded", tmp_path, script="around")[1]
    assert flops(found) == 2 * (2 * 2 * 4 * 4)
    said = {asked.rule for asked, _ in found.asked if asked.kind == "missing"}
    assert said == {
        "https://example.org/no-such-weights.pth is not at hand: the model keeps its initial weights",
        "facebookresearch/no-such:main is not at hand: it is taken to offer no models",
    }


def test_places_of_what_is_not_known_are_an_order(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "ordered", tmp_path, script="around").values()
    assert {asked.rule for asked, _ in found.asked} == {"as they stand, the largest spread evenly"}
    # Forward and the weight's gradient, 4 -> 4, of the 12 of 16 rows that the mask leaves.
    assert flops(found) == 2 * (2 * 12 * 4 * 4)


def test_no_more_boxes_than_were_drawn_are_selected(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "drawn_few", tmp_path, script="around").values()
    assert "as many elements count as true as were set" in {asked.rule for asked, _ in found.asked}
    assert flops(found) == 2 * (2 * 12 * 4 * 4)


def test_a_model_that_is_only_asked_is_no_evaluation(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "evaluated", tmp_path, script="around").values()
    assert not [asked for asked, _ in found.asked if asked.kind == "evaluation"]
    assert flops(found, "fwd") == 2 * (2 * 2 * 4 * 4)  # both models


def test_an_assertion_holds(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "asserted", tmp_path, script="around").values()
    # Nobody asserts the answer that is kept in a variable: it is False, as flags of the device are.
    rules: dict[str, list[float]] = {}
    for asked, _ in found.asked:
        rules.setdefault(asked.rule, []).append(asked.answer)
    assert sorted(rules.pop("what a program asserts, or raises otherwise, is so")) == [0.0, 0.0, 1.0, 1.0]
    assert rules == {"an unknown truth value of the device, false": [0.0]}


@pytest.mark.parametrize("habit", ["aligned", "legacy", "measured", "sampled", "typed"])
def test_habits_from_before_devices_and_samples_made_there(
    habit: str, pool: WorkerPool, tmp_path: Path
) -> None:
    (found,) = trace(pool, habit, tmp_path, script="around").values()
    assert flops(found) == 2 * (2 * 2 * 4 * 4)  # forward and the weight's gradient: batch 2, 4 -> 4


def test_a_loop_of_megatron_core(pool: WorkerPool, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    job = ScriptJob(SCRIPT.with_name("megatron_loop.py"), (), world_size=4)
    rounds = Rounds(pool, lambda _: job, tmp_path)
    rounds.run([3])
    assert sorted(rounds.seen) == [0, 3]  # the first rank says how many steps there are
    found = rounds.seen[3]
    kinds = [found.program.templates[entry.template].name for entry in found.program.skeleton]
    assert [kind for kind in kinds if kind in ("fwd", "bwd")] == ["fwd", "bwd", "fwd", "bwd"]
    assert found.num_microbatches == 2 and kinds[-1] == "optimizer"
    width, tokens, layers, vocab = 64, 2 * 32, 2, 256
    half = 2 * tokens * (layers * 12 * width**2 + vocab * width) // 2  # products of a half of the model
    scores = layers * 2 * (2 * 2 * 32 * 32 * width) // 2  # and its half of the heads
    assert flops(found, "fwd") == 2 * (half + scores)
    assert flops(found, "bwd") == 2 * flops(found, "fwd")
    reduced = communication(found, "grad_sync", "all_reduce", "data_parallel_group_with_cp")
    # Rows and columns of products in halves, with biases of what is cut by columns; the rest is whole.
    cut = layers * (12 * width**2 + 7 * width) + 2 * vocab * width
    whole = layers * 6 * width + 2 * width + 32 * width
    assert reduced == 4 * (cut // 2 + whole)


@pytest.mark.parametrize(
    "habit", ["built_for_cuda", "defaults", "counted", "overwritten", "drawn", "asked_of_cuda"]
)
def test_what_programs_ask_of_their_node_devices_and_files(
    pool: WorkerPool, tmp_path: Path, habit: str
) -> None:
    (found,) = trace(pool, habit, tmp_path, script="around").values()
    assert found.memory.parameters == 4 * (4 * 4 + 4)
    assert flops(found) == 2 * (2 * 2 * 4 * 4)


def test_other_ranks_load_what_rank_0_has_saved(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDED_ON", str(tmp_path))
    with workers(1) as own:  # ranks have the environment in which they were readied
        job = ScriptJob(SCRIPT.with_stem("around"), ("handed_on",), world_size=2)
        rounds = Rounds(own, lambda _: job, tmp_path)
        rounds.run([0, 1])
    seen = rounds.seen
    assert sorted(seen) == [0, 1] and {flops(one) for one in seen.values()} == {2 * (2 * 2 * 4 * 4)}
    assert not (tmp_path / "second.pt").exists()


def test_kernels_that_are_built_beside_flash_attention(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "bare", tmp_path, script="around").values()
    built = {row[0]: row[1:] for row in rows(found, *COLUMNS) if not row[0].startswith("aten::")}
    # Two rows of four floats: 32 bytes; labels 16, a number a row 8.
    assert built == {
        "ln_fwd_kernel": ("norm_fwd", 0, 32 + 16, 32 + 8 + 8),
        "apply_rotary_kernel": ("elementwise", 0, 4 * 16, 2 * 16),
        "cunn_SoftMaxXEntropyForward": ("reduction", 0, 32 + 16, 8 + 8),
        "cunn_SoftMaxXEntropyBackward": ("elementwise", 0, 8 + 32 + 8 + 16, 32),
        "ln_bwd_kernel": ("norm_bwd", 0, 32 + 32 + 8 + 8 + 16, 32 + 2 * 16),
    }


def test_products_of_groups_in_fp32_are_one_for_each_group(pool: WorkerPool, tmp_path: Path) -> None:
    (found,) = trace(pool, "grouped", tmp_path, script="around").values()
    products = [work for name, work in rows(found, "name", "flops") if name == "aten::mm.out"]
    # Forward and both gradients: 4 and 12 rows, 4 -> 8.
    assert products == [2 * 4 * 4 * 8, 2 * 12 * 4 * 8] * 3
    (even,) = trace(pool, "groups_unknown", tmp_path, script="around").values()
    products = [work for name, work in rows(even, "name", "flops") if name == "aten::mm.out"]
    assert products == [2 * 8 * 8 * 8] * 6
    assert sum(asked.kind == "groups" for asked, _ in even.asked) == 2 and not any(
        asked.kind == "item" for asked, _ in even.asked
    )
