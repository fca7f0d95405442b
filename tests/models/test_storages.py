"""Storages of pieces: what backward needs is kept, everything is released once, sizes are the tensors'."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from tests.parallel.jobs import jobs
from workloads.jobs import complete
from workloads.models.software import SoftwareSpec
from workloads.models.storages import INPUT, OUTPUT_GRADIENT, storages_of
from workloads.parallel.job import Job

MIB = 1 << 20
#: Layers of GPT-3 175B with dropout.
DROPPED = {"layers": 2, "hidden": 12288, "heads": 96, "ffn": 4 * 12288, "vocab": 51200, "dropout": 0.1}


def pieces(model, **words):
    made = complete({"model": model, **words}, "a job", num_gpus=64, generation="hopper")
    job = Job(made.model, made.parallel, made.training, made.software)
    return list({id(piece): piece for piece in job.pieces.all_pieces}.values()), job


def kept(piece):
    return sum(one.num_bytes for one in storages_of(piece).storages if one.kept)


def events_once(piece, kinds):
    """Each storage is made and freed once, but for what goes on to the neighbours."""
    made = storages_of(piece)
    events = [event for kind in kinds for event in made.events[kind]]
    allocated = Counter(event for event in events if event >= 0)
    freed = Counter(~event for event in events if event < 0)
    assert set(allocated.values()) <= {1} and set(freed.values()) <= {1}
    given = {INPUT, OUTPUT_GRADIENT} if made.output >= 0 else {INPUT}
    own = set(range(OUTPUT_GRADIENT + 1, len(made.storages)))
    assert set(allocated) == own
    assert set(freed) == (own | given) - {made.output, made.input_gradient}
    alive = set(given)
    for event in events:
        if event >= 0:
            alive.add(event)
        else:
            alive.remove(~event)  # nothing is freed before it is there


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
def test_what_pieces_keep_is_what_they_say_and_all_is_released_once(job):
    for piece in {id(piece): piece for piece in Job(*job, SoftwareSpec()).pieces.all_pieces}.values():
        origins = piece.origins
        assert len(origins.forward) == len(piece.forward)
        assert len(origins.backward) == len(piece.backward)
        assert sum(map(sum, origins.kept)) + origins.keeps_input * origins.input_bytes == piece.saved_bytes
        events_once(piece, "FB")
        events_once(piece, "FIW")


@pytest.mark.parametrize("recompute", ["none", "selective", "full", "ops"])
@pytest.mark.parametrize("model", ["gpt3-175b", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "t5-11b"])
def test_families(model, recompute):
    for piece in pieces(model, training={"recompute": recompute})[0]:
        events_once(piece, "FB")
        events_once(piece, "FIW")


def test_a_layer_keeps_the_tensors_that_its_equations_name():
    # Llama 3 8B, 2,048 tokens in bf16 on one rank: hidden 4096, keys and values 2 x 1024, ffn 14336.
    found, job = pieces("llama3-8b", training={"seq": 2048})
    assert job.parallel.tp == 1
    layer = storages_of(found[1])
    row = 2048 * 2  # bytes of a column of bf16
    expected = {
        "input": row * 4096,
        "input_layernorm": row * 4096 + 2048 * 4,  # what it writes, and a statistic in fp32
        "linear_qkv": row * (4096 + 2 * 1024),
        "core_attention": row * 4096 + 2048 * 32 * 4,  # the output, and a sum a row and head in fp32
        "0": row * 4096,  # the residual sum that the second norm reads
        "pre_mlp_layernorm": row * 4096 + 2048 * 4,
        "linear_fc1": row * 2 * 14336,
        "mlp": row * 14336,
    }
    by_module = Counter()
    for one in layer.storages:
        if one.kept:
            by_module[one.module.rpartition(".")[2] or one.name] += one.num_bytes
    assert dict(by_module) == expected


def test_recomputation_in_full_keeps_the_input_alone():
    layer = pieces("llama3-8b", training={"recompute": "full"})[0][1]
    made = storages_of(layer)
    after_forward = {event for event in made.events["F"] if event >= 0} - {
        ~event for event in made.events["F"] if event < 0
    }
    assert after_forward == {made.output}
    assert made.storages[INPUT].kept
    # Backward brings back what a layer without recomputation keeps, which counts the input, too.
    assert kept(layer) == kept(pieces("llama3-8b")[0][1])


def peak_of_backward(piece, module):
    """Bytes of a module's storages that are there at once in backward, at most."""
    made = storages_of(piece)
    own = {n: one.num_bytes for n, one in enumerate(made.storages) if one.module.endswith(module)}
    live = {n for n in made.events["F"] if n in own} - {~n for n in made.events["F"] if n < 0}
    most = 0
    for event in made.events["B"]:
        if event in own:
            live.add(event)
        live.discard(~event)
        most = max(most, sum(own[n] for n in live))
    return most


def test_attention_in_several_kernels_lets_probabilities_go_one_by_one():
    said = {
        "training": {"seq": 512, "recompute": "none"}, "parallel": {"tp": 1},
        "software": {"preset": "megatron-core", "attention": "unfused"},
    }  # fmt: skip
    layer = pieces(DROPPED, **said)[0][1]
    scores, values = 96 * 512 * 512 * 2, 512 * 12288 * 2
    # What the softmax made, what dropout made of it, its mask of a byte, and the gradient of the product with
    # them; then dropout's with the mask, where the softmax's is written, too. Beside it the output and the
    # gradient of values.
    assert peak_of_backward(layer, "core_attention") == 3.5 * scores + values


@pytest.mark.parametrize(("wide", "kept_bytes"), [(False, 2 + 2 + 1), (True, 4 + 2 + 1)])
def test_a_softmax_without_a_kernel_of_its_own_may_be_in_fp32(wide, kept_bytes):
    # Of each score the softmax's output, what dropout made of it in 16 bits, and a byte of mask.
    said = {
        "training": {"seq": 512, "recompute": "none"}, "parallel": {"tp": 1},
        "software": {
            "preset": "megatron-core", "attention": "unfused", "softmax_fusion": False, "softmax_fp32": wide
        },
    }  # fmt: skip
    layer = storages_of(pieces(DROPPED, **said)[0][1])
    found = [one for one in layer.storages if one.kept and one.module.endswith("core_attention")]
    assert (
        sum(one.num_bytes for one in found if one.num_bytes >= 96 * 512 * 512) == kept_bytes * 96 * 512 * 512
    )


def test_gradients_of_weights_in_8_bits_let_go_what_gradients_of_inputs_were_for():
    # DualPipe has many of them waiting. What they read: the gradient of the output and the input, both cast.
    of_all, _ = pieces("deepseek-v3", software="deepseek-v3", parallel={"pp": 1, "ep": 64})
    for piece in of_all:
        made = storages_of(piece, (("ep", 64),))
        of_inputs = {event for event in made.events["I"] if event >= 0}
        waiting = [made.storages[~event] for event in made.events["W"] if ~event in of_inputs]
        names = {(one.name.partition(".")[0], one.module.partition("layers.")[2][2:]) for one in waiting}
        # What goes back to whoever sent a token, and weights turned round for it.
        assert ("blockwise_grouped_gemm", "mlp.experts.linear_fc1") not in names
        assert ("transpose_cast_fp8", "self_attention.linear_proj") not in names
