"""ResNets (arXiv 1512.03385), their variants D, ResNeXt, SE and wide, VGG (1409.1556), DenseNet
(1608.06993).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from workloads.models.zoo import Block, Zoo, register

_DEPTHS: Final = {
    18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3),
    152: (3, 8, 36, 3), 200: (3, 24, 36, 3),
}  # fmt: skip
_NAME: Final = re.compile(
    r"(?:tv_|gluon_|legacy_)?(?P<wide>wide_)?(?P<se>se_?)?res(?P<next>ne?xt|net)_?(?P<depth>\d+)(?P<d>d)?"
    r"(?:_(?P<groups>\d+)x(?P<width>\d+)d|_(?P<factor>2)|v1\.5|_v1\.5|_a\dh?|_?v1_5)*(?:_\w+)?"
)


def resnet_stages(
    depths: Sequence[int], *, width: float = 1.0, group_width: int = 0, squeeze: int = 0,
    pooled: bool = False, basic: bool = False,
) -> list[Block]:  # fmt: skip
    """The four stages; ``width``: of bottlenecks over the usual 64 to 512."""
    stages: list[Block] = []
    for number, depth in enumerate(depths):
        out = 64 << number
        common = {"stride": 1 if number == 0 else 2, "repeat": depth, "name": f"layer{number + 1}"}
        if basic:
            stages.append({"block": "basic", "out": out, "width": out, **common})
            continue
        inner = round(out * width)
        stages.append(
            {
                "block": "bottleneck", "out": 4 * out, "width": inner, "squeeze": squeeze, "gate_last": True,
                "group_width": group_width << number, "pooled_shortcut": pooled, **common,
            }
        )  # fmt: skip
    return stages


def stem(deep: bool) -> list[Block]:
    """One convolution of 7 x 7 pixels or three of 3 x 3 (ResNet-C and D), and a pool."""
    pool: Block = {"block": "pool", "name": "maxpool"}
    if not deep:
        return [{"block": "conv", "name": "conv1", "width": 64, "kernel": 7, "stride": 2}, pool]
    return [
        {"block": "conv", "name": "conv1.0", "width": 32, "stride": 2},
        {"block": "conv", "name": "conv1.3", "width": 32},
        {"block": "conv", "name": "conv1.6", "width": 64},
        pool,
    ]


def _resnet(name: str, size: int) -> list[Block] | None:
    found = _NAME.fullmatch(name)
    if found is None or int(found["depth"]) not in _DEPTHS:
        return None
    depth, groups = int(found["depth"]), int(found["groups"] or 1)
    inner = int(found["width"] or 64) * groups / 64 if groups > 1 else 1.0
    if found["wide"] or found["factor"]:
        inner = 2.0
    stages = resnet_stages(
        _DEPTHS[depth], width=inner, group_width=int(found["width"]) if groups > 1 else 0,
        squeeze=16 if found["se"] else 0, pooled=bool(found["d"]), basic=depth in (18, 34),
    )  # fmt: skip
    return [
        {"block": "image", "size": size or 224}, *stem(bool(found["d"])), *stages,
        {"block": "classify", "name": "fc"},
    ]  # fmt: skip


_VGG: Final = {
    11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4),
}  # fmt: skip


def _vgg(name: str, size: int) -> list[Block] | None:
    found = re.fullmatch(r"vgg(\d+)(_bn)?(?:_\w+)?", name)
    if found is None or int(found[1]) not in _VGG:
        return None
    blocks: list[Block] = [{"block": "image", "size": size or 224}]
    for number, count in enumerate(_VGG[int(found[1])]):
        width = min(512, 64 << number)
        blocks.append({"block": "conv", "width": width, "repeat": count, "norm": "batch" if found[2] else ""})
        blocks.append({"block": "pool"})
    return [*blocks, {"block": "classify", "pool": "pixels", "before": [4096, 4096]}]


_DENSE: Final = {
    121: (32, (6, 12, 24, 16), 64), 169: (32, (6, 12, 32, 32), 64), 201: (32, (6, 12, 48, 32), 64),
    161: (48, (6, 12, 36, 24), 96),
}  # fmt: skip


def _densenet(name: str, size: int) -> list[Block] | None:
    found = re.fullmatch(r"(?:tv_)?densenet(\d+)(?:_\w+)?", name)
    if found is None or int(found[1]) not in _DENSE:
        return None
    growth, depths, width = _DENSE[int(found[1])]
    blocks: list[Block] = [
        {"block": "image", "size": size or 224},
        {"block": "conv", "name": "conv0", "width": width, "kernel": 7, "stride": 2},
        {"block": "pool"},
    ]
    for number, depth in enumerate(depths):
        blocks.append(
            {"block": "dense_layer", "growth": growth, "repeat": depth, "name": f"dense{number + 1}"}
        )
        width += depth * growth
        if number < len(depths) - 1:
            width //= 2
            blocks.append({"block": "transition", "width": width})
    return [*blocks, {"block": "norm"}, {"block": "classify"}]


register(Zoo("resnet", _resnet, ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")))
register(Zoo("vgg", _vgg, ("vgg16", "vgg19")))
register(Zoo("densenet", _densenet, ("densenet121",)))
