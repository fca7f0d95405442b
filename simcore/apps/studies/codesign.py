"""``codesign``: what a job gains from more of each resource, its best strategy chosen anew at each point."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simcore.apps.options import Json, Settings
from simcore.errors import InputError
from simcore.records import dataclass

#: Resources by the keys of their numbers.
RESOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "FLOP/s": ("gpu.peak_flops.*",),
    "HBM size": ("gpu.hbm_bytes",),
    "HBM bandwidth": ("gpu.hbm_bytes_per_s",),
    "NVLink": ("gpu.nvlink_bytes_per_s",),
    "NICs": ("cluster.nic_bytes_per_s",),
}
TOGETHER: Final = "all together"
#: Share of HBM that tables may fill where nothing else is said.
_ROOM: Final = 0.75
PICTURE: Final = "codesign.png"
TABLE: Final = "codesign.parquet"


@dataclass(frozen=True)
class ScaledMachine:
    """A scaled machine: ``step_s`` of its best strategy, and how much faster than on the machine as it is."""

    resource: str
    factor: float
    step_s: float | None
    gain: float | None
    strategy: str
    reason: str = ""

    def as_object(self) -> dict[str, Any]:
        """A row."""
        return dict(vars(self))


def points(
    model: str,
    cluster: str,
    settings: Mapping[str, str],
    factors: Sequence[float],
    *,
    search: str = "",
    gap: float = 0.0,
) -> Iterator[ScaledMachine]:
    """The machine as it is, then each resource and all together times each of ``factors``.

    ``search``: the axes of strategies, as ``plan.py`` takes them; ``gap``: how much faster than the one found
    another strategy may be.  InputError where nothing fits or can be on the machine as it is.
    """
    from simcore.apps.plan.asking import asked
    from simcore.apps.progress import say
    from simcore.hardware import is_hardware_key, load_cluster
    from simcore.planning.search import fastest
    from simcore.planning.space import asked_axes

    known = load_cluster(cluster, {key: text for key, text in settings.items() if is_hardware_key(key)})

    def best(name: str, factor: float, keys: Sequence[str], before_s: float | None) -> ScaledMachine:
        say(f"{name} x {factor:g} ...")
        changed = {key: repr(factor * value) for key, value in _values(known, keys).items()}
        size = float(changed.get("gpu.hbm_bytes", known.gpu.hbm_bytes))
        if "gpu.hbm_bytes" in changed:
            changed["gpu.hbm_bytes"] = str(int(size))
        if "strategy.room_bytes" not in settings:
            changed["strategy.room_bytes"] = repr(_ROOM * size)
        said = {**settings, **changed}
        ask = asked(model, cluster, [f"{key}={text}" for key, text in said.items()])
        lists = bool(ask.question.ground.classes)
        found, reason = fastest(ask.question, asked_axes(search, ask.kept, lists=lists), gap=gap)
        if found is None or found.step_s is None:
            return ScaledMachine(name, factor, None, None, "", reason)
        gained = (before_s or found.step_s) / found.step_s
        strategy = ask.question.named(found.settings)
        return ScaledMachine(name, factor, found.step_s, gained, strategy)

    base = best("as it is", 1.0, (), None)
    if base.step_s is None:
        raise InputError(f"{model} on {cluster}: no strategy can be: {base.reason}")
    yield base
    every = tuple(key for keys in RESOURCES.values() for key in keys)
    for name, keys in (*RESOURCES.items(), (TOGETHER, every)):
        for factor in factors:
            yield best(name, factor, keys, base.step_s)


def _values(known: Any, keys: Sequence[str]) -> dict[str, float]:
    """Numbers of a cluster by settings; ``.*`` stands for all of a table."""
    found: dict[str, float] = {}
    for key in keys:
        part, name = key.split(".", 1)
        if name.endswith(".*"):
            table = getattr(known.gpu, name[:-2])
            found |= {f"{part}.{name[:-1]}{mode}": value for mode, value in table.items()}
        else:
            found[key] = getattr(known.gpu if part == "gpu" else known, name)
    return found


def codesign(
    model: Annotated[str, typer.Argument(help="A model's name, config.json, or YAML file of a job.")],
    cluster: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="The machine to scale.")
    ] = "a100-roce-128",
    factors: Annotated[
        str, typer.Option("--times", help="By how much each resource is multiplied.")
    ] = "2,4,10",
    settings: Settings = None,
    search: Annotated[
        str, typer.Option(metavar="AXES", help="Axes of strategies, as plan.py takes them. Default: its own.")
    ] = "",
    gap: Annotated[
        float, typer.Option(help="How much faster another strategy may be than the one found.")
    ] = 0.01,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for {TABLE} and {PICTURE}. Default: none are written.")
    ] = None,
    as_json: Json = False,
) -> None:
    """More FLOP/s, HBM, NVLink or NICs: what MODEL gains, with the best strategy at each point."""
    from simcore.apps.plan.asking import checked_limits
    from simcore.apps.run.settings import split_pairs

    numbers = _factors(factors)
    checked_limits(gap, 1.0, 0.0)
    said = split_pairs(settings or ())
    found = list(points(model, cluster, said, numbers, search=search, gap=gap))
    if out is not None:
        _write(found, out, f"{model} on {cluster}")
    if as_json:
        print(json.dumps({"model": model, "cluster": cluster, "rows": [one.as_object() for one in found]}))
        return
    print("\n".join(lines(found)))
    if out is not None:
        print(f"{out / TABLE}, {out / PICTURE}")


def _factors(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < one <= 1e4 for one in found):
        raise InputError(f"--times {text!r}: numbers above 0 with commas between, such as 2,4,10")
    return found


def lines(found: Sequence[ScaledMachine]) -> list[str]:
    """A line for each point of at most 80 letters, or two."""
    out = [f"{'':<15}{'times':>6}{'step':>11}{'faster':>8}  best strategy"]
    for one in found:
        step = "none fits" if one.step_s is None else f"{1e3 * one.step_s:.4g} ms"
        gain = "" if one.gain is None else f"{one.gain:.2f}x"
        row = f"{one.resource:<15}{one.factor:>6g}{step:>11}{gain:>8}"
        fits = len(row) + 2 + len(one.strategy) <= 80
        out += [f"{row}  {one.strategy}"] if fits else [row, f"  {one.strategy}"]
    return out


def _write(found: Sequence[ScaledMachine], out: Path, title: str) -> None:
    import pandas as pd

    from simcore.files import whole_file
    from simcore.report.figure import new_figure

    out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / TABLE) as path:
        pd.DataFrame([one.as_object() for one in found]).to_parquet(path)
    with new_figure(out / PICTURE, 6.5, 4.2, dpi=120) as figure:
        axes = figure.subplots()
        for name in dict.fromkeys(one.resource for one in found[1:]):
            line = [(1.0, 1.0)] + [
                (one.factor, one.gain) for one in found if one.resource == name and one.gain is not None
            ]
            axes.plot(*zip(*sorted(line), strict=True), marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({one.factor for one in found}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("times as much")
        axes.set_ylabel("times as fast, best strategy each")
        axes.set_title(title)
        axes.legend()
