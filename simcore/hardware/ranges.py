"""Which numbers hardware can have: what is known of it, with a margin; beyond it, a number is a slip.

Note [Ranges]
    The profiles that come with the project span what exists.  A rate, size or count may be up to ten times
    the largest of its kind and no less than a thousandth of the smallest, a latency no less than a tenth of
    the shortest (0 is an idealisation that is allowed) and up to a thousand times the longest.  A key that no
    profile has is held to all numbers of its dimension.  ``force`` lets any number pass, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from simcore.errors import InputError
from simcore.hardware.keys import CLUSTER, GPU, LINK, SUSTAINED
from simcore.hardware.profiles import Profile, cluster_names, dies, gpu_names, read_cluster, read_gpu
from simcore.records import dataclass
from simcore.tables import Each, Maybe
from simcore.units import Number

#: What sources of numbers end in that were taken by force.
FORCED: Final = "by force"
_MORE, _LESS = 10, 1000
_WITH_RANGE: Final = ("size", "bandwidth", "compute", "frequency", "power", "time")
#: Counts that are physics; of others, such as nodes, there may be as many as fit the program.
_COUNTS: Final = ("num_sms", "nvlink_links", "copy_engines")
_RATIOS: Final = ("gemm_efficiency", "hbm_efficiency", "nic_efficiency", "clock", "fp8")
_SCHEMAS: Final[dict[str, Mapping[str, Any]]] = {
    "gpu": GPU,
    "sustained": {f"sustained.{key}": rule for key, rule in SUSTAINED.items()},
    "cluster": CLUSTER,
}
#: What links are made of.
_OF_LINKS: Final = ("nvlink_bytes_per_s", "nvlink_latency_s")


@dataclass(frozen=True)
class _Known:
    """The numbers of a key: least and most, and who has them."""

    least: float
    least_of: str
    most: float
    most_of: str


def refuse_beyond(scope: str, profile: Profile, values: Mapping[str, Any], *, force: bool) -> None:
    """InputError for a number of ``values`` (key -> SI value) that no hardware has, see Note [Ranges].

    ``scope``: "gpu", "sustained", "cluster" or "link".  With ``force`` its source says so instead.
    """
    schema = _SCHEMAS[scope] if scope in _SCHEMAS else {k: LINK[k.rpartition(".")[2]] for k in values}
    by_key, by_dimension = _known(scope)
    for key, rule, value in _numbers(schema, values):
        known = by_key.get(key) or by_dimension[rule.dimension]
        least, most = known.least / _LESS, known.most * _MORE
        if rule.dimension == "time":
            least, most = known.least / _MORE, known.most * _LESS
        if value == 0 or least <= value <= most:
            continue
        unit = "" if rule.dimension in ("count", "ratio") else f" {rule.si_unit}"
        if value > most:
            said = f"is more than hardware has (the most known: {known.most:.4g}{unit}, {known.most_of})"
        else:
            said = f"is less than hardware has (the least known: {known.least:.4g}{unit}, {known.least_of})"
        if not force:
            changed = next((profile.sources[k] for k in (key, "clock") if k in profile.sources), "")
            given = f" ({changed})" if changed.startswith("override") else ""
            raise InputError(
                f"{profile.where}: {key} = {value:.4g}{unit}{given} {said}; taken are {least:.4g} to"
                f" {most:.4g}{unit}, and any with --force of run_sim.py and replay.py (in"
                " Python force=True)"
            )
        profile.sources[key] = f"{value:.4g}{unit} {said}; taken {FORCED}"


def _numbers(schema: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, Number, float]]:
    """Key, schema and value of all numbers that have a range."""
    for key, entry in schema.items():
        rule = entry.schema if isinstance(entry, Maybe) else entry
        value = values.get(key)
        if value is None:
            continue
        if isinstance(rule, Each):
            yield from ((f"{key}.{name}", rule.schema, one) for name, one in value.items())
        elif isinstance(rule, Number) and (
            rule.dimension in _WITH_RANGE or key.rpartition(".")[2] in _COUNTS + _RATIOS
        ):
            yield key, rule, value


@cache
def _known(scope: str) -> tuple[dict[str, _Known], dict[str, _Known]]:
    """What is known, by key and by dimension."""
    by_key: dict[str, list[tuple[float, str]]] = {}
    by_dimension: dict[str, list[tuple[float, str]]] = {}
    schema = _SCHEMAS.get(scope, {**GPU, **CLUSTER})
    for name, values in _values(scope):
        for key, rule, value in _numbers(schema, values):
            if value > 0:
                by_key.setdefault(key, []).append((value, name))
                by_dimension.setdefault(rule.dimension, []).append((value, name))
    return ({k: _span(v) for k, v in by_key.items()}, {k: _span(v) for k, v in by_dimension.items()})


def _values(scope: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if scope == "sustained":
        for name, die in dies().items():
            yield name, {f"sustained.{key}": value for key, value in vars(die).items()}
    for name in gpu_names() if scope in ("gpu", "link") else ():
        values = read_gpu(name).values
        yield name, values if scope == "gpu" else {key: values.get(key) for key in _OF_LINKS}
    if scope in ("cluster", "link"):
        yield from ((name, read_cluster(name).values) for name in cluster_names())


def _span(found: list[tuple[float, str]]) -> _Known:
    return _Known(*min(found), *max(found))
