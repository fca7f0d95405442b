"""What cannot be laid out is refused with the rule and the nearest valid value."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from tests.parallel.jobs import model
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.check import check_job
from workloads.parallel.generate import generate

CASES = {
    "length": ({}, {"global_batch": 10**9}, 0, r"microbatches are more .* nearest: 65536"),
    "tokens": ({"tp": 8, "sequence_parallel": True}, {"seq": 12}, 0,
               "tp=8 does not divide 12 tokens .* nearest: parallel.tp=6, or .*sequence_parallel=false"),
    "adapters": ({}, {"trainable": "lora"}, 0, "lora_rank=0: .* nearest: 1"),
    "adapters too": ({}, {"lora_rank": 4}, 0, "nearest: 0, or training.trainable=lora"),
    "adapted": ({}, {"trainable": "lora", "lora_rank": 4, "lora_targets": "q_proj"}, 0, "linear_qkv"),
    "nothing": ({}, {"trainable": "layer.1"}, 0, "matches no parameter; they are called .*weight"),
    "recomputed": ({}, {"recompute": "full", "recompute_layers": 7}, 0, "has 6 layers; nearest: 6"),
    "frozen": ({}, {"trainable": "["}, 0, "is no regular expression"),
    "heads": ({"tp": 3}, {}, 0, r"tp=3 does not divide 8 attention heads; nearest: parallel.tp=2 or 4"),
    "layers": ({"pp": 4}, {}, 0, r"6 layers do not divide into 4 stages x 1 chunks; nearest: 4 or 8 layers"),
    "chunks": ({"pp": 2, "virtual_stages": 2}, {}, 0, r"2 stages x 2 chunks; nearest: 4 or 8 layers"),
    "given": ({"pp": 2, "stage_layers": (5, 2)}, {}, 0, r"2 numbers that add up to 6; nearest: \[5, 1\]"),
    "too few": ({"pp": 2, "stage_layers": (5,)}, {}, 0, r"nearest: \[5, 1\]"),
    "many stages": ({"pp": 8}, {}, 0, r"nearest: 8 layers, or give stage_layers"),
    "empty": ({"pp": 3, "stage_layers": (3, 0, 3)}, {}, 0, "virtual stage 1 has 0 layers; nearest: 1"),
    "batch": ({"dp": 4}, {"global_batch": 10}, 0, r"10 is no multiple of .* = 4; nearest: 8 or 12"),
    "no batch": ({"dp": 4}, {"global_batch": 2}, 0, "nearest: 4"),
    "experts": ({"dp": 4, "ep": 4}, {}, 6, r"ep=4 does not divide 6 experts; nearest: parallel.ep=3 or 6"),
    "no experts": ({"dp": 2, "ep": 2}, {}, 0, "no experts; nearest: parallel.ep=1"),
    "experts cut by tp, too": ({"tp": 2, "dp": 2, "ep": 4}, {}, 8, "nearest: parallel.etp=1"),
    "expert ranks": ({"dp": 2, "ep": 4}, {}, 8, r"ep=4 does not divide 2 ranks of a pipeline stage"),
    "shards": ({"dp": 4, "dp_shard": 3}, {}, 0, r"dp_shard=3 does not divide 4 .* nearest: .*=2 or 4"),
    "sequence": ({"cp": 3}, {}, 0, r"cp=3 does not divide 128 tokens of a sequence; nearest: .*=2 or 4"),
    "ulysses": ({"tp": 4, "cp": 4, "cp_style": "ulysses"}, {}, 0, "cp=4 does not divide 2 attention heads"),
    "order": ({"order": "tp-cp-ep-dp-px"}, {}, 0, "unknown axis 'px'"),
    "order twice": ({"order": "tp-cp-ep-dp-dp"}, {}, 0, "must name each of tp, cp, ep, dp, pp once"),
    "V": ({"pp": 2, "virtual_stages": 3, "schedule": "zb_v"}, {}, 0, "zb_v has two chunks per"),
    "two chunks": ({"pp": 2, "schedule": "dualpipe_v"}, {}, 0, "two chunks per stage; nearest: 2"),
    "no pipeline": ({"virtual_stages": 2}, {}, 0, "model chunks need a pipeline"),
    "microbatches": ({"pp": 2, "virtual_stages": 3}, {"global_batch": 3}, 0, "nearest: 2 or 4 microbatches"),
    "dual pipe": (
        {"pp": 3, "virtual_stages": 2, "schedule": "dualpipe_v"}, {"global_batch": 5}, 0, "at least two per",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_refused(name):
    parallel, training, experts, reason = CASES[name]
    layers = 12 if name == "dual pipe" else 6
    training = {"global_batch": 4, "seq": 128, **training}
    with pytest.raises(InputError, match=reason):
        generate(model(layers, experts=experts), ParallelSpec(**parallel), TrainingSpec(**training))


def test_experts_that_change_the_stride_of_stages():
    # Dense: pp is 2 ranks further on (tp); experts: etp 1 x ep 4.
    parallel = ParallelSpec(tp=2, dp=4, pp=2, ep=4, etp=1, order="tp-cp-ep-pp-dp")
    with pytest.raises(InputError, match="experts 4; put pp last"):
        generate(model(6, experts=8), parallel, TrainingSpec(global_batch=4, seq=128))


def test_modules_of_recomputation_that_the_model_lacks_are_refused():
    training = TrainingSpec(seq=512, recompute="selective", recompute_modules=("moe_act",))
    with pytest.raises(InputError, match="'tiny' has no moe_act, which is of experts; nearest: mlp"):
        check_job(model(4), ParallelSpec(), training)
    check_job(model(4, experts=4), ParallelSpec(), training)
