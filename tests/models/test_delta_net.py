"""Gated delta-rule layers and gated attention: closed forms, and published times of kernels."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.cost.classify import classify
from simcore.cost.kernel import KernelShape
from simcore.cost.roofline import RooflineCost
from simcore.errors import InputError
from simcore.hardware import load_cluster
from tests.models.test_parameters import num_parameters
from workloads.models.build import model_pieces
from workloads.models.check import check_model
from workloads.models.delta_rule import DeltaSizes, delta_rule
from workloads.models.flops import model_flops
from workloads.models.hugging_face import from_hugging_face
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape
from workloads.models.pieces import KernelLaunch, ModelPiece
from workloads.models.software import SoftwareSpec
from workloads.models.spec import DeltaSpec, ModelSpec

HIDDEN, HEADS, KEY_HEADS, SIZE, SEQ = 256, 8, 4, 32, 512
INNER, KEYS = HEADS * SIZE, KEY_HEADS * SIZE
CHANNELS, PROJECTED = 2 * KEYS + INNER, 2 * KEYS + 2 * INNER + 2 * HEADS
DELTA = DeltaSpec(heads=HEADS, key_heads=KEY_HEADS, key_size=SIZE, value_size=SIZE)


def hybrid(layer_pattern: str = "G-*-", **more: Any) -> ModelSpec:
    """Layers of one block each."""
    fields: dict[str, Any] = {
        "layers": len(layer_pattern), "hidden": HIDDEN, "heads": 8, "ffn": 1024, "vocab": 1000, "bias": False,
        "norm": "rmsnorm", "positions": "none", "delta": DELTA, "layer_pattern": layer_pattern, **more,
    }  # fmt: skip
    return ModelSpec(**fields)


def layer(model: ModelSpec, index: int = 0, **view: Any) -> ModelPiece:
    """A layer as one rank has it, with fused norms."""
    software = SoftwareSpec(norm_fusion=True, attention="cudnn")
    shard = Shard(**{"micro_batch": 1, "seq": SEQ, "software": software, **view})
    return model_pieces(model, shard).layers[index]


def names(kernels: tuple[KernelLaunch, ...]) -> list[str]:
    """Kernels of the rule in order."""
    return [kernel.name for kernel in kernels if kernel.op_class == "delta_rule"]


def test_parameters_of_a_layer() -> None:
    # norm, projection; filters of 4; A and biases of time steps; a norm of one head, projection back
    expected = HIDDEN + HIDDEN * PROJECTED + 4 * CHANNELS + 2 * HEADS + SIZE + INNER * HIDDEN
    assert sum(parameter.numel for parameter in layer(hybrid()).parameters) == expected


def test_parameters_are_dealt_out_over_tensor_parallel_ranks() -> None:
    whole, half = layer(hybrid()), layer(hybrid(), tp=2, sequence_parallel=True)
    both = {p.name: p.numel for p in half.parameters}
    for parameter in whole.parameters:
        share = 1 if parameter.name.endswith("norm.weight") else 2
        assert both[parameter.name] * share == parameter.numel, parameter.name


def test_what_forward_keeps() -> None:
    # In 16 bits a token: both sides of the norm before, what was projected, normed queries and keys of their
    # own heads and of all, values, the output's gate, a gate and the inverse of each head, the rule's output,
    # the norm of it and the gate again, the gated norm; in 32 bits decays and deviations of all norms.
    narrow = 2 * HIDDEN + PROJECTED + 2 * KEYS + 2 * INNER + 2 * INNER + HEADS + 64 * HEADS + 4 * INNER
    wide = HEADS + 1 + 2 * KEY_HEADS + HEADS
    assert layer(hybrid()).saved_bytes == SEQ * (2 * narrow + 4 * wide)


def test_kernels_are_those_of_flash_linear_attention() -> None:
    piece = layer(hybrid())
    assert names(piece.forward) == [
        "chunk_gated_delta_rule_fwd_kkt_solve_kernel", "recompute_w_u_fwd_kernel",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "chunk_fwd_kernel_o",
    ]  # fmt: skip
    assert names(piece.backward) == [
        "recompute_w_u_fwd_kernel", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "chunk_bwd_kernel_dv_local", "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",
        "chunk_bwd_kernel_dqkwg", "prepare_wy_repr_bwd_kernel",
    ]  # fmt: skip
    for kernel in (*piece.forward, *piece.backward):
        if kernel.op_class in ("delta_rule", "short_conv"):  # as a recording finds them, by name
            assert classify(kernel.name) == kernel.op_class


def test_flops_of_kernels() -> None:
    by_name = {kernel.name: kernel.flops for kernel in layer(hybrid()).forward}
    states = 2 * SEQ * HEADS * SIZE * SIZE
    assert by_name["chunk_gated_delta_rule_fwd_kernel_h_blockdim64"] == 2 * states
    assert by_name["chunk_fwd_kernel_o"] == states + 2 * SEQ * HEADS * 64 * 2 * SIZE


def test_model_flops_are_megatrons() -> None:
    # gdn_layer_flops and the logits of hybrid_flops (megatron/training/training.py), forward and backward
    each = HIDDEN * PROJECTED + 4 * CHANNELS + HEADS * SIZE**2 * 4 + HIDDEN * INNER
    assert model_flops(hybrid("G"), SEQ, causal_once=True) == 6 * SEQ * (each + HIDDEN * 1000)


def test_context_parallelism_trades_tokens_for_heads() -> None:
    piece = layer(hybrid(), cp=4, seq=4 * SEQ)
    sent = [kernel.num_bytes for kernel in piece.forward if kernel.collective == "all_to_all"]
    assert sent == [2 * SEQ * PROJECTED, 2 * SEQ * INNER]
    assert [k.num_bytes for k in piece.backward if k.collective == "all_to_all"] == sent[::-1]
    rule = next(kernel for kernel in piece.forward if kernel.name == "chunk_fwd_kernel_o")
    assert rule.out_shapes == ((1, 4 * SEQ, HEADS // 4, SIZE),)


def test_attention_behind_a_gate() -> None:
    plain, gated = (layer(hybrid(attention_gate=gate), 2) for gate in (False, True))
    more = {p.name: p.numel for p in gated.parameters}
    for p in plain.parameters:
        assert more[p.name] - p.numel == (HIDDEN * HIDDEN if "linear_qkv" in p.name else 0), p.name
    # Kept beside: the gate, and what the output projection reads, which is not what attention wrote.
    assert gated.saved_bytes - plain.saved_bytes == 2 * SEQ * 2 * HIDDEN
    flops = [model_flops(hybrid("*", attention_gate=gate), SEQ, causal_once=True) for gate in (False, True)]
    assert flops[1] - flops[0] == 6 * SEQ * HIDDEN * HIDDEN


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"delta": None}, "delta: missing"),
        ({"layer_pattern": "", "layers": 2}, "needs a layer_pattern with 'G'"),
        ({"delta": DeltaSpec(heads=6, key_heads=4)}, "6 is no multiple of key_heads 4"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_model(hybrid(**fields))


def milliseconds(cluster: str, batch: int, seq: int, heads: int, size: int) -> tuple[float, float]:
    """Forward and backward of the rule with norms of queries and keys, as it is benchmarked."""
    cost, tape = RooflineCost(load_cluster(cluster).gpu), OpTape()
    delta_rule(tape, DeltaSizes(batch, seq, heads, size, size), "bfloat16", "m")
    piece = tape.piece("rule", Shard(1, seq).tensor(1), input_bytes=0)

    def taken(kernel: KernelLaunch) -> float:
        return cost.alone_ps(
            KernelShape(
                kernel.name, kernel.op_class or classify(kernel.name), kernel.dtype, kernel.in_shapes,
                kernel.out_shapes, kernel.flops, kernel.bytes_read, kernel.bytes_written,
            )
        )  # fmt: skip

    rows = Shard(1, seq).tensor(batch * seq * heads, size)
    usable = cost.gpu.hbm_bytes_per_s * cost.gpu.hbm_efficiency
    norms = [2 * passes * rows.num_bytes / usable for passes in (2, 3)]
    return (
        sum(map(taken, piece.forward)) / 1e9 + norms[0] * 1e3,
        sum(map(taken, piece.backward)) / 1e9 + norms[1] * 1e3,
    )


@pytest.mark.parametrize(
    ("cluster", "sizes", "measured"),
    [
        ("h800-96", (1, 8192, 96, 128), 2.033), ("h800-96", (2, 16384, 16, 128), 1.342),
        ("h200-8", (2, 4096, 4, 64), 0.11), ("h200-8", (2, 8192, 4, 64), 0.22),
        ("b200-8", (1, 8192, 8, 128), 0.362), ("b200-8", (1, 8192, 16, 128), 0.412),
        ("b200-8", (1, 4096, 96, 128), 0.774), ("b200-8", (1, 8192, 96, 128), 1.492),
    ],
)  # fmt: skip
def test_forward_takes_about_what_was_measured(
    cluster: str, sizes: tuple[int, int, int, int], measured: float
) -> None:
    """See Note [Walks through chunks] of simcore/cost/scan.py; no constant is from a B200's rows."""
    assert milliseconds(cluster, *sizes)[0] == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("heads", "seq", "ratio"), [(32, 4096, 2.48), (32, 65536, 2.56), (64, 16384, 2.59)])
def test_backward_takes_as_much_longer_as_was_measured(heads: int, seq: int, ratio: float) -> None:
    forward, backward = milliseconds("h100-8", 1, seq, heads, 128)
    assert backward / forward == pytest.approx(ratio, rel=0.04)


def test_a_walk_lasts_as_long_for_few_heads_as_for_many() -> None:
    # 33 heads have 132 blocks of 32 columns, one for each SM of an H100.
    few, many = (milliseconds("h100-8", 1, 65536, heads, 128)[0] for heads in (1, 33))
    steps = 1024 * 128 * 2 * 16.4 / load_cluster("h100-8").gpu.boost_clock_hz * 1e3
    assert few == pytest.approx(steps, rel=0.1) and many > steps


#: transformers 5.24's config classes with these values, and parameters of the models that they make.
CONFIGS: list[tuple[dict[str, Any], int]] = [
    (
        {"model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
         "num_key_value_heads": 2, "intermediate_size": 5632, "vocab_size": 151936, "num_experts": 512,
         "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
        79_674_391_296,
    ),
    (
        {"model_type": "qwen3_5_text", "num_hidden_layers": 64, "hidden_size": 5120,
         "num_attention_heads": 24,
         "num_key_value_heads": 4, "intermediate_size": 17408, "vocab_size": 248320,
         "linear_num_value_heads": 48},
        26_895_998_464,
    ),
    (
        {"model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048,
         "num_attention_heads": 16,
         "num_key_value_heads": 2, "vocab_size": 248320, "num_experts": 256, "num_experts_per_tok": 8,
         "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
        34_660_610_688,
    ),
    (
        {"model_type": "olmo_hybrid", "num_hidden_layers": 4, "hidden_size": 3840, "num_attention_heads": 30,
         "intermediate_size": 11008, "vocab_size": 100352},
        1_603_227_636,
    ),
    (
        {"model_type": "bamba", "num_hidden_layers": 4, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128000, "mamba_n_heads": 128,
         "mamba_d_head": "auto"},
        2_166_603_264,
    ),
    (
        {"model_type": "granitemoehybrid", "num_hidden_layers": 4, "hidden_size": 4096,
         "num_attention_heads": 32,
         "intermediate_size": 11008, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
         "shared_intermediate_size": 1024, "tie_word_embeddings": False},
        5_054_512_640,
    ),
    (
        {"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 4096, "num_heads": 128,
         "vocab_size": 32768},
        706_999_808,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), CONFIGS, ids=[c["model_type"] for c, _ in CONFIGS])
def test_configurations_have_as_many_parameters_as_transformers_makes(
    config: dict[str, Any], expected: int
) -> None:
    assert num_parameters(from_hugging_face(config)) == expected
