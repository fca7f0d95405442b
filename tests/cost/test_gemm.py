from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.cost import KernelShape, RooflineCost
from simcore.cost.gemm import gemm_dims, operand_bytes
from simcore.errors import InputError
from simcore.hardware import gpu_names, load_gpu
from simcore.hardware.specs import GpuSpec
from simcore.tables import names
from tests.cost.toys import TOY, TOY_GPU, with_gemm


def product(m: int, n: int, k: int, dtype: str = "bfloat16", batch: int = 0) -> KernelShape:
    if batch:
        shapes = ((batch, m, k), (batch, k, n)), ((batch, m, n),)
        return KernelShape("aten::bmm", "bgemm", dtype, *shapes, flops=2 * batch * m * n * k)
    return KernelShape("aten::mm", "gemm", dtype, ((m, k), (k, n)), ((m, n),), flops=2 * m * n * k)


def test_one_wave_of_tiles() -> None:
    # 1000 x 1000 outputs are 10 x 10 tiles of 100 x 100: one on each of 100 SMs.  A tile has
    # 2 * 100 * 100 * 5000 = 1e8 flops, an SM does 100e12 / 100 = 1e12 a second: 100 us.
    work = RooflineCost(TOY_GPU, parameters=TOY).work(product(1000, 1000, 5000))
    assert work.sm_s == pytest.approx(100e-6, rel=1e-12)
    assert (work.blocks, work.blocks_per_sm) == (100, 1)
    # Inputs 2 * 1000 * 5000, output 1000 * 1000 elements of 2 bytes.
    assert work.hbm_bytes == 2 * (2 * 1000 * 5000 + 1000 * 1000)


def test_one_tile_more_costs_a_wave_more() -> None:
    # 1001 rows need 11 x 10 = 110 tiles: two waves of 100 us.
    assert RooflineCost(TOY_GPU, parameters=TOY).work(product(1001, 1000, 5000)).sm_s == pytest.approx(200e-6)
    # Where only a quarter of a tail is lost: 1.1 waves + 0.25 * 0.9 = 1.325 waves.
    soft = RooflineCost(TOY_GPU, parameters=with_gemm(tail_share=0.25))
    assert soft.work(product(1001, 1000, 5000)).sm_s == pytest.approx(132.5e-6)


def test_short_k_is_pipeline_fill_and_epilogue() -> None:
    # One wave; math of 2 * 1e4 * 10 / 1e12 = 0.2 us, 3 us to fill the pipeline, 2 us to drain.
    cost = RooflineCost(TOY_GPU, parameters=with_gemm(tile_latency_s=3e-6, epilogue_s=2e-6))
    assert cost.work(product(1000, 1000, 10)).sm_s == pytest.approx(5.2e-6)


def test_split_k_fills_idle_sms() -> None:
    # One tile of k = 1e6: 2 * 1e4 * 1e6 / 1e12 = 20 ms on one SM.  Split in 50: 0.4 ms on 50 SMs, plus
    # 10 us and 50 fp32 slices written and read, 50 * 1e4 * 8 B / 100 TB/s = 0.04 us.
    cost = RooflineCost(TOY_GPU, parameters=with_gemm(splits=(1, 50), split_latency_s=10e-6))
    work = cost.work(product(100, 100, 1_000_000))
    assert work.sm_s == pytest.approx(400e-6 + 10e-6 + 0.04e-6)
    assert work.blocks == 50


def test_small_tiles_pay_for_their_operands() -> None:
    # Tile 100 x 100 has intensity 50; 50 x 50 has 25.  With operand intensity 25 the small tile runs at
    # (1 + 25/50) / (1 + 25/25) = 3/4 of the large one's rate.
    large = RooflineCost(TOY_GPU, parameters=with_gemm(operand_intensity=25.0))
    both = with_gemm(operand_intensity=25.0, tiles=((100, 100), (50, 50)))
    # 500 x 500: 25 large tiles, one wave of 100 us; or 100 small ones, one wave of 25 us / (3/4).
    assert large.work(product(500, 500, 5000)).sm_s == pytest.approx(100e-6)
    assert RooflineCost(TOY_GPU, parameters=both).work(product(500, 500, 5000)).sm_s == pytest.approx(
        25e-6 * 4 / 3
    )


def test_memory_bound_product_takes_its_bytes() -> None:
    # k = 1 on 10000 x 10000: 1e4 tiles, 100 waves of 2 * 1e4 / 1e12 = 0.02 us: 2 us.
    # Output 2e8 B and inputs 4e4 B at 1 TB/s: 200.04 us; one launch 1 us.
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    assert cost.seconds(product(10000, 10000, 1)) == pytest.approx(201.04e-6)


def test_long_kernels_meet_the_power_limit() -> None:
    # 1000 waves of 100 us = 100 ms at full clock; sustained at 80%: 25% slower in the limit, half of that
    # when the kernel lasts as long as the throttling takes.
    gpu = replace(TOY_GPU, gemm_efficiency=0.8)
    cost = RooflineCost(gpu, parameters=with_gemm(throttle_s=0.1))
    assert cost.work(product(100_000, 10_000, 5000)).sm_s == pytest.approx(0.1 * 1.125)


def test_misaligned_rows_load_slowly() -> None:
    cost = RooflineCost(TOY_GPU, parameters=with_gemm(misaligned_slowdown=3.0))
    aligned, odd = cost.work(product(800, 800, 4096)), cost.work(product(800, 800, 4097))
    # 4097 bf16 values are rows aligned to 2 bytes: 3 times the main loop, of 4097/4096 the length.
    assert odd.sm_s / aligned.sm_s == pytest.approx(3 * 4097 / 4096)


@pytest.mark.parametrize(("persistent", "blocks"), [("none", 400), ("static", 100), ("dynamic", 0)])
def test_persistence_is_data(persistent: str, blocks: int) -> None:
    # 2000 x 2000: 20 x 20 = 400 tiles on 100 SMs.
    cost = RooflineCost(TOY_GPU, parameters=with_gemm(persistent=persistent))
    assert cost.work(product(2000, 2000, 64)).blocks == blocks


def test_fp32_runs_on_cuda_cores_unless_tf32_is_chosen() -> None:
    # 10, 50 and 100 Tflop/s: the same tile takes 1000, 200 and 100 us.
    seconds = [
        RooflineCost(TOY_GPU, math, parameters=TOY).work(product(1000, 1000, 5000, dtype)).sm_s
        for dtype, math in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"))
    ]
    assert seconds == pytest.approx([1000e-6, 200e-6, 100e-6])


def test_batched_product_equals_its_tiles() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    # 25 products of 4 tiles each fill 100 SMs as one product of 100 tiles does (memory time apart).
    assert cost.work(product(200, 200, 5000, batch=25)).sm_s == cost.work(product(1000, 1000, 5000)).sm_s


@pytest.mark.parametrize(
    ("kernel", "dims"),
    [
        (KernelShape("aten::mm", "gemm", "float32", ((8, 3), (3, 5)), ((8, 5),)), (8, 5, 3, 1)),
        (KernelShape("aten::addmm", "gemm", "float32", ((5,), (8, 3), (3, 5)), ((8, 5),)), (8, 5, 3, 1)),
        (KernelShape("aten::linear", "gemm", "float32", ((2, 4, 3), (5, 3)), ((2, 4, 5),)), (8, 5, 3, 1)),
        (KernelShape("aten::bmm", "bgemm", "float32", ((7, 8, 3), (7, 3, 5)), ((7, 8, 5),)), (8, 5, 3, 7)),
        (
            KernelShape("aten::baddbmm", "bgemm", "float32", ((7, 8, 5), (7, 8, 3), (7, 3, 5)), ((7, 8, 5),)),
            (8, 5, 3, 7),
        ),
        # A weight gradient accumulated in place: 6 tokens, outputs 5, inputs 3.
        (KernelShape("wgrad_gemm_accum", "gemm", "float32", ((6, 5), (6, 3)), ()), (5, 3, 6, 1)),
    ],
)
def test_dims_from_shapes(kernel: KernelShape, dims: tuple[int, int, int, int]) -> None:
    assert gemm_dims(kernel) == dims
    m, n, k, batch = dims
    assert gemm_dims(replace(kernel, flops=2 * m * n * k * batch)) == dims


SIZES = st.integers(1, 64).map(lambda size: size * 64)
DTYPES = st.sampled_from(["float32", "bfloat16"])


@settings(max_examples=60, deadline=None)
@given(gpu=st.sampled_from(gpu_names()), m=SIZES, n=SIZES, k=SIZES, dtype=DTYPES, factor=st.integers(1, 4))
def test_more_work_never_takes_less_time_and_peak_is_never_passed(
    gpu: str, m: int, n: int, k: int, dtype: str, factor: int
) -> None:
    spec = load_gpu(gpu)
    if dtype == "bfloat16" and "bf16" not in spec.peak_flops:
        dtype = "float16"
    cost = RooflineCost(spec)
    mode = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[dtype]
    base = cost.seconds(product(m, n, k, dtype))
    assert base > 2 * m * n * k / spec.peak_flops[mode]
    for grown in ((m * factor, n, k), (m, n * factor, k), (m, n, k * factor)):
        assert cost.seconds(product(*grown, dtype)) >= base * (1 - 1e-12)


def faster(spec: GpuSpec, what: str) -> GpuSpec:
    if what == "clock":
        peaks = {mode: 2 * peak for mode, peak in spec.peak_flops.items()}
        return replace(spec, boost_clock_hz=2 * spec.boost_clock_hz, peak_flops=peaks)
    return replace(spec, **{what: 2 * getattr(spec, what)})


@settings(max_examples=40, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES, what=st.sampled_from(["clock", "hbm_bytes_per_s", "l2_bytes_per_s"]))
def test_a_faster_gpu_never_slows_a_product(m: int, n: int, k: int, what: str) -> None:
    spec = load_gpu("h800")
    kernel = product(m, n, k)
    assert RooflineCost(faster(spec, what)).seconds(kernel) <= RooflineCost(spec).seconds(kernel) * (
        1 + 1e-12
    )


#: Published cuBLAS rates, Tflop/s, at m = n = k (sources in hardware_profiles/cost/*.toml).
PUBLISHED_FP32 = [
    ("h100-sxm", 2048, 49.58), ("h100-sxm", 4096, 51.88), ("h100-sxm", 8192, 51.81),
    ("v100", 2048, 12.71), ("v100", 4096, 13.85), ("v100", 8192, 14.38),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "size", "teraflops"), PUBLISHED_FP32)
def test_fp32_rates_as_published(gpu: str, size: int, teraflops: float) -> None:
    seconds = RooflineCost(load_gpu(gpu)).seconds(product(size, size, size, "float32"))
    assert 2 * size**3 / seconds / 1e12 == pytest.approx(teraflops, rel=0.06)


def test_every_profile_has_constants() -> None:
    assert {load_gpu(name).table("cost") for name in gpu_names()} <= set(names("hardware_profiles", "cost"))


def test_convolution_is_an_implicit_product() -> None:
    # 4 images of 50 x 50 pixels, 100 channels in and out, 3 x 3: a product of 10000 x 100 x 900.
    # 100 tiles of 2 * 1e4 * 900 flops on 1 Tflop/s each: 18 us.
    flops = 2 * 10_000 * 100 * 900
    shapes = ((4, 100, 50, 50), (100, 100, 3, 3)), ((4, 100, 50, 50),)
    forward = KernelShape("aten::convolution", "conv", "bfloat16", *shapes, flops=flops)
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    assert cost.work(forward).sm_s == pytest.approx(18e-6)
    # Backward: the gradient of the input is such a product again, that of the filters one of 100 x 900 x
    # 10000, whose 9 tiles run at once: 200 us.
    inputs = ((4, 100, 50, 50), *shapes[0])
    outputs = ((4, 100, 50, 50), (100, 100, 3, 3))
    backward = KernelShape("aten::convolution_backward", "conv", "bfloat16", inputs, outputs, flops=2 * flops)
    assert cost.work(backward).sm_s == pytest.approx(218e-6)
    assert cost.work(backward).launches == 2


def test_block_scaled_fp8_adds_a_multiply_add_per_output_and_block() -> None:
    gpu = replace(TOY_GPU, peak_flops={"fp32": 10e12, "bf16": 100e12, "fp8": 200e12})
    cost = RooflineCost(gpu, parameters=TOY)
    plain = product(1000, 1000, 5120, "float8_e4m3fn")
    scaled = replace(plain, name="blockwise_gemm")
    # Per output and block of 128: 256 flops at 200 Tflop/s and 2 at 10: 1.28 + 0.2 against 1.28.
    assert cost.work(scaled).sm_s == pytest.approx(cost.work(plain).sm_s * 1.48 / 1.28)
    bf16 = product(1000, 1000, 5120)
    assert cost.work(replace(bf16, name="blockwise_gemm")).sm_s == cost.work(bf16).sm_s


def test_operands_through_l2_are_shared_by_multicast() -> None:
    gpu = replace(TOY_GPU, l2_bytes_per_s=1e12)
    # 100 tiles of (100 + 100) * 5000 * 2 bytes, and 2 MB of outputs: 202 MB at 1 TB/s; half of it to pairs.
    alone = RooflineCost(gpu, parameters=TOY).work(product(1000, 1000, 5000)).sm_s
    paired = RooflineCost(gpu, parameters=with_gemm(multicast=2)).work(product(1000, 1000, 5000)).sm_s
    assert alone == pytest.approx(202e-6)
    assert paired == pytest.approx(101e-6)


def test_experts_leave_half_a_tile_of_rows_empty_each() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    even = product(200, 1000, 5000, batch=5)
    uneven = replace(even, name="grouped_gemm")
    # 5 groups of 2 x 10 tiles: one wave of 100 us.  With 2.5 rows of tiles on average there are 125: two.
    assert cost.work(even).sm_s == pytest.approx(100e-6)
    assert cost.work(uneven).sm_s == pytest.approx(200e-6)


def test_products_one_by_one_last_as_long_as_one_after_the_other() -> None:
    holds = replace(TOY, tensor=replace(TOY.tensor, persistent="dynamic"))
    cost = RooflineCost(TOY_GPU, parameters=holds)
    one = product(200, 1000, 5000)
    together = product(200, 1000, 5000, batch=5)
    each = replace(together, name="aten::bmm.each")
    # 20 tiles on 100 SMs: a wave of 100 us.  Five products together are one wave, one by one five.
    assert cost.work(one).sm_s == cost.work(together).sm_s == pytest.approx(100e-6)
    assert cost.work(each).sm_s == pytest.approx(500e-6)
    assert cost.work(each).hbm_bytes == pytest.approx(5 * cost.work(one).hbm_bytes)
    # Where blocks give their SMs back the next product takes them.
    shared = RooflineCost(TOY_GPU, parameters=TOY)
    assert shared.work(each) == shared.work(together)


def test_a_weight_gradient_is_added_to_what_is_there() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    plain = product(1000, 1000, 5000)
    accumulated = replace(plain, name="wgrad_gemm_accum")
    # A million outputs: 2 bytes written, or 4 read and 4 written; in 16 bits where the columns say so.
    assert cost.work(accumulated).hbm_bytes - cost.work(plain).hbm_bytes == 6_000_000
    half = replace(accumulated, bytes_read=1, bytes_written=2_000_000)
    assert cost.work(half).hbm_bytes - cost.work(plain).hbm_bytes == 2_000_000


def test_a_product_launched_by_itself_starts_as_its_neighbours() -> None:
    memory = replace(TOY.memory, prologue_s=3e-6)
    cost = RooflineCost(TOY_GPU, parameters=replace(with_gemm(prologue_s=1e-6), memory=memory))
    eager = KernelShape("aten::mm", "gemm", "bfloat16", ((100, 100), (100, 100)), ((100, 100),))
    # Of a graph, the 1 us that graphs were measured with; by itself the 3 us of memory-bound kernels.
    assert cost.work(replace(eager, replayed=True)).prologue_s == pytest.approx(1e-6)
    assert cost.work(eager).prologue_s == pytest.approx(3e-6)


def test_small_tiles_side_by_side_wait_once() -> None:
    # 400 tiles of 100 x 100 on 100 SMs: 4 turns of 1 us of math (50 deep: 1e6 flops at 1e12 a second).  One
    # at a time each also waits 2 us; two at a time wait twice, four and more once.
    waits = {"tile_latency_s": 2e-6}
    for accumulators, microseconds in ((0, 12), (10_000, 12), (20_000, 8), (40_000, 6), (90_000, 6)):
        cost = RooflineCost(TOY_GPU, parameters=with_gemm(**waits, accumulators=accumulators))
        assert cost.work(product(2000, 2000, 50)).sm_s == pytest.approx(microseconds * 1e-6)


def test_four_bit_operands_have_a_kernel_of_their_own() -> None:
    gpu = load_gpu("b200-sxm")
    narrow, wide = (
        RooflineCost(gpu).work(product(8192, 8192, 8192, dtype))
        for dtype in ("float4_e2m1fn_x2", "float8_e4m3fn")
    )
    assert 0.45 < narrow.sm_s / wide.sm_s < 0.75
    # A half byte and a sixteenth of a scale byte for each input, two bytes of each output.
    assert operand_bytes("float4_e2m1fn_x2", "gemm") == 0.5625
    assert narrow.hbm_bytes <= 8192**2 * (2 * 0.5625 + 2)
    assert operand_bytes("float8_e4m3fn", "mxfp8_gemm") == 1 + 1 / 32


def test_four_bit_products_need_a_gpu_that_has_them() -> None:
    with pytest.raises(InputError, match="fp4"):
        RooflineCost(load_gpu("h100-sxm")).work(product(4096, 4096, 4096, "float4_e2m1fn_x2"))


def test_blocks_of_32_need_a_gpu_that_scales_them() -> None:
    scaled = replace(product(4096, 4096, 4096, "float8_e4m3fn"), name="mxfp8_gemm")
    for gpu in ("h100-sxm", "mi300x", "l40s"):
        with pytest.raises(InputError, match=r"MXFP8.*fp8_recipe=current"):
            RooflineCost(load_gpu(gpu)).work(scaled)
    for gpu in ("b200-sxm", "mi355x", "rtx-pro-6000"):
        assert RooflineCost(load_gpu(gpu)).work(scaled).sm_s > 0


def test_what_l2_holds_for_sure_is_not_read_from_hbm() -> None:
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    cold = product(1000, 1000, 5000)
    warm = replace(cold, warm_bytes=10_000_000)
    # 22 MB in all, of which 10 come from L2 at 100 TB/s.
    assert cost.work(cold).hbm_bytes - cost.work(warm).hbm_bytes == 10_000_000


def test_plain_order_reads_the_smaller_operand_again_for_each_column() -> None:
    cost = RooflineCost(TOY_GPU, parameters=with_gemm(swept_l2_share=0.5))
    # 1,000 x 5,000 x 2 bytes are 10 MB, of which half a MB of L2 holds 5%; 20 columns of tiles of 100.
    plain, swizzled = product(1000, 2000, 5000), product(1000, 2000, 5000)
    swept = replace(plain, name="cutlass_gemm")
    again = cost.work(swept).hbm_bytes - cost.work(swizzled).hbm_bytes
    assert again == pytest.approx(19 * 0.95 * 10e6)
    # What fits is read once.
    small = product(1000, 2000, 200)
    assert cost.work(replace(small, name="cutlass_gemm")).hbm_bytes == cost.work(small).hbm_bytes


def test_products_in_blocks_have_a_kernel_of_their_own() -> None:
    tensor = replace(TOY.tensor, tiles=((100, 100),), splits=(1, 2, 4))
    constants = replace(TOY, tensor=tensor, blockwise=replace(tensor, splits=(1,)))
    gpu = replace(TOY_GPU, peak_flops={**TOY_GPU.peak_flops, "fp8": 100e12})
    deep = product(100, 100, 40_000, "float8_e4m3fn")
    cost = RooflineCost(gpu, parameters=constants)
    # One tile on one SM of 1 Tflop/s, beside four of a quarter.
    assert cost.work(replace(deep, name="blockwise_gemm")).blocks == 1
    assert cost.work(deep).blocks == 4
