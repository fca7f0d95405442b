"""How far predictions of collectives are off: relative errors by nodes, collective and size band.

The numbers in ``hardware_profiles/measured/nccl_spread.toml`` come from ``scripts/calibrate.py --nccl``: each
published source is left out of the fit once and predicted from the others, so that they speak of a fabric
that was not measured, not of how well a fit describes its own rows.  One number is the error that 68 % of the
rows stay within, one standard deviation where errors are normal.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

from simcore.errors import InputError

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
_TUNER: Final = "tuner"
_ALL_SIZES: Final = "all_sizes"
_FILE: Final = "measured/nccl_spread.toml"

Spread = Mapping[str, Mapping[str, Mapping[str, float]]]


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
    bands = by_collective.get(collective, {})
    return bands.get(band_key(num_bytes), by_collective[ANY_COLLECTIVE][band_key(num_bytes)])


def tuner_error() -> float:
    """The same of NCCL's own tuner, over all healthy rows: what ``--network alphabeta`` is good for."""
    return _spread()[_TUNER][ANY_COLLECTIVE][_ALL_SIZES]


@cache
def _spread() -> Spread:
    text = resources.files("hardware_profiles").joinpath(_FILE).read_text(encoding="utf-8")
    return parse_spread(text, f"hardware_profiles/{_FILE}")


def parse_spread(text: str, where: str) -> Spread:
    """Tables ``[one_node.<collective>]`` and ``[several_nodes.<collective>]``, shares of 1 by size band.

    ``any`` must have every band; ``[tuner]`` has ``all_sizes``, the error of NCCL's own tuner.  Errors:
    InputError for text that is no TOML, a missing table or band, an unknown band, or a number that is
    negative or no number.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}") from None
    found: dict[str, dict[str, dict[str, float]]] = {}
    for nodes in ("one_node", "several_nodes"):
        tables = raw.get(nodes)
        if not isinstance(tables, dict) or set(tables.get(ANY_COLLECTIVE, ())) != set(BAND_KEYS):
            raise InputError(f"{where}: [{nodes}.{ANY_COLLECTIVE}] needs {', '.join(BAND_KEYS)}")
        found[nodes] = {
            collective: {
                band: _share(value, band, f"{where} [{nodes}.{collective}]") for band, value in t.items()
            }
            for collective, t in tables.items()
        }
    tuner = raw.get(_TUNER)
    if not isinstance(tuner, dict) or set(tuner) != {_ALL_SIZES}:
        raise InputError(f"{where}: [{_TUNER}] needs {_ALL_SIZES}")
    found[_TUNER] = {ANY_COLLECTIVE: {_ALL_SIZES: _number(tuner[_ALL_SIZES], _ALL_SIZES, where)}}
    return found


def _share(value: object, band: str, where: str) -> float:
    if band not in BAND_KEYS:
        raise InputError(f"{where}: unknown size band {band!r}; they are {', '.join(BAND_KEYS)}")
    return _number(value, band, where)


def _number(value: object, band: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{where}: {band} = {value!r} must be a number >= 0")
    return float(value)
