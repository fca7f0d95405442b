"""State-space layers, patterns of layers, experts in a latent width: closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.cost.kernel import KernelShape
from simcore.cost.roofline import RooflineCost
from simcore.errors import InputError
from simcore.hardware import load_cluster
from workloads.models.build import model_pieces
from workloads.models.check import check_model
from workloads.models.flops import model_flops
from workloads.models.hugging_face import from_hugging_face
from workloads.models.local import Shard
from workloads.models.pieces import KernelLaunch, ModelPiece
from workloads.models.public import named_model
from workloads.models.software import SoftwareSpec
from workloads.models.spec import MambaSpec, ModelSpec, MoeSpec, transformer_of

HIDDEN, HEADS, SIZE, STATE, GROUPS, SEQ = 256, 16, 32, 64, 4, 512
INNER = HEADS * SIZE
PROJECTED = 2 * INNER + 2 * GROUPS * STATE + HEADS
MAMBA = MambaSpec(heads=HEADS, head_size=SIZE, state=STATE, groups=GROUPS)


def hybrid(layer_pattern: str = "M-M*", **more: Any) -> ModelSpec:
    """Layers of one block each."""
    fields: dict[str, Any] = {
        "layers": len(layer_pattern), "hidden": HIDDEN, "heads": 8, "ffn": 1024, "vocab": 1000, "bias": False,
        "norm": "rmsnorm", "positions": "none", "mamba": MAMBA, "layer_pattern": layer_pattern, **more,
    }  # fmt: skip
    return ModelSpec(**fields)


def layer(model: ModelSpec, index: int = 0, **view: Any) -> ModelPiece:
    """A layer as one rank has it, with fused norms."""
    shard = Shard(**{"micro_batch": 1, "seq": SEQ, "software": SoftwareSpec(norm_fusion=True), **view})
    return model_pieces(model, shard).layers[index]


def names(kernels: tuple[KernelLaunch, ...], of: str) -> list[str]:
    """Kernels of a class in order."""
    return [kernel.name for kernel in kernels if kernel.op_class == of]


def test_parameters_of_a_layer() -> None:
    piece = layer(hybrid())
    channels = INNER + 2 * GROUPS * STATE
    # norm, projection; filters of 4 and biases; time steps' biases, A, D; norm of groups, projection back
    expected = HIDDEN + HIDDEN * PROJECTED + channels * (4 + 1) + 3 * HEADS + INNER + INNER * HIDDEN
    assert sum(parameter.numel for parameter in piece.parameters) == expected


def test_parameters_are_dealt_out_over_tensor_parallel_ranks() -> None:
    whole, half = layer(hybrid()), layer(hybrid(), tp=2, sequence_parallel=True)
    both = {p.name: p.numel for p in half.parameters}
    for parameter in whole.parameters:
        share = 1 if parameter.name.endswith("layers.0.norm.weight") else 2
        assert both[parameter.name] * share == parameter.numel, parameter.name


def test_what_forward_keeps() -> None:
    # In 16 bits a token: input and result of the norm before, what is scanned, output before its gate, and
    # input and result of the norm of groups; in 32 bits a deviation for each norm.
    each = 2 * (2 * HIDDEN + PROJECTED + 3 * INNER) + 4 * (1 + GROUPS)
    assert layer(hybrid()).saved_bytes == SEQ * each
    assert layer(hybrid(), micro_batch=3).saved_bytes == 3 * SEQ * each


def test_tensor_parallel_ranks_keep_their_heads() -> None:
    piece = layer(hybrid(), tp=2, sequence_parallel=True, software=SoftwareSpec(norm_fusion=True))
    each = HIDDEN + 2 * (HIDDEN // 2) + PROJECTED + 3 * INNER + 4 * (0.5 + GROUPS / 2)
    assert piece.saved_bytes == SEQ * each


def test_model_flops_are_megatrons() -> None:
    model = hybrid("M")
    # mamba_layer_flops and the logits of hybrid_flops (megatron/training/training.py), forward and backward
    scan = 7 * INNER * STATE
    expected = 3 * SEQ * (2 * HIDDEN * PROJECTED + scan + 2 * INNER * HIDDEN + 2 * HIDDEN * 1000)
    assert model_flops(model, SEQ, causal_once=True) == expected


def test_kernels_are_those_of_mamba_ssm() -> None:
    piece = layer(hybrid())
    assert names(piece.forward, "scan") == [
        "_chunk_cumsum_fwd_kernel", "_chunk_state_fwd_kernel", "_state_passing_fwd_kernel",
        "_bmm_chunk_fwd_kernel", "_chunk_scan_fwd_kernel",
    ]  # fmt: skip
    assert names(piece.backward, "scan") == [
        "_chunk_cumsum_fwd_kernel", "_bmm_chunk_fwd_kernel", "_chunk_state_fwd_kernel",
        "_state_passing_fwd_kernel", "_chunk_scan_bwd_dz_kernel", "_chunk_scan_bwd_dstates_kernel",
        "_state_passing_bwd_kernel", "_chunk_scan_chunk_state_bwd_dx_kernel", "_chunk_state_bwd_db_kernel",
        "_chunk_scan_bwd_dc_kernel", "_chunk_scan_bwd_dcb_kernel", "_bmm_chunk_bwd_kernel",
        "_bmm_chunk_bwd_kernel", "_chunk_scan_bwd_ddAcs_stable_kernel", "_chunk_cumsum_bwd_kernel",
    ]  # fmt: skip
    assert names(piece.forward, "short_conv") == ["causal_conv1d_fwd"]
    assert names(piece.backward, "short_conv") == ["causal_conv1d_fwd", "causal_conv1d_bwd"]


def test_bytes_of_kernels_are_those_of_the_slices_that_they_read() -> None:
    by_name = {kernel.name: kernel for kernel in layer(hybrid()).forward}
    chunks, state = SEQ // 128, GROUPS * STATE
    states = chunks * INNER * STATE
    made = by_name["_chunk_state_fwd_kernel"]
    assert made.flops == 2 * SEQ * INNER * STATE
    assert made.bytes_read == 2 * SEQ * (INNER + state) + 2 * 4 * SEQ * HEADS
    assert made.bytes_written == 4 * states
    scan = by_name["_chunk_scan_fwd_kernel"]
    # all of the scores' lower half and the diagonal's tiles: 3 of 4
    assert scan.flops == 2 * SEQ * INNER * STATE + 2 * SEQ * INNER * 128 * 3 // 4
    scores = chunks * GROUPS * 128 * 128
    assert scan.bytes_read == 4 * scores + 2 * SEQ * (2 * INNER + state) + 2 * 4 * SEQ * HEADS + 2 * states
    assert by_name["causal_conv1d_fwd"].bytes_written == 2 * SEQ * (INNER + 2 * state)


def test_context_parallelism_trades_tokens_for_heads() -> None:
    piece = layer(hybrid(), cp=4, seq=4 * SEQ)
    sent = [kernel.num_bytes for kernel in piece.forward if kernel.collective == "all_to_all"]
    # gate, input, both of the state's and time steps of a quarter of the tokens; then outputs
    assert sent == [2 * SEQ * width for width in (INNER, INNER, 256, 256, HEADS, INNER)]
    back = [kernel.num_bytes for kernel in piece.backward if kernel.collective == "all_to_all"]
    assert back == sent[::-1]
    conv = next(kernel for kernel in piece.forward if kernel.name == "causal_conv1d_fwd")
    assert conv.bytes_written == 2 * 4 * SEQ * (INNER + 2 * GROUPS * STATE) // 4


def test_groups_are_repeated_where_there_are_fewer_than_ranks() -> None:
    piece = layer(hybrid(mamba=MAMBA.model_copy(update={"groups": 2})), cp=4, seq=4 * SEQ)
    sent = [kernel.num_bytes for kernel in piece.forward if kernel.collective == "all_to_all"]
    assert sent[2:4] == [2 * SEQ * 4 * STATE] * 2


def test_each_letter_is_a_block_behind_a_norm() -> None:
    model = hybrid("M-*E", moe=MoeSpec(num_experts=8, top_k=2, ffn=128))
    kinds = [layer(model, index).parameters for index in range(4)]
    found = [{p.name.split(".")[3] for p in parameters} for parameters in kinds]
    assert found == [
        {"norm", "mixer"}, {"pre_mlp_layernorm", "mlp"}, {"input_layernorm", "self_attention"},
        {"pre_mlp_layernorm", "mlp"},
    ]  # fmt: skip
    assert any("experts" in p.name for p in kinds[3]) and not any("experts" in p.name for p in kinds[1])


def test_a_layer_of_two_letters_has_the_kernels_of_two_layers() -> None:
    pairs = hybrid("M-*-", layers=2)
    single = hybrid("M-*-")
    for index in range(2):
        both = layer(pairs, index).forward
        apart = (*layer(single, 2 * index).forward, *layer(single, 2 * index + 1).forward)
        assert [k.name for k in both] == [k.name for k in apart]


def test_further_tokens_layers_are_one_where_they_are_shared() -> None:
    def head(shared: bool) -> int:
        model = hybrid("M*", mtp_layers=2, mtp_pattern="*-", mtp_shared=shared)
        pieces = model_pieces(model, Shard(micro_batch=1, seq=SEQ))
        return sum(p.numel for p in pieces.head.parameters if "transformer_layer" in p.name)

    attention, dense = 4 * HIDDEN * HIDDEN, 2 * HIDDEN * 1024
    assert head(shared=True) == attention + dense + 2 * HIDDEN
    assert head(shared=False) == 2 * head(shared=True)


def test_latent_experts_work_on_fewer_columns() -> None:
    moe = MoeSpec(num_experts=8, top_k=2, ffn=128, shared_ffn=64, latent=64)
    piece = layer(hybrid("ME", moe=moe), 1, ep=4)
    sizes = {p.name.removeprefix("decoder.layers.1.mlp."): p.numel for p in piece.parameters}
    assert sizes["experts.linear_fc1.weight"] == 2 * 64 * 128
    assert sizes["fc1_latent_proj.weight"] == sizes["fc2_latent_proj.weight"] == 64 * HIDDEN
    assert sizes["shared_experts.linear_fc1.weight"] == 64 * HIDDEN
    sent = [kernel.num_bytes for kernel in piece.forward if kernel.collective.startswith("all_to_all")]
    assert max(sent) == 2 * SEQ * 2 * 64  # each token for two experts
    # Two products there and back, experts in between, all of a token's
    own = 2 * HIDDEN * 64 + 2 * 2 * 64 * 128 + 2 * HIDDEN * 64 + 8 * HIDDEN
    with_it = model_flops(hybrid("ME", moe=moe), SEQ, causal_once=True)
    assert with_it - model_flops(hybrid("M"), SEQ, causal_once=True) == 6 * SEQ * own


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_pattern": "M-M", "layers": 2}, "layer_pattern: 3 is no multiple of layers 2"),
        ({"layer_pattern": "MX"}, "'X' is no kind of layer"),
        ({"layer_pattern": "M-", "mamba": None}, "mamba: missing"),
        ({"layer_pattern": "ME"}, "moe: missing"),
        ({"layer_pattern": "", "layers": 2}, "needs a layer_pattern"),
        ({"layer_pattern": "MM", "layers": 1}, "has a block twice"),
        ({"mtp_pattern": "*"}, "mtp_layers is 0"),
        ({"mamba": MambaSpec(heads=6, groups=4)}, "6 is no multiple of groups 4"),
        (
            {"layer_pattern": "ME", "moe": MoeSpec(num_experts=8, top_k=2, ffn=64, first_layer=1)},
            "not first_layer",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_model(hybrid(**{"layer_pattern": "M-", **fields}))


def test_kernels_take_about_what_was_measured() -> None:
    """See Note [Scans in chunks] of simcore/cost/scan.py: clocks of a GPU in training."""
    model = transformer_of(named_model("nemotron3-nano-30b"), "Nemotron 3 Nano")
    piece = layer(model, seq=8192)
    gpu = load_cluster("h100-8").gpu
    cost = RooflineCost(gpu)
    slower = gpu.boost_clock_hz / 1.7e9

    def microseconds(kernel: KernelLaunch) -> float:
        shape = KernelShape(
            kernel.name, kernel.op_class, kernel.dtype, kernel.in_shapes, kernel.out_shapes, kernel.flops,
            kernel.bytes_read, kernel.bytes_written,
        )  # fmt: skip
        return cost.work(shape).sm_s * 1e6 * slower

    taken = {kernel.name: microseconds(kernel) for kernel in (*piece.forward, *piece.backward)
             if kernel.op_class in ("scan", "short_conv")}  # fmt: skip
    measured = {
        "_chunk_scan_chunk_state_bwd_dx_kernel": 343, "_chunk_state_fwd_kernel": 161,
        "causal_conv1d_fwd": 191, "causal_conv1d_bwd": 365,
    }  # fmt: skip
    for name, us in measured.items():
        assert taken[name] == pytest.approx(us, rel=0.16), name


#: config.json of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, what says something of its size.
NANO: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_hidden_layers": 52, "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "intermediate_size": 1856, "vocab_size": 131072, "mlp_hidden_act": "relu2",
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    "chunk_size": 128, "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_configuration_is_the_model_of_that_name() -> None:
    named = named_model("nemotron3-nano-30b")
    assert from_hugging_face(NANO) == named.model_copy(update={"name": "nemotron_h"})
    words = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    listed = [words[letter] for letter in NANO["hybrid_override_pattern"]]
    later = {key: value for key, value in NANO.items() if key != "hybrid_override_pattern"}
    assert from_hugging_face({**later, "layers_block_type": listed}) == from_hugging_face(NANO)
    with pytest.raises(InputError, match="layers of kind 'rwkv'"):
        from_hugging_face({**later, "layers_block_type": ["rwkv"]})
