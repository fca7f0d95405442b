"""What GPUs cost: a TOML file of prices per GPU and hour, by GPU or by cluster, with its source and date."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simcore import tables
from simcore.apps.amounts import Amount, amount_text
from simcore.errors import InputError, nearest
from simcore.hardware import ClusterSpec, cluster_names, gpu_names, load_gpu
from simcore.records import dataclass
from simcore.tables import Each, Plain, Text
from simcore.timeline import RunInfo
from simcore.units import PS_PER_S, format_time

_FOLDER: Final = "prices"
_SCHEMA: Final = {"currency": Text(), "source": Text(), "date": Any, "per_gpu_hour": Each(Plain())}
_S_PER_HOUR: Final = 3600.0
_FEW_DAYS: Final = 2
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
        return self.gpu_hour_named(cluster.name, cluster.gpu.name)

    def gpu_hour_named(self, cluster: str, gpu: str) -> float:
        """The same by names."""
        for name in (cluster, cluster.rpartition("-")[0], gpu):
            if name in self.per_gpu_hour:
                return self.per_gpu_hour[name]
        known = ", ".join(self.per_gpu_hour) or "none"
        raise InputError(f"{self.where} [per_gpu_hour]: no price of {gpu}, only of {known}")

    def per_million_tokens(self, cluster: ClusterSpec, tokens_per_s: float) -> float:
        """What a million tokens cost on all GPUs of ``cluster``."""
        per_s = self.gpu_hour(cluster) * cluster.num_placed / _S_PER_HOUR
        return 1e6 * per_s / tokens_per_s

    def line(self) -> str:
        """For the terminal."""
        return f"costs in {self.currency}: {self.where} of {self.date}"


@dataclass(frozen=True)
class RunCost:
    """What ``amount`` tokens or samples (``counted``) take on the GPUs of a run: ``gpu_hours``, days of the
    job, and ``cost`` in ``prices.currency``.
    """

    amount: float
    counted: str
    gpu_hours: float
    days: float
    cost: float | None = None
    prices: PriceList | None = None

    def line(self) -> str:
        """For the terminal."""
        said = f"{amount_text(self.amount)} {self.counted}:"
        said += f" {_rounded(self.gpu_hours)} GPU-hours in {self._lasts()}"
        if self.prices is None or self.cost is None:
            return said
        cost = f"{_rounded(self.cost)} {self.prices.currency}"
        return f"{said}, {cost} ({self.prices.where} of {self.prices.date})"

    def _lasts(self) -> str:
        """The job's time, in what reads best."""
        hours = 24 * self.days
        if hours < 1:
            return format_time(hours * _S_PER_HOUR * PS_PER_S)
        return f"{hours:.3g} hours" if self.days < _FEW_DAYS else f"{_rounded(self.days)} days"

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {
            "amount": self.amount, "counted": self.counted, "gpu_hours": self.gpu_hours, "days": self.days,
        }  # fmt: skip
        if self.prices is not None:
            found |= {"cost": self.cost, "currency": self.prices.currency, "prices": self.prices.where}
        return found


def _rounded(value: float) -> str:
    """Four digits that count, without an exponent: 2,905,000."""
    return f"{float(f'{value:.4g}'):,.0f}" if value >= 1000 else f"{value:.4g}"


def cost_of_run(info: RunInfo, per_s: float, amount: Amount, prices: str | None) -> RunCost:
    """Of a run whose throughput is ``per_s``; ``prices`` as :func:`read_prices` has them.

    InputError for prices without the run's GPU, a run that says neither tokens nor samples, and tokens of
    one that has samples only.
    """
    if per_s <= 0:
        raise InputError(f"--{amount.counted}: this workload says no tokens or samples of a step")
    seconds = amount.of(info.workload.counted, info.workload.seq_len) / per_s
    gpu_hours = seconds * info.workload.world_size / _S_PER_HOUR
    found = RunCost(amount.number, amount.counted, gpu_hours, seconds / _S_PER_HOUR / 24)
    if prices is None:
        return found
    cluster, gpu = str(info.cluster.get("name", "")), dict(info.cluster.get("gpu", {})).get("name", "")
    listed = read_prices(prices, (), (cluster, str(gpu)))
    return replace(found, cost=gpu_hours * listed.gpu_hour_named(cluster, str(gpu)), prices=listed)


def read_prices(
    name_or_path: str, clusters: Iterable[ClusterSpec], names: Iterable[str] = ()
) -> PriceList:  # fmt: skip
    """Prices of ``hardware_profiles/prices`` by name, or of a user's file.

    ``clusters`` are those asked for, ``names`` those of others and of their GPUs.

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
        _by_name(
            found["per_gpu_hour"],
            where,
            {*names, *(name for one in clusters for name in (one.name, one.gpu.name))},
        ),
    )


def _date(value: object, where: str) -> datetime.date:
    if isinstance(value, datetime.date):
        return value
    try:
        return datetime.date.fromisoformat(str(value))
    except ValueError:
        raise InputError(f"{where}: date = {value!r} must be a day, such as 2026-11-09") from None


def _by_name(said: Mapping[str, float], where: str, own: set[str]) -> dict[str, float]:
    """Prices with GPUs by their full names, whichever of theirs the file has."""
    full = {profile: load_gpu(profile).name for profile in gpu_names()}
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
