"""Vision transformers by name: ViT (arXiv 2010.11929), DeiT (2012.12877, 2204.07118), FlexiViT, CLIP's,
SigLIP's, DINOv2's (2304.07193), hybrids behind a ResNet; widths above ViT-g as MAD-Max has them (2310.02784,
table II).
"""

from __future__ import annotations

import re
from typing import Any, Final

from workloads.models.zoo import Block, Zoo, register
from workloads.models.zoo.resnets import resnet_stages, stem

#: Width, layers, heads, width of the feed-forward block.
_SIZES: Final = {
    "tiny": (192, 12, 3, 768), "wee": (256, 14, 4, 1280), "pwee": (256, 16, 4, 1280),
    "xsmall": (256, 10, 4, 1024),
    "little": (320, 14, 5, 1792), "small": (384, 12, 6, 1536), "medium": (512, 12, 8, 2048),
    "mediumd": (512, 20, 8, 2048), "betwixt": (640, 12, 10, 2560), "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096), "so150m": (896, 18, 14, 2304), "so400m": (1152, 27, 16, 4304),
    "huge": (1280, 32, 16, 5120), "giant": (1408, 40, 16, 6144), "gigantic": (1664, 48, 16, 8192),
    "10b": (5120, 32, 32, 20480), "22b": (6144, 48, 48, 24576), "25b": (7680, 36, 32, 30720),
    "60b": (10240, 48, 32, 40960), "120b": (10240, 96, 80, 40960),
}  # fmt: skip
_LETTERS: Final = {
    "ti": "tiny", "t": "tiny", "s": "small", "m": "medium", "b": "base", "l": "large", "h": "huge",
    "g": "giant",
    "e": "gigantic",
}  # fmt: skip
#: Hybrids: layers of the ResNet, whether its shortcut is pooled (D), width and layers of the transformer.
_NAME: Final = re.compile(
    r"(?P<kind>vit|deit3?|flexivit|samvit|eva)_(?P<size>[a-z0-9]+?)(?P<distilled>_distilled)?(?P<rest>(?:_\w+)?)"
)
_SHORT: Final = re.compile(
    r"vit_?(?P<size>\d+b|ti|[tsmblhge])(?:_?(?:p|patch|/)?_?(?P<patch>\d\d?))?(?:_(?P<image>\d{3}))?"
)


def _vit(name: str, size: int) -> list[Block] | None:
    short = _SHORT.fullmatch(name.replace("/", "_"))
    if short is not None:
        word = _LETTERS.get(short["size"], short["size"])
        if word not in _SIZES:
            return None
        usual = 14 if word in ("huge", "giant", "gigantic") or word.endswith("b") else 16
        return _plain(word, int(short["patch"] or usual), size or int(short["image"] or 224))
    found = _NAME.fullmatch(name)
    if found is None or found["size"] not in _SIZES:
        return None
    rest = found["rest"]
    image = size or int((re.search(r"_(\d{3,4})(?!\d)", rest) or [0, _usual_image(name)])[1])
    hybrid = re.search(
        r"_(?:r(?P<v2>\d*)_s(?P<stride>\d+)(?:_p(?P<patch>\d+))?|resnet(?P<net>\d+)(?P<d>d?))", rest
    )
    if hybrid is not None:
        return _hybrid(found["size"], hybrid, image, rest)
    patch = int((re.search(r"_patch(\d+)", rest) or [0, 16])[1])
    return _plain(found["size"], patch, image, name=name, distilled=bool(found["distilled"]))


def _usual_image(name: str) -> int:
    if name.startswith("flexivit"):
        return 240
    if name.startswith("samvit"):
        return 1024
    return 518 if "dinov2" in name else 224


def _transformer(word: str, name: str) -> dict[str, Any]:
    width, layers, heads, ffn = _SIZES[word]
    if "plus" in name:
        width, heads, ffn = 896, 14, 3584
    if word == "base" and "patch16_gap" in name:
        heads = 16
    if word == "giant" and "dinov2" in name:
        width, heads, ffn = 1536, 24, 8192
    shape = re.search(r"_(\d+)x(\d)_", name)
    parallel = 1
    if shape:
        layers, parallel = int(shape[1]), int(shape[2])
    scaled = r"deit3|plus|rpn|\d+x\d_|dinov2|reg\d|_xp_"
    block: dict[str, Any] = {
        "block": "transformer", "name": "blocks", "layers": layers, "hidden": width, "heads": heads,
        "ffn": ffn,
        "parallel": parallel, "layer_scale": bool(re.search(scaled, name)),
    }  # fmt: skip
    return block | ({"activation": "quick_gelu"} if "quickgelu" in name else {})


def _plain(word: str, patch: int, image: int, *, name: str = "", distilled: bool = False) -> list[Block]:
    layers = _transformer(word, name)
    registers = int((re.search(r"_reg(\d)", name) or [0, 0])[1])
    no_class = bool(re.search(r"_gap|siglip|_rpn", name)) or name.startswith("samvit")
    pooled = "mean" if no_class else "token"
    head: dict[str, Any] = {
        "block": "classify",
        "pool": pooled,
        "norm": "tokens",
        "heads": 2 if distilled else 1,
    }
    if "siglip" in name and "gap" not in name:
        head |= {"attend": True, "classes": 0}
    if re.search(r"siglip|gap|samvit", name):
        head["classes"] = 0 if re.search(r"siglip_gap|_gap_224|samvit", name) else 1000
    return [
        {"block": "image", "size": image},
        {
            "block": "patches", "size": patch, "width": layers["hidden"],
            "norm": bool(re.search(r"clip|_xp_", name)),
            "extra": registers + (0 if no_class else 2 if distilled else 1),
        },
        layers,
        head,
    ]  # fmt: skip


def _hybrid(word: str, found: re.Match[str], image: int, rest: str) -> list[Block]:
    """A ResNet whose last stage's pixels are the patches (or patches of them)."""
    width, layers, heads, ffn = _SIZES[word]
    front: list[Block]
    if found["net"]:
        blocks = (2, 2, 2, 2) if found["net"] == "26" else (3, 4, 6, 3)
        front = [*stem(bool(found["d"])), *resnet_stages(blocks, pooled=bool(found["d"]))]
        if "_s16" in rest:
            front = front[:-1]
        if word == "small":
            width, layers, heads, ffn = 768, 8, 8, 2304
        if not found["d"]:  # an early name of r50_s16
            front = _standardised((3, 4, 9))
    else:
        depths: tuple[int, ...] = {
            "": (),
            "26": (2, 2, 2, 2),
            "50": (3, 4, 6, 3) if found["stride"] == "32" else (3, 4, 9),
        }[found["v2"]]
        front = _standardised(depths)
    return [
        {"block": "image", "size": image}, *front,
        {"block": "patches", "size": int(found["patch"] or 1), "width": width},
        {"block": "transformer", "name": "blocks", "layers": layers, "hidden": width, "heads": heads,
        "ffn": ffn},
        {"block": "classify", "pool": "token", "norm": "tokens"},
    ]  # fmt: skip


def _standardised(depths: tuple[int, ...]) -> list[Block]:
    """Big Transfer's ResNet (arXiv 1912.11370): group norms, standardised filters."""
    front: list[Block] = [
        {"block": "conv", "name": "conv1", "width": 64, "kernel": 7, "stride": 2, "norm": "group"},
        {"block": "pool", "name": "maxpool"},
    ]
    return [*front, *({**stage, "norm": "group"} for stage in resnet_stages(depths))]


register(
    Zoo(
        "vit",
        _vit,
        ("vit-10b", "vit-25b", "vit-60b", "vit-120b", "vit_base_patch16_224", "deit3_large_patch16_224"),
    )
)
