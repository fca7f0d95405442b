"""ConvNeXt (arXiv 2201.03545) and Swin (2103.14030): four stages, each half as many pixels a side."""

from __future__ import annotations

import re
from typing import Final

from workloads.models.zoo import Block, Zoo, register

_CONVNEXT: Final = {
    "atto": ((2, 2, 6, 2), 40), "femto": ((2, 2, 6, 2), 48), "pico": ((2, 2, 6, 2), 64),
    "nano": ((2, 2, 8, 2), 80), "tiny": ((3, 3, 9, 3), 96), "small": ((3, 3, 27, 3), 96),
    "base": ((3, 3, 27, 3), 128), "large": ((3, 3, 27, 3), 192), "xlarge": ((3, 3, 27, 3), 256),
    "xxlarge": ((3, 4, 30, 3), 384),
}  # fmt: skip
_SWIN: Final = {
    "tiny": ((2, 2, 6, 2), 96, 3), "small": ((2, 2, 18, 2), 96, 3), "base": ((2, 2, 18, 2), 128, 4),
    "large": ((2, 2, 18, 2), 192, 6),
}  # fmt: skip
#: Searched windows and depths (AutoFormerV2, arXiv 2111.14725).
_SEARCHED: Final = {
    "tiny": ((7, 7, 14, 7), (2, 2, 6, 2)), "small": ((14, 14, 14, 7), (2, 2, 18, 2)),
    "base": ((7, 7, 14, 7), (2, 2, 30, 2)),
}  # fmt: skip


def _convnext(name: str, size: int) -> list[Block] | None:
    found = re.fullmatch(r"convnext_(\w+?)(?:_(384|288))?(?:_(?:hnfd?|mlp|clip|in\w+|fb\w+|ols))*", name)
    if found is None or found[1] not in _CONVNEXT:
        return None
    depths, width = _CONVNEXT[found[1]]
    blocks: list[Block] = [
        {"block": "image", "size": size or int(found[2] or 224)},
        {
            "block": "conv", "name": "stem", "width": width, "kernel": 4, "stride": 4, "norm": "layer",
            "act": "",
            "valid": True,
        },
    ]  # fmt: skip
    for number, depth in enumerate(depths):
        if number:
            blocks.append(
                {"block": "downsample", "width": width << number, "name": f"stages.{number}.downsample"}
            )
        blocks.append({"block": "convnext", "repeat": depth, "name": f"stages.{number}.blocks"})
    return [*blocks, {"block": "classify", "norm": "pool"}]


def _swin(name: str, size: int) -> list[Block] | None:
    found = re.fullmatch(
        r"swin_(s3_)?(tiny|small|base|large)(?:_patch4_window(\d+))?_(\d{3})(?:\.\w+|_in\w+)?", name
    )
    if found is None:
        return None
    depths, width, heads = _SWIN[found[2]]
    windows = (int(found[3] or 7),) * 4
    if found[1]:
        if found[2] not in _SEARCHED:
            return None
        (windows, depths), width, heads = _SEARCHED[found[2]], 96, 3
    side = (size or int(found[4])) // 4
    blocks: list[Block] = [
        {"block": "image", "size": 4 * side},
        {"block": "patches", "size": 4, "width": width, "extra": 0, "positions": False, "norm": True},
    ]
    for number, (depth, window) in enumerate(zip(depths, windows, strict=True)):
        if number:
            blocks.append({"block": "merge", "name": f"layers.{number}.downsample"})
        blocks.append(
            {
                "block": "windows", "hidden": width << number, "heads": heads << number, "window": window,
                "side": side >> number, "repeat": depth, "name": f"layers.{number}.blocks",
            }
        )  # fmt: skip
    return [*blocks, {"block": "classify", "norm": "tokens"}]


register(Zoo("convnext", _convnext, ("convnext_tiny", "convnext_base", "convnext_large")))
register(Zoo("swin", _swin, ("swin_tiny_patch4_window7_224", "swin_base_patch4_window7_224")))
