"""What GPUs cost: a TOML file of prices per GPU and hour, by GPU or by cluster, with its source and date."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simcore import tables
from simcore.errors import InputError, nearest
from simcore.hardware import ClusterSpec, cluster_names, gpu_names, load_gpu
from simcore.tables import Each, Plain, Text

_FOLDER: Final = "prices"
_SCHEMA: Final = {"currency": Text(), "source": Text(), "date": Any, "per_gpu_hour": Each(Plain())}
_S_PER_HOUR: Final = 3600.0
#: No GPU costs as much an hour in the smallest of currencies (tens of thousands to the dollar).
_ABSURD: Final = 1e9


@dataclass(frozen=True)
class PriceList:
    """``per_gpu_hour`` in ``currency``: by name of a GPU (``H100-SXM5-80GB``), a cluster or its family.

    ``where``: the file; ``source`` and ``date`` as it has them.
    """

    where: str
    currency: str
    source: str
    date: datetime.date
    per_gpu_hour: Mapping[str, float]

    def gpu_hour(self, cluster: ClusterSpec) -> float:
        """What a GPU of ``cluster`` costs an hour; its own price goes before that of its GPU.

        InputError where the file has none.
        """
        for name in (cluster.name, cluster.name.rpartition("-")[0], cluster.gpu.name):
            if name in self.per_gpu_hour:
                return self.per_gpu_hour[name]
        known = ", ".join(self.per_gpu_hour) or "none"
        raise InputError(f"{self.where} [per_gpu_hour]: no price of {cluster.gpu.name}, only of {known}")

    def per_million_tokens(self, cluster: ClusterSpec, tokens_per_s: float) -> float:
        """What a million tokens cost on all GPUs of ``cluster``."""
        per_s = self.gpu_hour(cluster) * cluster.num_gpus / _S_PER_HOUR
        return 1e6 * per_s / tokens_per_s

    def line(self) -> str:
        """For the terminal."""
        return f"costs in {self.currency}: {self.where} of {self.date}"


def read_prices(name_or_path: str, clusters: Iterable[ClusterSpec]) -> PriceList:
    """Prices of ``hardware_profiles/prices`` by name, or of a user's file; ``clusters`` are those asked for.

    Errors: InputError for a file that is none, a price below 0, absurd or no number, and a name that is
    neither a GPU nor a cluster, with the nearest.
    """
    known = tables.names("hardware_profiles", _FOLDER)
    path = Path(name_or_path)
    if name_or_path in known:
        where = f"hardware_profiles/{_FOLDER}/{name_or_path}.toml"
        found = tables.load(_SCHEMA, "hardware_profiles", f"{_FOLDER}/{name_or_path}.toml")
    elif path.suffix == ".toml":
        where = name_or_path
        found = tables.read(_SCHEMA, tables.read_file(path, "prices"), where)
    else:
        raise InputError(f"prices {name_or_path!r}: no .toml file{nearest(name_or_path, known)}")
    return PriceList(
        where,
        found["currency"],
        found["source"],
        _date(found["date"], where),
        _by_name(found["per_gpu_hour"], where, clusters),
    )


def _date(value: object, where: str) -> datetime.date:
    if isinstance(value, datetime.date):
        return value
    try:
        return datetime.date.fromisoformat(str(value))
    except ValueError:
        raise InputError(f"{where}: date = {value!r} must be a day, such as 2026-11-09") from None


def _by_name(said: Mapping[str, float], where: str, clusters: Iterable[ClusterSpec]) -> dict[str, float]:
    """Prices with GPUs by their full names, whichever of theirs the file has."""
    full = {profile: load_gpu(profile).name for profile in gpu_names()}
    own = {name for one in clusters for name in (one.name, one.gpu.name)}
    known = {*full, *full.values(), *cluster_names(), *own}
    found: dict[str, float] = {}
    for name, price in said.items():
        family, _, size = name.rpartition("-")
        if name not in known and not (family in cluster_names() and size.isdecimal()):
            raise InputError(f"{where} [per_gpu_hour]: {name!r} is no GPU or cluster{nearest(name, known)}")
        if price >= _ABSURD:
            raise InputError(f"{where} [per_gpu_hour]: {name} = {price:g} is no price of a GPU's hour")
        settled = full.get(name, name)
        if settled in found:
            raise InputError(f"{where} [per_gpu_hour]: {name!r} is {settled}, which has a price already")
        found[settled] = price
    return found
