"""Model flops against published formulas, and kernels against model flops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.known import BERT_LARGE, COUNTS, DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B, T5_11B, VIT_L, llama
from workloads.models import ModelSpec
from workloads.models.build import model_pieces
from workloads.models.flops import model_flops
from workloads.models.local import Shard
from workloads.models.software import SoftwareSpec

SEQ = 2048


@given(
    layers=st.integers(1, 96), heads=st.sampled_from([8, 16, 96]), size=st.sampled_from([64, 128]),
    seq=st.sampled_from([512, 2048, 4096]),
)  # fmt: skip
def test_gpt_as_megatron_counts(layers: int, heads: int, size: int, seq: int) -> None:
    # 72 B s l h^2 (1 + s / 6h + V / 12 l h): their 96 and 16 count recomputation (arXiv 2104.04473).
    h, vocab = heads * size, 51200
    model = ModelSpec(layers=layers, hidden=h, heads=heads, ffn=4 * h, vocab=vocab)
    expected = 72 * seq * layers * h**2 * (1 + seq / (6 * h) + vocab / (12 * layers * h))
    assert model_flops(model, seq, causal_once=False) == pytest.approx(expected, rel=1e-12)


def test_half_of_causal_scores() -> None:
    full, once = (model_flops(LLAMA3_8B, 8192, causal_once=once) for once in (False, True))
    # Scores: two products of s x s x (heads x size) a layer, forward and twice backward.
    assert full - once == 6 * 32 * 8192**2 * 4096 * 2 / 2


def test_six_flops_a_token_and_active_parameter() -> None:
    # DeepSeek-V3 activates 37 billion of 671 (arXiv 2412.19437), Mixtral 12.9 of 46.7 (arXiv 2401.04088).
    for model, active in ((DEEPSEEK_V3, 37.6e9), (MIXTRAL_8X7B, 12.88e9)):
        per_token = model_flops(model, 1, causal_once=True) / 6
        embedding = model.vocab * model.hidden
        assert per_token + embedding == pytest.approx(active, rel=0.02)


def test_a_sliding_window() -> None:
    model = LLAMA3_8B.model_copy(update={"sliding_window": 1024})
    seq, width = 4096, 32 * 128
    # The first 1024 rows see half as many on average: 1024 - 1024^2 / 2 / 4096 keys a row.
    saved = seq / 2 - (1024 - 1024**2 / (2 * seq))
    difference = model_flops(LLAMA3_8B, seq, causal_once=True) - model_flops(model, seq, causal_once=True)
    assert difference == 6 * 32 * seq * saved * 2 * width
    every_second = model.model_copy(update={"global_every": 2})
    assert model_flops(LLAMA3_8B, seq, causal_once=True) - model_flops(
        every_second, seq, causal_once=True
    ) == pytest.approx(difference / 2)


@pytest.mark.parametrize("name", [*sorted(COUNTS), "mtp"])
def test_forward_kernels_do_the_model_flops(name: str) -> None:
    model = COUNTS[name][0] if name in COUNTS else llama(
        layers=4, hidden=2048, heads=16, ffn=8192, vocab=32000, mtp_layers=1
    )  # fmt: skip
    made = model_pieces(model, Shard(1, SEQ, software=SoftwareSpec(vocab_multiple=1)))
    done = sum(k.flops for piece in made.all_pieces for k in piece.forward if k.op_class != "attention_fwd")
    scores = sum(k.flops for piece in made.all_pieces for k in piece.forward if k.op_class == "attention_fwd")
    assert done + scores == pytest.approx(made.model_flops_full_per_sample / 3, rel=2e-3)


@pytest.mark.parametrize(
    "model", [LLAMA3_8B, BERT_LARGE, T5_11B, VIT_L, MIXTRAL_8X7B], ids=lambda m: m.family
)
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_share_the_products(model: ModelSpec, tp: int) -> None:
    software = SoftwareSpec(vocab_multiple=1, vocab_multiple_times_tp=False)
    whole, part = (
        model_pieces(model, Shard(1, SEQ, tp=degree, etp=degree, software=software)) for degree in (1, tp)
    )
    for one, other in zip(whole.layers, part.layers, strict=True):
        sizes = [sum(k.flops for k in piece.forward if "router" not in k.module) for piece in (one, other)]
        assert sizes[0] == tp * sizes[1]
