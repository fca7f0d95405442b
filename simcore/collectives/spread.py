"""How far predictions of collectives are off: relative errors by nodes, collective and size band.

The numbers in ``hardware_profiles/measured/nccl_spread.toml`` come from ``scripts/calibrate.py --nccl``: each
published source is left out of the fit once and predicted from the others, so that they speak of a fabric
that was not measured, not of how well a fit describes its own rows.  One number is the error that 68 % of the
rows stay within, one standard deviation where errors are normal.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from simcore.tables import Each, Maybe, Plain, load

#: Bands of message size: upper end in bytes, key of the profile, name in reports.
SIZE_BANDS: Final = (
    (64 << 10, "below_64_kib", "< 64 KiB"),
    (1 << 20, "below_1_mib", "64 KiB - 1 MiB"),
    (64 << 20, "below_64_mib", "1 - 64 MiB"),
)
_LARGEST: Final = ("from_64_mib", ">= 64 MiB")
BAND_KEYS: Final = (*(key for _, key, _ in SIZE_BANDS), _LARGEST[0])
#: What stands for collectives that no row measured.
ANY_COLLECTIVE: Final = "any"
#: ``[one_node.<collective>]`` and ``[several_nodes.<collective>]`` by size band, of which ``any`` has all;
#: the error of NCCL's own tuner is of all sizes.
_NODES: Final = Each(
    {band: Maybe(Plain()) for band in BAND_KEYS}, must={ANY_COLLECTIVE: dict.fromkeys(BAND_KEYS, Plain())}
)
SCHEMA: Final = {"one_node": _NODES, "several_nodes": _NODES, "tuner": {"all_sizes": Plain()}}


def band_key(num_bytes: float) -> str:
    """The size band's key in the profile."""
    return next((key for upper, key, _ in SIZE_BANDS if num_bytes < upper), _LARGEST[0])


def band_name(num_bytes: float) -> str:
    """The size band's name in reports."""
    return next((name for upper, _, name in SIZE_BANDS if num_bytes < upper), _LARGEST[1])


def nodes_key(num_nodes: int) -> str:
    """``one_node`` or ``several_nodes``."""
    return "one_node" if num_nodes == 1 else "several_nodes"


def relative_error(collective: str, num_bytes: float, num_nodes: int) -> float:
    """One standard deviation of predicted over measured time, relative, for a message of this kind.

    A collective without measured rows has the error of all that were measured on as many nodes.
    """
    by_collective = _spread()[nodes_key(num_nodes)]
    band, bands = band_key(num_bytes), by_collective.get(collective, {})
    return float(bands.get(band, by_collective[ANY_COLLECTIVE][band]))


def tuner_error() -> float:
    """The same of NCCL's own tuner, over all healthy rows: what ``--network alphabeta`` is good for."""
    return float(_spread()["tuner"]["all_sizes"])


@cache
def _spread() -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = load(SCHEMA, "hardware_profiles", "measured/nccl_spread.toml")
    return found
