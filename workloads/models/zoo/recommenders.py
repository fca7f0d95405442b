"""Recommendation: DLRM and DCN-v2 of MLPerf and of NVIDIA's examples, NeuMF, Wide & Deep, and Meta's by size.

Rows of Criteo's 26 features: MLPerf training (mlcommons/training, recommendation_v2:
num_embeddings_per_feature, multi_hot_sizes), NVIDIA/DeepLearningExamples, DLRM_and_DCNv2 (features that come
less often than a threshold share a row).  Meta's models by the averages that MAD-Max publishes (arXiv
2310.02784, table 2; facebookresearch/ScaleExplorer).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from workloads.models.zoo import Block, Zoo, register

_CRITEO: Final = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938,
    155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
_CRITEO_MULTI: Final = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938,
    155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
_LOOKUPS: Final = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
_CRITEO_15: Final = (
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667,
    104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
)  # fmt: skip
_CRITEO_0: Final = (
    227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36,
)  # fmt: skip
#: With a threshold of three: the five large ones as much smaller as all parameters are (22.8e9).
_CRITEO_3: Final = tuple(round(rows * 0.1977) if rows > 1e7 else rows for rows in _CRITEO_0)

_BOTTOM: Final = (512, 256, 128)
_TOP: Final = (1024, 1024, 512, 256)

#: (tables, rows, columns, lookups, layers of each network, neurons) of Meta's models: 801, 332 and 12,000
#: billion parameters.
_META: Final = {
    "dlrm_a": (4096, 2_080_000, 94, 15, 10, 3994), "dlrm_a_small": (4096, 130_000, 94, 15, 10, 3994),
    "dlrm_b": (512, 7_050_000, 92, 70, 22, 826), "dlrm_b_small": (512, 440_000, 92, 70, 22, 826),
    "dlrm_12t": (64, 732_000_000, 256, 20, 4, 560),
}  # fmt: skip


def recommender(
    tables: Sequence[Block], *, bottom: Sequence[int] = _BOTTOM, top: Sequence[int] = _TOP, dense: int = 13,
    interaction: Sequence[Block] = (), dtype: str = "fp32", popularity: float = 0.0, pad: int = 8,
    optimizer: str = "",
) -> list[Block]:  # fmt: skip
    """Features and tables, what brings them together, and a network that ends in a click."""
    found: list[dict[str, Any]] = [{"block": "features", "width": dense}]
    found.append({"block": "tables", "tables": list(tables), "dtype": dtype, "popularity": popularity,
                  **({"optimizer": optimizer} if optimizer else {})})  # fmt: skip
    if bottom:
        found.append({"block": "mlp", "widths": list(bottom), "pad": min(pad, dense) or 1, "name": "bottom"})
    found += [dict(one) for one in interaction or ({"block": "dot", "pad": 8},)]
    if top:
        found.append({"block": "mlp", "widths": list(top), "name": "top"})
    return [*found, {"block": "click"}]


def criteo(rows: Sequence[int], lookups: Sequence[float] = (1,) * 26, dim: int = 128) -> list[Block]:
    """A table for each of Criteo's features."""
    return [
        {"rows": count, "dim": dim, "pooling": pooling} for count, pooling in zip(rows, lookups, strict=True)
    ]


#: Names that MAD-Max's files have.
_AS: Final = {"i": "b", "f": "12t"}
#: Exponent by which Criteo's features are popular: rows that HugeCTR put on every GPU in MLPerf's DLRM were
#: 19,272 to 76,316, with 86.8 to 92.7% of lookups (logs of seven configurations, training_results_v1.0 to
#: v2.1: "Initialized hybrid model"); this one gives their shares within 0.3 points, their number within 13%.
POPULARITY: Final = 1.14
_CROSS: Final = ({"block": "cross", "layers": 3, "rank": 512},)
_SIZES: Final = {"small": _CRITEO_15, "large": _CRITEO_3, "extra_large": _CRITEO_0}


def _blocks(name: str, image_size: int) -> Sequence[Block] | None:
    del image_size
    if name in ("dlrm_mlperf_v1", "dlrm", "dlrm_mlperf"):
        return recommender(criteo(_CRITEO), popularity=POPULARITY)
    if name in ("dlrm_dcnv2_mlperf", "dlrm_v2", "dlrm_dcnv2", "dcnv2"):
        return recommender(criteo(_CRITEO_MULTI, _LOOKUPS), interaction=_CROSS, popularity=POPULARITY)
    sized = re.fullmatch(r"(dlrm|dcnv2)_(small|large|extra_large)", name)
    if sized:
        interaction = _CROSS if sized[1] == "dcnv2" else ()
        return recommender(criteo(_SIZES[sized[2]]), interaction=interaction, popularity=POPULARITY)
    if name in ("neumf", "ncf"):
        return _neumf()
    if name in ("wide_and_deep", "wide_deep"):
        return wide_and_deep((1024,) * 5)
    meta = re.fullmatch(r"dlrm_(a|b|i|f|12t)(_small)?(_transformer|_moe)?", name)
    key = f"dlrm_{_AS.get(meta[1], meta[1])}{meta[2] or ''}" if meta else ""
    return _meta(key, meta[3] or "") if meta and key in _META else None


def _neumf() -> list[Block]:
    """MovieLens 20M (138,493 users, 26,744 items), with NVIDIA's sizes of factors and layers."""
    tables = [{"rows": rows, "dim": dim} for rows in (138_493, 26_744) for dim in (64, 128)]
    return [
        {"block": "features", "width": 0}, {"block": "tables", "tables": tables, "popularity": 0.6},
        {"block": "gmf", "width": 64, "widths": [256, 128, 64]}, {"block": "click"},
    ]  # fmt: skip


def wide_and_deep(widths: Sequence[int]) -> list[Block]:
    """Outbrain's clicks as NVIDIA prepares them: 13 features as rows of 64 or 128, three lists of three."""
    wide = (300_000, 250_000, 100_000, 100_000, 40_000, 4_000, 4_000, 2_000)
    tables = [{"rows": rows, "dim": 128} for rows in wide]
    tables += [{"rows": rows, "dim": 64} for rows in (2_500, 300, 4, 2_000, 2_500)]
    tables += [{"rows": rows, "dim": 64, "pooling": 3} for rows in (350, 100_000, 100)]
    linear = [{"rows": table["rows"], "dim": 1, "pooling": table.get("pooling", 1)} for table in tables]
    return [
        {"block": "features", "width": 16}, {"block": "tables", "tables": tables, "name": "deep"},
        {"block": "tables", "tables": linear, "name": "wide"}, {"block": "concat"},
        {"block": "mlp", "widths": list(widths)}, {"block": "click"},
    ]  # fmt: skip


def _meta(key: str, kind: str) -> list[Block]:
    """Dense layers before and behind the tables; a transformer over features, or experts behind them.

    How rows meet is published nowhere: they are added up to the networks' width.  Tables are updated by
    row-wise Adagrad, as ZionEX does (arXiv 2104.05158, section 4.1.4).
    """
    count, rows, dim, lookups, layers, neurons = _META[key]
    tables = [{"rows": rows, "dim": dim, "pooling": lookups, "count": count}]
    network = [neurons] * layers
    between: list[Block] = [{"block": "fold", "width": neurons}]
    if kind == "_transformer":
        attention = {"block": "transformer", "layers": 4, "hidden": 512, "heads": 4, "ffn": 2048}
        folded = {"block": "fold", "width": neurons, "name": "flat"}
        between = [{"block": "tokens", "width": 512, "tokens": 80, "folds": True}, attention, folded]
    if kind == "_moe":
        between += [{"block": "experts", "experts": 16, "active": 2, "widths": network}]
    return recommender(
        tables, bottom=network, top=() if kind == "_moe" else network, dense=neurons, interaction=between,
        dtype="fp16", pad=1, optimizer="rowwise_adagrad",
    )  # fmt: skip


_NAMES: Final = (
    "dlrm-mlperf-v1", "dlrm-dcnv2-mlperf", "dlrm-small", "dlrm-large", "dlrm-extra-large", "dcnv2-small",
    "dcnv2-large", "neumf", "wide-and-deep", "dlrm-a", "dlrm-a-transformer", "dlrm-a-moe", "dlrm-b",
    "dlrm-b-transformer", "dlrm-b-moe", "dlrm-12t", "dlrm-a-small", "dlrm-b-small",
)  # fmt: skip

register(Zoo("recommenders", _blocks, _NAMES))
