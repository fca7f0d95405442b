from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.cost import KernelShape, RooflineCost
from simcore.cost.attention import attention_shape
from simcore.errors import InputError
from simcore.hardware import gpu_names, load_gpu
from tests.cost.toys import TOY, TOY_ATTENTION, TOY_GPU

QUERY = (10, 10, 1280, 64)  # batch, heads, sequence, head dim


def attention(
    op_class: str = "attention_fwd", name: str = "_scaled_dot_product_flash_attention_full"
) -> KernelShape:
    backward = op_class == "attention_bwd"
    inputs = (QUERY,) * (4 if backward else 3)
    return KernelShape(name, op_class, "bfloat16", inputs, (QUERY,))


def test_full_attention_is_two_products() -> None:
    # 100 heads of 1280 x 1280 scores, 4 * 64 flops each: 4.194304e10 flops at 100 Tflop/s: 419.43 us.
    work = RooflineCost(TOY_GPU, parameters=TOY).work(attention())
    assert work.sm_s == pytest.approx(4 * 64 * 100 * 1280**2 / 100e12)
    assert work.blocks == 100 * 10  # 1280 / 128 query tiles a head
    # q, k, v read and the output written, 100 * 1280 * 64 values of 2 bytes each.
    assert work.hbm_bytes == 4 * 2 * 100 * 1280 * 64


def test_packed_sequences_are_as_many_as_their_scores_say() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    tokens = (12800, 10, 64)  # tokens, heads, head dim: 10 sequences of 1280
    flops = 4 * 64 * 10 * 10 * 1280**2
    for name in ("flash_fwd_full", "flash_fwd_causal"):
        packed = KernelShape(name, "attention_fwd", "bfloat16", (tokens,) * 3, (tokens,), flops=flops)
        assert cost.work(packed).sm_s == cost.work(attention(name=name)).sm_s


def test_causal_attention_skips_tiles_above_the_diagonal() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    causal = cost.work(attention(name="_scaled_dot_product_flash_attention"))
    # 10 key tiles a row in full; 1 + 2 + ... + 10 = 55 of 100 with the mask.
    assert causal.sm_s == pytest.approx(0.55 * cost.work(attention()).sm_s)


def test_backward_is_five_products_and_the_query_gradient_in_fp32() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    name = "_scaled_dot_product_flash_attention_full_backward"
    # Beside the products, per value of a query: 2 bytes of output and of its gradient read, 4 cleared, 4 read
    # and 2 written. 14 bytes for 100 * 1280 * 64 values at 1 TB/s: 114.7 us.
    around = 14 * 100 * 1280 * 64 / 1e12
    assert cost.work(attention("attention_bwd", name)).sm_s == pytest.approx(
        2.5 * cost.work(attention()).sm_s + around
    )


def test_the_ends_of_a_sequence_are_whole_tiles() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)

    def causal(seq: int) -> float:
        query = (4, 16, seq, 64)
        return cost.work(
            KernelShape("flash_attention", "attention_fwd", "bfloat16", (query,) * 3, (query,))
        ).sm_s

    # 4 rows of blocks visit 1 + 2 + 3 + 4 key tiles; 559 tokens are 5 rows: 15 tiles.
    assert causal(559) == pytest.approx(1.5 * causal(512))
    assert causal(559) == causal(640)


def test_wide_heads_reach_a_smaller_share() -> None:
    parameters = replace(TOY, attention={"flash2": replace(TOY_ATTENTION, wide_head_dim=32, wide_share=0.5)})
    plain = RooflineCost(TOY_GPU, parameters=TOY).work(attention()).sm_s
    assert RooflineCost(TOY_GPU, parameters=parameters).work(attention()).sm_s == pytest.approx(2 * plain)


def of_one_score(**changed: float) -> float:
    """Seconds of one SM for a forward score of a head of 64 on the toy GPU."""
    parameters = replace(TOY, attention={"flash2": replace(TOY_ATTENTION, **changed)})  # type: ignore[arg-type]
    return RooflineCost(TOY_GPU, parameters=parameters).work(attention()).sm_s * 100 / (100 * 1280**2)


def test_products_operands_and_softmax_overlap_but_for_a_share() -> None:
    # Products: 4 * 64 flops at 1 Tflop/s, 0.256 ns.  Operands: 2 * 64 * 2 bytes for 64 rows at 128 bytes per
    # clock of 1 GHz, 0.03125 ns.  Softmax: 1/16 ns, and 3.5 + 64/128 instructions.
    lanes_per_s = TOY_GPU.peak_flops["fp32"] / (2 * TOY_GPU.num_sms)
    rest = 0.03125e-9 + 0.0625e-9 + 4 / lanes_per_s
    assert of_one_score() == pytest.approx(0.256e-9)
    assert of_one_score(overlap_loss=1.0) == pytest.approx(0.256e-9 + rest)
    assert of_one_score(overlap_loss=0.25) == pytest.approx(0.256e-9 + rest / 4)


def test_operands_that_serve_few_rows_take_longer_than_products() -> None:
    # A read for 4 rows: 16 times the 0.03125 ns above.
    assert of_one_score(operand_rows=4) == pytest.approx(0.5e-9)


def test_faster_tensor_cores_help_less_than_their_share() -> None:
    """Shared memory and softmax do not become faster with the tensor cores: H100 against A100 did so."""
    parameters = replace(TOY, attention={"flash2": replace(TOY_ATTENTION, overlap_loss=0.5)})
    faster = replace(TOY_GPU, peak_flops={**TOY_GPU.peak_flops, "bf16": 2 * TOY_GPU.peak_flops["bf16"]})
    once, twice = (
        RooflineCost(gpu, parameters=parameters).work(attention()).sm_s for gpu in (TOY_GPU, faster)
    )
    assert once / 2 < twice < once


def test_fp32_takes_three_tf32_products() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    fp32 = cost.work(replace(attention(), dtype="float32"))
    # tf32 peak 50 Tflop/s, a third of it, against bf16's 100: six times the time.  No row backs it.
    assert fp32.sm_s == pytest.approx(6 * cost.work(attention()).sm_s)
    assert not fp32.fitted


def test_a_single_long_block_bounds_the_time() -> None:
    # One head, 128 queries: one block on one SM of 1 Tflop/s, 4 * 64 * 128 * 128 flops.
    lone = KernelShape(
        "sdpa_attention_full", "attention_fwd", "bfloat16", ((1, 128, 64),) * 3, ((1, 128, 64),)
    )
    work = RooflineCost(TOY_GPU, parameters=TOY).work(lone)
    assert work.sm_s == pytest.approx(4 * 64 * 128 * 128 / 1e12)


@pytest.mark.parametrize("query", [(2, 512, 8, 64), (512, 2, 8, 64), (2, 8, 512, 64)])
def test_lengths_follow_from_flops_in_any_layout(query: tuple[int, ...]) -> None:
    flops = 4 * 2 * 8 * 512 * 512 * 64
    kernel = KernelShape(
        "flash_attention_fwd", "attention_fwd", "bfloat16", (query,) * 3, (query,), flops=flops
    )
    shape = attention_shape(kernel)
    assert (shape.heads, shape.seq_q, shape.seq_k, shape.head_dim, shape.causal) == (16, 512, 512, 64, True)


def test_family_by_name_or_preset() -> None:
    h100 = load_gpu("h100-sxm")
    preset = RooflineCost(h100, attention="cudnn").work(attention(name="sdpa_attention")).sm_s
    named = RooflineCost(h100).work(attention(name="_scaled_dot_product_cudnn_attention")).sm_s
    default = RooflineCost(h100).work(attention(name="sdpa_attention")).sm_s
    assert preset == named < default
    with pytest.raises(InputError, match="did you mean 'flash3'"):
        RooflineCost(h100, attention="flash33")


def test_needs_tensors() -> None:
    kernel = KernelShape("flash_attention_fwd", "attention_fwd", "bfloat16", ((3, 4),), ())
    with pytest.raises(InputError, match="needs q, k, v"):
        RooflineCost(TOY_GPU, parameters=TOY).work(kernel)


@settings(max_examples=80, deadline=None)
@given(
    gpu=st.sampled_from(gpu_names()),
    heads=st.integers(1, 300),
    seq=st.integers(1, 5000),
    head_dim=st.sampled_from([40, 64, 96, 128, 192, 256]),
    mask=st.sampled_from(["", "_full"]),
    backward=st.booleans(),
    more=st.integers(1, 700),
)
def test_more_work_never_takes_less_time_and_peak_is_never_passed(
    gpu: str, heads: int, seq: int, head_dim: int, mask: str, backward: bool, more: int
) -> None:
    cost = RooflineCost(load_gpu(gpu))
    op_class = "attention_bwd" if backward else "attention_fwd"

    def seconds(heads: int, seq: int, head_dim: int) -> float:
        query = (heads, seq, head_dim)
        inputs = (query,) * (4 if backward else 3)
        return cost.work(KernelShape(f"flash{mask}_attention", op_class, "float16", inputs, (query,))).sm_s

    once = seconds(heads, seq, head_dim)
    assert once <= seconds(heads + more, seq, head_dim)
    assert once <= seconds(heads, seq + more, head_dim)
    assert once <= seconds(heads, seq, head_dim + 8)
    # At least half of the scores are computed, with 4 flops per score and head dim (10 in backward).
    flops = heads * seq * seq * head_dim * (10 if backward else 4) * (1.0 if mask else 0.5)
    assert flops / once <= cost.gpu.peak_flops["fp16"]


def test_wide_heads_take_shorter_tiles_where_two_do_not_fit() -> None:
    # 2 heads of 4096 queries: with tiles of 128 the longest of few blocks has half of the work.
    wide = replace(attention(), in_shapes=((1, 2, 4096, 256),) * 3, out_shapes=((1, 2, 4096, 256),))
    by_tile = {}
    for rows in (0, 128):
        family = replace(TOY_ATTENTION, tile_q=256, wide_tile_q=rows)
        cost = RooflineCost(TOY_GPU, parameters=replace(TOY, attention={"flash2": family}))
        by_tile[rows] = cost.work(wide).sm_s
    assert by_tile[0] == pytest.approx(2 * by_tile[128])
    narrow = RooflineCost(
        TOY_GPU, parameters=replace(TOY, attention={"flash2": replace(TOY_ATTENTION, wide_tile_q=64)})
    )
    assert narrow.work(attention()).sm_s == RooflineCost(TOY_GPU, parameters=TOY).work(attention()).sm_s


def _windowed(keys: int, **changed: object) -> float:
    """Seconds on SMs of 64 heads of 1,280 queries that each see ``keys`` keys up to their own."""
    parameters = replace(TOY, attention={"flash2": replace(TOY_ATTENTION, **changed)})  # type: ignore[arg-type]
    shapes = (QUERY, (10, 10, keys, 64), (10, 10, keys, 64))
    kernel = KernelShape("flash_attention_window_fwd", "attention_fwd", "bfloat16", shapes, (QUERY,))
    return RooflineCost(TOY_GPU, parameters=parameters).work(kernel).sm_s


def test_blocks_of_a_window_visit_its_tiles_and_those_of_their_own_rows() -> None:
    tile = 4 * 64 * 128 * 128 / 1e12  # of 128 queries and 128 keys, on one SM
    # 10 blocks a head visit 2 tiles each, 100 heads on 100 SMs.
    assert _windowed(128) == pytest.approx(10 * 2 * tile)
    # 5 blocks of 256 rows visit 3 tiles of 128 keys each, twice as long.
    assert _windowed(128, tile_q=256) == pytest.approx(5 * 3 * 2 * tile)
    # A window as wide as the sequence is a causal mask: 1 + 2 + ... + 10 tiles.
    assert _windowed(1279) == pytest.approx(55 * tile)


def test_a_step_waits_for_its_scores_whatever_the_width() -> None:
    tile = 4 * 64 * 128 * 128 / 1e12
    # 100 blocks of 10 steps on each SM.
    assert of_one_score(step_s=0.5 * tile) == of_one_score()
    assert of_one_score(step_s=3 * tile) == pytest.approx(3 * of_one_score())


@pytest.mark.parametrize(("heads", "faster"), [(5, 2.0), (100, 1.0)])
def test_two_sms_share_a_block_of_wide_heads_where_they_are_idle(heads: int, faster: float) -> None:
    query = (1, heads, 1280, 64)
    kernel = KernelShape("flash_attention_full_fwd", "attention_fwd", "bfloat16", (query,) * 3, (query,))
    alone, pairs = (
        RooflineCost(
            TOY_GPU,
            parameters=replace(
                TOY,
                attention={
                    "flash2": replace(
                        TOY_ATTENTION, wide_head_dim=32, wide_tile_q=128, wide_pairs=shared, tile_q=256
                    )
                },
            ),
        ).work(kernel)
        for shared in (False, True)
    )
    # 10 blocks a head: 50 of them, on 100 SMs, or 1,000.
    assert alone.sm_s / pairs.sm_s == pytest.approx(faster)
