"""Strategies of classes of layers: who shares what, bytes of collectives in closed form, refusals."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.apps.studies.classes import ClassStrategy, class_step
from simcore.apps.studies.codesign import RESOURCES, TOGETHER, points
from simcore.errors import InputError
from simcore.graph import graph_hash
from simcore.hardware import load_cluster
from simcore.run import Setup, run
from workloads.jobs import Description, complete
from workloads.parallel.job import Job
from workloads.parallel.static import static_memory
from workloads.parallel.strategy import groups_of

#: Elements of the networks below: 16 -> 64 -> 16 with biases, 17 (one pair) -> 64 -> 32, and 32 -> 1.
_BOTTOM, _TOP, _CLICK = 16 * 64 + 64 + 64 * 16 + 16, 17 * 64 + 64 + 64 * 32 + 32, 33
_DENSE = _BOTTOM + _TOP + _CLICK
_ROWS = 1000 * 16


def _job(num_gpus: int = 4, between: Any = (), **strategy: Any) -> Description:
    """Two groups of two GPUs; strategies are those of ``strategy``, beside other parts of a description."""
    parts = strategy.pop("parts", {})
    strategy.setdefault("tables", "row_wise")  # so that ranks are alike
    blocks = [
        {"block": "features", "width": 16},
        {"block": "tables", "tables": [{"rows": 1000, "dim": 16}], "name": "rows"},
        {"block": "mlp", "widths": [64, 16], "name": "bottom"},
        {"block": "dot"},
        *between,
        {"block": "mlp", "widths": [64, 32], "name": "top"},
        {"block": "click"},
    ]
    said = {"model": {"blocks": blocks}, "parallel": {"strategy": {"local": 2, **strategy}}, **parts}
    return complete(said, "here", num_gpus=num_gpus)


def _sent(job: Description, *modules: str) -> list[tuple[str, str, str, int]]:
    """Collectives of every rank (phase, which, group, bytes), of blocks ``modules`` or of parameters ("")."""
    graph = job.graph()
    assert len(graph.programs) == 1
    ops = graph.ops
    rows = zip(ops.phase, ops.name, ops.group, ops.num_bytes, ops.module, strict=True)
    return [
        (str(phase), str(name).removeprefix("nccl::"), str(group), int(size))
        for phase, name, group, size, module in rows
        if group and str(module) in (modules or ("",))
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Whole everywhere, which is what the job does without a word: one bucket over all ranks.
        ("ddp", [("grad_sync", "all_reduce", "dp", 4 * _DENSE)]),
        # Shards of two neighbours, which two groups have: gathered forward (the last stays), all but the
        # last again in backward, scattered, and each half added up over the groups.
        ("fsdp.ddp", [
            ("fwd", "all_gather", "intra", 4 * _BOTTOM), ("fwd", "all_gather", "intra", 4 * _TOP),
            ("fwd", "all_gather", "intra", 4 * _CLICK),
            ("grad_sync", "reduce_scatter", "intra", 4 * _CLICK),
            ("grad_sync", "all_reduce", "inter", 4 * ceil(_CLICK / 2)),
            ("bwd", "all_gather", "intra", 4 * _TOP), ("bwd", "all_gather", "intra", 4 * _BOTTOM),
            ("grad_sync", "reduce_scatter", "intra", 4 * _TOP),
            ("grad_sync", "all_reduce", "inter", 4 * _TOP // 2),
            ("grad_sync", "reduce_scatter", "intra", 4 * _BOTTOM),
            ("grad_sync", "all_reduce", "inter", 4 * _BOTTOM // 2),
        ]),
        # The same between groups, and ranks of a group have the same.
        ("ddp.fsdp", [
            ("fwd", "all_gather", "inter", 4 * _BOTTOM), ("fwd", "all_gather", "inter", 4 * _TOP),
            ("fwd", "all_gather", "inter", 4 * _CLICK),
            ("grad_sync", "reduce_scatter", "inter", 4 * _CLICK),
            ("grad_sync", "all_reduce", "intra", 4 * ceil(_CLICK / 2)),
            ("bwd", "all_gather", "inter", 4 * _TOP), ("bwd", "all_gather", "inter", 4 * _BOTTOM),
            ("grad_sync", "reduce_scatter", "inter", 4 * _TOP),
            ("grad_sync", "all_reduce", "intra", 4 * _TOP // 2),
            ("grad_sync", "reduce_scatter", "inter", 4 * _BOTTOM),
            ("grad_sync", "all_reduce", "intra", 4 * _BOTTOM // 2),
        ]),
        ("fsdp", [
            ("fwd", "all_gather", "world", 4 * _BOTTOM), ("fwd", "all_gather", "world", 4 * _TOP),
            ("fwd", "all_gather", "world", 4 * _CLICK),
            ("grad_sync", "reduce_scatter", "world", 4 * _CLICK),
            ("bwd", "all_gather", "world", 4 * _TOP), ("bwd", "all_gather", "world", 4 * _BOTTOM),
            ("grad_sync", "reduce_scatter", "world", 4 * _TOP),
            ("grad_sync", "reduce_scatter", "world", 4 * _BOTTOM),
        ]),
    ],
)  # fmt: skip
def test_dense_layers_send_what_their_words_say_in_order(words: str, expected: list[Any]) -> None:
    found = _sent(_job(dense=words))
    assert found == expected


def test_ddp_by_its_word_is_the_jobs_own_buckets_and_copies() -> None:
    training = {"bucket_bytes": 8192, "bucket_parameters": -1, "overlap_grad_reduce": True}
    plain, said = (_job(parts={"training": training}, **words) for words in ({}, {"dense": "ddp"}))
    assert said.parallel.strategy.dense == ""
    assert graph_hash(said.graph()) == graph_hash(plain.graph())
    # A transformer in shards beside them leaves networks their buckets, and DDP's copy of each.  Buckets of
    # 8 KiB, 2,048 elements, close with the click and the upper network's second layer (33 + 2,080), with its
    # first and the lower one's second (1,152 + 1,040), and with what is left (1,088).
    mixed = _job(parts={"training": training}, dense="ddp", transformer="fsdp", between=[
        {"block": "tokens", "width": 8, "tokens": 4, "folds": True},
        {"block": "transformer", "layers": 1, "hidden": 8, "heads": 2, "ffn": 16},
        {"block": "fold", "width": 17},
    ])  # fmt: skip
    sums = [size for _, name, group, size in _sent(mixed) if (name, group) == ("all_reduce", "world")]
    assert sums == [4 * (33 + 2080), 4 * (1152 + 1040), 4 * 1088]
    assert mixed.graph().ops.name.tolist().count("aten::copy_") == len(sums)


def test_tensor_parallel_layers_gather_samples_and_scatter_sums() -> None:
    job = _job(dense="tp.ddp", parts={"training": {"global_batch": 4 * 8}})
    # Eight samples a rank: 2 x 8 x 16 features in fp32 are gathered before the first layer of the network
    # below, 2 x 8 x 16 sums scattered behind the second; backward the other way round.
    wide = 4 * 2 * 8 * 16
    assert _sent(job, "bottom.0", "bottom.1") == [
        ("fwd", "all_gather", "intra", wide), ("fwd", "reduce_scatter", "intra", wide),
        ("bwd", "all_gather", "intra", wide),
    ]  # fmt: skip
    # Each has half of the columns and of the rows (the second layers' biases and the click whole), which
    # the other group has, too; of what both ranks of a group have, each saw other samples.
    copies = 16 + 32 + _CLICK
    halves = (_DENSE - copies) // 2
    reduced = _sent(job)
    assert [one[1:3] for one in reduced][:1] == [("all_reduce", "inter")]
    total = sum(size for _, name, group, size in reduced if (name, group) == ("all_reduce", "inter"))
    assert total == 4 * (halves + copies)
    assert (
        sum(size for _, name, group, size in reduced if (name, group) == ("all_reduce", "intra"))
        == 4 * copies
    )


@pytest.mark.parametrize(
    ("words", "shards", "copies"), [("ddp", 1, 4), ("fsdp.ddp", 2, 2), ("fsdp", 4, 1), ("ddp.fsdp", 2, 2)]
)
def test_memory_is_that_of_the_shards(words: str, shards: int, copies: int) -> None:
    job = Job.of(_job(dense=words, embedding="ddp", parts={"training": {"optimizer": "adam"}}))
    found = static_memory(job, 0)
    own = sum(ceil(one / shards) for one in (_BOTTOM, _TOP, _CLICK))
    # All in fp32; the table is whole on each rank, and has two moments for each element.
    assert found.parameters == 4 * own + 4 * _ROWS
    assert found.gradients + found.reduced == 4 * own
    assert found.moments == 8 * own + 8 * _ROWS
    # With every rank, nothing is held more often than its copies say.
    assert 4 * own >= 4 * _DENSE * copies / 4


@given(
    inner=st.sampled_from(["ddp", "fsdp", "tp"]), outer=st.sampled_from(["ddp", "fsdp", "tp"]),
    local=st.sampled_from([1, 2, 8]), nodes=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_every_level_is_in_one_group(inner: Any, outer: Any, local: int, nodes: int) -> None:
    found = groups_of((inner, outer), local, local * nodes)
    sizes = {"": 1, "intra": local, "inter": nodes, "world": local * nodes}
    three = [sizes[one] for one in (found.products, found.shards, found.replicas)]
    assert three[0] * three[1] * three[2] == local * nodes
    assert (found.num_products, found.num_shards) == (three[0], three[1])


def test_each_class_has_its_own_words() -> None:
    between = [
        {"block": "tokens", "width": 8, "tokens": 4, "folds": True},
        {"block": "transformer", "layers": 1, "hidden": 8, "heads": 2, "ffn": 16},
        {"block": "fold", "width": 17},
        {"block": "experts", "experts": 4, "active": 1, "widths": [32, 17]},
    ]
    blocks = [{"block": "features", "width": 16},
              {"block": "tables", "tables": [{"rows": 1000, "dim": 16}], "name": "rows"}]  # fmt: skip
    blocks += [*between, {"block": "mlp", "widths": [64], "name": "top"}, {"block": "click"}]
    said = {"dense": "ddp", "transformer": "fsdp", "expert": "mp.ddp", "embedding": "mp",
            "tables": "row_wise", "local": 2}  # fmt: skip
    job = complete({"model": {"blocks": blocks}, "parallel": {"strategy": said},
                    "training": {"global_batch": 32}}, "here", num_gpus=4)  # fmt: skip
    # A layer of attention 8 wide with a feed-forward block of 16: 4 x 8 x 8 + 2 x 8 x 16 weights, biases of
    # 3 x 8 + 8 + 16 + 8, two norms of 16.
    layer = 4 * 64 + 256 + 56 + 32
    gathers = [one for one in _sent(job) if one[1] == "all_gather"]
    assert gathers == [("fwd", "all_gather", "world", 4 * layer)]
    # Two of four experts here, each 17 -> 32 -> 17 without biases, which the other group has, too.
    experts = 2 * (17 * 32 + 32 * 17)
    over_groups = [size for _, name, group, size in _sent(job) if (name, group) == ("all_reduce", "inter")]
    assert over_groups == [4 * experts]
    # The router goes with the dense layers.
    dense = 17 * 4 + 17 * 64 + 64 + 65
    assert sum(size for _, name, group, size in _sent(job)
               if (name, group) == ("all_reduce", "world")) == 4 * dense  # fmt: skip
    # Samples travel to their experts within a group: eight of a rank, 17 wide.
    ops = job.graph().ops
    there = [
        (str(one), int(size))
        for one, name, size, module in zip(ops.group, ops.name, ops.num_bytes, ops.module, strict=True)
        if "experts" in str(module) and str(name).startswith("nccl")
    ]
    assert there == [("intra", 4 * 8 * 17)] * 4


def test_frozen_classes_are_gathered_and_never_reduced() -> None:
    frozen = _job(dense="fsdp", parts={"training": {"frozen": ["dense"]}})
    sent = _sent(frozen)
    assert sum(name == "all_gather" for _, name, _, _ in sent) > 0
    assert not any(name == "reduce_scatter" for _, name, _, _ in sent)
    assert "fused_adagrad" not in frozen.graph().ops.name.tolist()
    inference = _job(dense="fsdp", parts={"training": {"trainable": "none", "optimizer": "none"}})
    assert {phase for phase, *_ in _sent(inference)} == {"fwd"}


def test_gathers_and_sums_run_beside_kernels_and_folding_is_exact() -> None:
    job = _job(num_gpus=16, dense="fsdp.ddp", parts={"training": {"global_batch": 65536}})
    cluster = load_cluster("a100-40gb", {"cluster.num_nodes": "2"})
    graph = job.graph()
    folded, plain = (run(graph, cluster, Setup(fold=fold)) for fold in (True, False))
    assert folded.result.step_ps == plain.result.step_ps
    # Without anything ahead, a step lasts longer.
    late = _job(num_gpus=16, dense="fsdp.ddp",
                parts={"training": {"global_batch": 65536, "prefetch": 0}})  # fmt: skip
    assert run(late.graph(), cluster, Setup()).result.step_ps > folded.result.step_ps


def test_a_transformers_words_are_its_degrees() -> None:
    said = {"model": "llama3-8b", "parallel": {"strategy": {"transformer": "tp.ddp", "local": 8}}}
    job = complete(said, "here", num_gpus=32)
    assert (job.parallel.tp, job.parallel.dp, job.training.sharding) == (8, 4, "ddp")
    said["parallel"] = {"strategy": {"transformer": "fsdp.ddp", "local": 8}}
    sharded = complete(said, "here", num_gpus=32)
    assert (sharded.parallel.tp, sharded.parallel.dp_shard, sharded.training.sharding) == (1, 8, "fsdp2")


@pytest.mark.parametrize(
    ("model", "strategy", "told"),
    [
        ("llama3-8b", {"transformer": "ddp.fsdp", "local": 8}, "shards lie on neighbours; nearest: fsdp.ddp"),
        ("llama3-8b", {"transformer": "tp.ddp", "local": 5}, "local=5 does not divide 32 GPUs; nearest: 8"),
        ("dlrm-dcnv2-mlperf", {"dense": "fsdp", "local": 5}, "local=5 does not divide 32 ranks; nearest: 4"),
        ("resnet50", {"dense": "tp"}, "no dense layers whose products split; nearest: strategy.dense=fsdp"),
        ("dlrm-a-transformer", {"transformer": "tp.ddp", "local": 8},
         "4 heads on 8 ranks of strategy.transformer=tp; nearest: strategy.local=4"),
    ],
)  # fmt: skip
def test_words_that_cannot_be_are_refused_with_the_nearest(model: str, strategy: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        complete({"model": model, "parallel": {"strategy": strategy}}, "here", num_gpus=32).graph()


def test_codesign_finds_the_best_strategy_of_each_machine() -> None:
    found = list(points("dlrm-small", "a100-16", {}, (2.0,), search="dense=ddp:fsdp.ddp"))
    assert [one.resource for one in found] == ["as it is", *RESOURCES, TOGETHER]
    assert all(one.step_s and one.gain for one in found)
    gains = {one.resource: one.gain or 0.0 for one in found}
    # More of one thing never slows the best strategy, and all of it twice gains most, at most twice.
    assert all(gain >= 1 - 1e-9 for gain in gains.values())
    assert max(gains.values()) == gains[TOGETHER] <= 2 + 1e-9
    # It is the best of those that are searched.
    alone = class_step("dlrm-small", "a100-16", {"strategy.room_bytes": repr(0.75 * 80 * 2**30)},
                       ClassStrategy({"embedding": "mp", "dense": "ddp"}))  # fmt: skip
    assert alone.step_s is not None and found[0].step_s is not None
    assert found[0].step_s <= alone.step_s
