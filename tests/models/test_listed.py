"""Models as lists of blocks: sizes as published, and lists that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from workloads.jobs import complete
from workloads.models.checked import checked
from workloads.models.listed import BlockModel
from workloads.models.listed_pieces import listed_pieces
from workloads.models.local import Shard
from workloads.models.software import SoftwareSpec
from workloads.models.zoo import listed_model, listed_names

#: Millions of parameters and billions of multiply-adds as timm counts them (results/benchmark-infer-*.csv of
#: huggingface/pytorch-image-models), at the size of images it names.
_TIMM = {
    ("resnet18", 224): (11.69, 1.82), ("resnet50", 224): (25.56, 4.11), ("resnet50d", 224): (25.58, 4.35),
    ("resnext50_32x4d", 224): (25.03, 4.26), ("vgg16", 224): (138.36, 15.47), ("densenet121", 224): (7.98,
    2.87), ("efficientnet_b0", 224): (5.29, 0.39), ("mobilenetv3_large_100", 224): (5.48, 0.217),
    ("regnety_032", 224): (19.44, 3.20), ("convnext_tiny", 224): (28.59, 4.47),
    ("swin_tiny_patch4_window7_224", 224): (28.29, 4.51), ("vit_base_patch16_224", 224): (86.57, 17.58),
    ("vit_large_patch14_clip_224", 224): (304.20, 81.08), ("deit_small_patch16_224", 224): (22.05, 4.61),
}  # fmt: skip


def _pieces(model: BlockModel) -> Any:
    software = SoftwareSpec(attention="flash2", autocast=True)
    return listed_pieces(model, Shard(micro_batch=1, seq=1, precision="fp16", software=software))


@pytest.mark.parametrize(("name", "size"), _TIMM)
def test_a_named_list_has_its_published_size_and_work(name: str, size: int) -> None:
    model = listed_model(name, size)
    assert model is not None
    pieces = _pieces(model)
    millions, multiply_adds = _TIMM[name, size]
    count = sum(one.numel for piece in pieces.all_pieces for one in piece.parameters)
    assert count / 1e6 == pytest.approx(millions, rel=0.002)
    # 6 flops of training per multiply-add
    assert pieces.model_flops_per_sample / 6e9 == pytest.approx(multiply_adds, rel=0.02)


def test_names_that_are_listed_make_models() -> None:
    assert {"resnet50", "vit_base_patch16_224", "convnext_base"} <= set(listed_names())
    assert listed_model("resnet51") is None


_IMAGE = {"block": "image", "size": 32}
_CONV = {"block": "conv", "width": 8}
_CLASSIFY = {"block": "classify", "classes": 10}


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ("resnet", "a list of blocks, not 'resnet'"),
        ([_IMAGE, _CONV], "at least two blocks beside what it is given"),
        ([_IMAGE, {"block": "convs"}, _CLASSIFY], "unknown kind of block 'convs'; did you mean 'conv'"),
        ([_IMAGE, {"width": 3}, _CLASSIFY], r"blocks\[1\].block is missing"),
        ([_IMAGE, {**_CONV, "widht": 3}, _CLASSIFY], r"blocks\[1\].*widht'; did you mean 'width'"),
        ([_IMAGE, {**_CONV, "repeat": 4096}, _CLASSIFY], "4098 blocks are more than can be simulated"),
    ],
)
def test_lists_that_cannot_be_are_refused(blocks: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        checked(BlockModel, {"blocks": blocks}, "here: model")


def test_a_description_takes_a_list_or_a_name_and_the_size_of_images() -> None:
    said = {"model": {"blocks": [_IMAGE, {**_CONV, "repeat": 2}, _CLASSIFY]}}
    job = complete(said, "here", num_gpus=2)
    assert job.model.num_layers == 1
    assert (job.training.micro_batch, job.training.global_batch) == (64, 128)
    named = complete({"model": {"model": "resnet50", "image_size": 160}}, "here", num_gpus=1)
    assert isinstance(named.model, BlockModel)
    assert named.model.blocks[0].model_dump()["size"] == 160


@pytest.mark.parametrize("axis", ["tp", "cp", "pp", "ep"])
def test_what_splits_transformers_refuses_lists(axis: str) -> None:
    job = complete({"model": "resnet50", "parallel": {axis: 2}}, "here", num_gpus=8)
    with pytest.raises(InputError, match=rf"{axis}"):
        job.graph()


def test_batch_norms_over_neighbours_exchange_their_channels_sums_twice_each_way() -> None:
    said = {"model": "resnet50", "parallel": {"norm_group": 2}, "software": {"preset": "mxnet-mlperf"}}
    ops = complete(said, "here", num_gpus=4).graph().ops
    sent = [
        (str(phase), int(size))
        for phase, group, size in zip(ops.phase, ops.group, ops.num_bytes, strict=True)
        if str(group) == "norm"
    ]
    # ResNet-50 has 53 norms of 26,560 channels in all (64 before the pool; in each of 3, 4, 6 and 3 blocks
    # twice 64 to 512 and once four times as many, and these again where a stage begins): mean and variance
    # forward, two gradients backward, 4 bytes each.
    channels = 64 + sum((n * 6 + 4) * width for n, width in ((3, 64), (4, 128), (6, 256), (3, 512)))
    assert channels == 26560
    for phase in ("fwd", "bwd"):
        assert len([size for where, size in sent if where == phase]) == 2 * 53
        assert sum(size for where, size in sent if where == phase) == 2 * 4 * channels


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        ("mxnet-mlperf", "norm_group=2 does not divide dp=3; nearest: 1"),
        ("timm", "nearest: software.norm_activation_fusion=true"),
    ],
)
def test_norms_that_cannot_be_shared_are_refused(preset: str, told: str) -> None:
    said = {"model": "resnet50", "parallel": {"norm_group": 2}, "software": {"preset": preset}}
    with pytest.raises(InputError, match=told):
        complete(said, "here", num_gpus=3 if preset == "mxnet-mlperf" else 4).graph()


@pytest.mark.parametrize(
    ("software", "told"),
    [
        ({}, ["_to_copy float16", "native_group_norm float32", "relu_ float32"]),
        ({"channels_last": True}, ["_to_copy float16", "clone float32", "native_group_norm float32",
                                   "relu_ float32"]),
        ({"narrow_norms": True}, ["native_group_norm float16", "relu_ float16"]),
        ({"compiled": True, "channels_last": True}, ["native_group_norm float16"]),
    ],
)  # fmt: skip
def test_group_norms_cast_and_copy_as_the_build_does(software: dict[str, bool], told: list[str]) -> None:
    # A convolution under autocast leaves 16 bits; torch's norms are wide, and channel by channel on GPUs.
    model = checked(BlockModel, {"blocks": [_IMAGE, {**_CONV, "norm": "group"}, _CLASSIFY]}, "here: model")
    spec = SoftwareSpec(autocast=True, **{"channels_last": False, **software})
    shard = Shard(micro_batch=1, seq=1, precision="fp16", software=spec, trainable="none")
    names = [
        f"{kernel.name.removeprefix('aten::')} {kernel.dtype}"
        for piece in listed_pieces(model, shard).all_pieces
        for kernel in piece.forward
    ]
    behind = next(k for k, name in enumerate(names) if name.startswith("convolution")) + 1
    assert names[behind : behind + len(told)] == told


def test_a_compiler_joins_what_is_between_products_of_windows_and_makes_pools_elementwise() -> None:
    def names(model: str, **software: bool) -> list[str]:
        listed = listed_model(model, 224)
        assert listed is not None
        spec = SoftwareSpec(autocast=True, bias_in_product=True, **software)
        shard = Shard(micro_batch=1, seq=1, precision="fp16", software=spec, trainable="none")
        return [
            f"{kernel.name} {kernel.op_class}"
            for piece in listed_pieces(listed, shard).all_pieces
            for kernel in piece.forward
        ]

    # Of each of 12 layers: four products by weights, two of attention, two norms, a softmax, a GELU, and
    # copies of queries, keys, values and sums; what is added and put in order is in these.
    compiled = names("swin_tiny_patch4_window7_224", compiled=True)
    joined = ("aten::_softmax", "aten::clone", "aten::add.Tensor", "aten::mul.Tensor", "aten::roll")
    assert [sum(name.startswith(one) for name in compiled) for one in joined] == [12, 4 * 12, 0, 0, 0]
    eager = names("swin_tiny_patch4_window7_224")
    # Two sums and a bias a layer, and a mask in the shifted ones; windows are cut and put back, half of them
    # rolled before and behind (the last stage is one window); queries are scaled.
    assert [sum(name.startswith(one) for name in eager) for one in joined] == [12, 6 * 12, 41, 12, 10]
    assert "max_pool elementwise" in names("resnet50", compiled=True)
    assert "aten::max_pool2d_with_indices pool" in names("resnet50")
