"""EfficientNet (arXiv 1905.11946), EfficientNetV2 (2104.00298), MobileNetV3 (1905.02244)."""

from __future__ import annotations

import re
from math import ceil
from typing import Final

from workloads.models.zoo import Block, Zoo, register

#: Stages of B0: blocks, pixels of the filters, stride, expansion, channels.
_B0: Final = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip
#: Width and depth over B0's, and the usual image.
_SCALES: Final = {
    0: (1.0, 1.0, 224), 1: (1.0, 1.1, 240), 2: (1.1, 1.2, 260), 3: (1.2, 1.4, 300), 4: (1.4, 1.8, 380),
    5: (1.6, 2.2, 456), 6: (1.8, 2.6, 528), 7: (2.0, 3.1, 600), 8: (2.2, 3.6, 672),
}  # fmt: skip
#: V2's stages: fused or not, blocks, stride, expansion, channels.
_V2: Final = {
    "s": (300, ((True, 2, 1, 1, 24), (True, 4, 2, 4, 48), (True, 4, 2, 4, 64), (False, 6, 2, 4, 128),
                (False, 9, 1, 6, 160), (False, 15, 2, 6, 256))),
    "m": (384, ((True, 3, 1, 1, 24), (True, 5, 2, 4, 48), (True, 5, 2, 4, 80), (False, 7, 2, 4, 160),
                (False, 14, 1, 6, 176), (False, 18, 2, 6, 304), (False, 5, 1, 6, 512))),
    "l": (384, ((True, 4, 1, 1, 32), (True, 7, 2, 4, 64), (True, 7, 2, 4, 96), (False, 10, 2, 4, 192),
                (False, 19, 1, 6, 224), (False, 25, 2, 6, 384), (False, 7, 1, 6, 640))),
    "xl": (384, ((True, 4, 1, 1, 32), (True, 8, 2, 4, 64), (True, 8, 2, 4, 96), (False, 16, 2, 4, 192),
                 (False, 24, 1, 6, 256), (False, 32, 2, 6, 512), (False, 8, 1, 6, 640))),
}  # fmt: skip
#: Large MobileNetV3: blocks, pixels, stride, width of the middle, channels, gates, activation.
_V3: Final = (
    (1, 3, 1, 0, 16, False, "relu"), (1, 3, 2, 64, 24, False, "relu"), (1, 3, 1, 72, 24, False, "relu"),
    (1, 5, 2, 72, 40, True, "relu"), (2, 5, 1, 120, 40, True, "relu"), (1, 3, 2, 240, 80, False, "hardswish"),
    (1, 3, 1, 200, 80, False, "hardswish"), (2, 3, 1, 184, 80, False, "hardswish"),
    (1, 3, 1, 480, 112, True, "hardswish"), (1, 3, 1, 672, 112, True, "hardswish"),
    (1, 5, 2, 672, 160, True, "hardswish"), (2, 5, 1, 960, 160, True, "hardswish"),
)  # fmt: skip


def _rounded(channels: float) -> int:
    """A multiple of 8 that is not more than a tenth less."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


def _efficientnet(name: str, size: int) -> list[Block] | None:
    found = re.fullmatch(r"(?:tf_)?efficientnet_?(?:(?:v1|lite)_?)?(widese_)?b(\d)(_widese)?(?:_\w+)?", name)
    if found is None or int(found[2]) not in _SCALES:
        return None
    wide, deep, usual = _SCALES[int(found[2])]
    channels = _rounded(32 * wide)
    blocks: list[Block] = [
        {"block": "image", "size": size or usual},
        {"block": "conv", "name": "conv_stem", "width": channels, "stride": 2, "act": "silu"},
    ]
    gates_over_width = bool(found[1] or found[3])
    for number, (count, kernel, stride, expansion, out) in enumerate(_B0):
        out = _rounded(out * wide)
        width, later = expansion * channels, expansion * out
        over = (width, later) if gates_over_width else (channels, out)
        blocks.append(
            {
                "block": "inverted", "name": f"blocks.{number}", "out": out, "kernel": kernel,
                "stride": stride,
                "width": width if expansion > 1 else 0, "later_width": later if expansion > 1 else 0,
                "repeat": ceil(count * deep), "squeeze": max(1, over[0] // 4),
                "later_squeeze": max(1, over[1] // 4),
            }
        )  # fmt: skip
        channels = out
    return [*blocks, {"block": "classify", "conv": _rounded(1280 * wide), "act": "silu"}]


def _efficientnetv2(name: str, size: int) -> list[Block] | None:
    found = re.fullmatch(r"(?:tf_)?efficientnet_?v2_(?:rw_)?(s|m|l|xl)(?:_\w+)?", name)
    if found is None:
        return None
    usual, stages = _V2[found[1]]
    channels = stages[0][4]
    blocks: list[Block] = [
        {"block": "image", "size": size or usual},
        {"block": "conv", "name": "conv_stem", "width": channels, "stride": 2, "act": "silu"},
    ]
    for number, (fused, count, stride, expansion, out) in enumerate(stages):
        block = {
            "block": "fused_inverted" if fused else "inverted", "name": f"blocks.{number}", "out": out,
            "stride": stride, "repeat": count, "width": expansion * channels if expansion > 1 else 0,
            "later_width": expansion * out if expansion > 1 else 0,
        }  # fmt: skip
        gates = {} if fused else {"squeeze": channels // 4, "later_squeeze": out // 4}
        blocks.append({**block, **gates})
        channels = out
    return [*blocks, {"block": "classify", "conv": 1280, "act": "silu"}]


def _mobilenetv3(name: str, size: int) -> list[Block] | None:
    if not re.fullmatch(r"(?:tf_)?mobilenet_?v3_large(?:_100)?(?:_\w+)?", name):
        return None
    blocks: list[Block] = [
        {"block": "image", "size": size or 224},
        {"block": "conv", "name": "conv_stem", "width": 16, "stride": 2, "act": "hardswish"},
    ]
    for number, (count, kernel, stride, width, out, gates, act) in enumerate(_V3):
        blocks.append(
            {
                "block": "inverted", "name": f"blocks.{number}", "out": out, "kernel": kernel,
                "stride": stride,
                "width": width, "repeat": count, "act": act, "gate": "aten::hardsigmoid", "gate_act": "relu",
                "squeeze": _rounded((width or 16) / 4) if gates else 0,
            }
        )  # fmt: skip
    last = {"block": "conv", "name": "blocks.last", "width": 960, "kernel": 1, "act": "hardswish"}
    return [*blocks, last, {"block": "classify", "before": [1280]}]


register(Zoo("efficientnet", _efficientnet, ("efficientnet_b0", "efficientnet_b4")))
register(Zoo("efficientnetv2", _efficientnetv2, ("efficientnetv2_s", "efficientnetv2_m", "efficientnetv2_l")))
register(Zoo("mobilenetv3", _mobilenetv3, ("mobilenetv3_large_100",)))
