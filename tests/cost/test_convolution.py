"""Convolutions, pools and norms over a batch: sizes of products and bytes, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.cost.convolution import Filters, filters_of, load_convolution
from simcore.cost.kernel import KernelShape
from simcore.cost.roofline import RooflineCost
from simcore.hardware import load_gpu

_GPU = load_gpu("a100-80")


def _forward(channels: int, filters: int, groups: int = 1, *, name: str = "") -> KernelShape:
    pixels = 56
    image, weight = (32, channels, pixels, pixels), (filters, channels // groups, 3, 3)
    out = (32, filters, pixels, pixels)
    flops = 2 * 32 * pixels**2 * filters * channels // groups * 9
    kind = f"aten::convolution{name}"
    return KernelShape(kind, "conv", "float16", (image, weight), (out,), flops=flops)


def test_the_three_products_of_a_convolution() -> None:
    # 2 images of 8 x 8 pixels, stride 2: 4 x 4; 6 channels, 10 filters of 3 x 3.
    sizes = Filters(images=2, channels=6, filters=10, groups=1, window=9, pixels_in=64, pixels_out=16)
    assert sizes.product("output") == (32, 10, 54, 1)
    assert sizes.product("filter") == (10, 54, 32, 1)
    # Each input pixel meets 9 / 4 pixels of the filters on average.
    assert sizes.product("input") == (128, 6, 23, 1)
    assert sizes.multiply_adds == 2 * 16 * 10 * 6 * 9


def test_gradients_that_are_wanted_follow_from_what_comes_out() -> None:
    image, weight, out = (32, 8, 56, 56), (16, 8, 3, 3), (32, 16, 56, 56)
    first = KernelShape("aten::convolution_backward", "conv", "float16", (out, image, weight), (weight,))
    found = filters_of(first)
    assert found is not None
    assert found[1] == ("filter",)
    both = filters_of(replace(first, out_shapes=(image, weight)))
    assert both is not None
    assert both[1] == ("input", "filter")


def test_single_channels_take_bytes_or_instructions_and_no_tensor_cores() -> None:
    p = load_convolution("ampere")
    cost = RooflineCost(_GPU)
    work = cost.work(_forward(96, 96, 96))
    num_bytes = 2 * 2 * 32 * 96 * 56 * 56
    instructions = 32 * 56 * 56 * 96 * 9 * p.depthwise_instructions
    by_bytes = num_bytes / (_GPU.hbm_bytes_per_s * p.depthwise_share)
    by_cores = instructions / (64 * _GPU.num_sms * _GPU.boost_clock_hz)
    assert work.sm_s == pytest.approx(max(by_bytes, by_cores), rel=0.25)  # of bandwidth a part is usable
    assert work.hbm_bytes == num_bytes


def test_channels_that_lie_apart_are_slower_and_groups_slower_still() -> None:
    cost = RooflineCost(_GPU)
    together = cost.seconds(_forward(256, 256, name=".nhwc"))
    assert cost.seconds(_forward(256, 256, name=".nchw")) > together
    # A group multiplies an eighth; it takes more than an eighth.
    grouped = cost.seconds(_forward(256, 256, 8, name=".nhwc"))
    assert together / 8 < grouped


def test_a_norm_over_a_batch_reads_what_the_gpu_cannot_keep_twice() -> None:
    shape = (64, 256, 56, 56)
    size = 2 * 64 * 256 * 56 * 56
    cost = RooflineCost(_GPU)
    kernel = KernelShape("aten::native_batch_norm", "batch_norm_fwd", "float16", (shape,), (shape,))
    assert cost.work(kernel).hbm_bytes == pytest.approx(3 * size, rel=0.02)  # the end of a tensor stays in L2
    fused = cost.work(replace(kernel, name="batch_norm_relu")).hbm_bytes
    kept = load_convolution("ampere").batch_norm_kept_bytes * _GPU.num_sms
    assert fused == pytest.approx(3 * size - kept, rel=0.02)


def test_every_constant_says_where_it_comes_from() -> None:
    for generation in ("ampere", "hopper", "volta", "ga10x"):
        assert load_convolution(generation).source
    assert load_convolution("blackwell") == load_convolution("hopper")
