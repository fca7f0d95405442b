"""RegNets (arXiv 2003.13678): widths by a line, rounded to powers, in four stages."""

from __future__ import annotations

import re
from typing import Final

from simcore.elementary import log, power
from workloads.models.zoo import Block, Zoo, register

#: First width, slope, base of the powers, channels of a group, blocks (tables 7 and 8 of the paper's code).
_SIZES: Final = {
    "x_002": (24, 36.44, 2.49, 8, 13), "x_004": (24, 24.48, 2.54, 16, 22), "x_006": (48, 36.97, 2.24, 24, 16),
    "x_008": (56, 35.73, 2.28, 16, 16), "x_016": (80, 34.01, 2.25, 24, 18),
    "x_032": (88, 26.31, 2.25, 48, 25),
    "x_040": (96, 38.65, 2.43, 40, 23), "x_064": (184, 60.83, 2.07, 56, 17),
    "x_080": (80, 49.56, 2.88, 120, 23),
    "x_120": (168, 73.36, 2.37, 112, 19), "x_160": (216, 55.59, 2.1, 128, 22),
    "x_320": (320, 69.86, 2.0, 168, 23),
    "y_002": (24, 36.44, 2.49, 8, 13), "y_004": (48, 27.89, 2.09, 8, 16), "y_006": (48, 32.54, 2.32, 16, 15),
    "y_008": (56, 38.84, 2.4, 16, 14), "y_016": (48, 20.71, 2.65, 24, 27), "y_032": (80, 42.63, 2.66, 24, 21),
    "y_040": (96, 31.41, 2.24, 64, 22), "y_064": (112, 33.22, 2.27, 72, 25),
    "y_080": (192, 76.82, 2.19, 56, 17),
    "y_120": (168, 73.36, 2.37, 112, 19), "y_160": (200, 106.23, 2.48, 112, 18),
    "y_320": (232, 115.89, 2.53, 232, 20),
}  # fmt: skip


def _widths(first: int, slope: float, base: float, group: int, depth: int) -> list[tuple[int, int]]:
    """(width, blocks) of each stage."""
    found: dict[int, int] = {}
    for number in range(depth):
        line = first + slope * number
        exponent = round(log(line / first) / log(base))
        width = int(8 * round(first * power(base, exponent) / 8))
        width = max(group, round(width / group) * group) if width >= group else width
        found[width] = found.get(width, 0) + 1
    return list(found.items())


def _regnet(name: str, size: int) -> list[Block] | None:
    found = re.fullmatch(r"regnet([xy]_\d{3})(?:_\w+)?", name)
    if found is None or found[1] not in _SIZES:
        return None
    first, slope, base, group, depth = _SIZES[found[1]]
    blocks: list[Block] = [
        {"block": "image", "size": size or 224},
        {"block": "conv", "name": "stem", "width": 32, "stride": 2},
    ]
    for number, (width, count) in enumerate(_widths(first, slope, base, group, depth)):
        blocks.append(
            {
                "block": "bottleneck", "name": f"s{number + 1}", "out": width, "width": width,
                "group_width": min(group, width), "stride": 2, "repeat": count, "squeeze_input": True,
                "squeeze": 4 if found[1].startswith("y") else 0,
            }
        )  # fmt: skip
    return [*blocks, {"block": "classify", "name": "head"}]


register(Zoo("regnet", _regnet, ("regnety_016", "regnety_032", "regnety_080")))
