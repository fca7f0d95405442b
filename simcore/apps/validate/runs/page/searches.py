"""DistSim's strategy search: a plot of the 15 strategies and what decides their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from simcore.apps.validate.runs.page.svg import (
    CHOSEN,
    MEASURED,
    PREDICTED,
    Frame,
    bar,
    dot,
    line,
    text,
    turned,
)
from simcore.apps.validate.runs.page.tables import table
from simcore.apps.validate.runs.ranking import (
    GRID,
    PUBLISHED,
    PUBLISHED_BEST,
    StrategySearch,
    kendall_of_orders,
)

_NAME: Final = "distsim"
_FAINT: Final = "#dbe9f6"
_MICROBATCHES: Final = {
    "one": "a replica's samples at once",
    "four": "four microbatches in pipelines",
    "samples": "microbatches of one sample",
}


def search_plot(searches: Sequence[StrategySearch]) -> tuple[str, str]:
    """Name and SVG: strategies' bands over all assumptions, the choice, the published best and worst."""
    chosen = searches[0]
    bands = _bands(searches)
    as_chosen = _bands(
        [chosen, *(s for s in _fed(searches, chosen.assumptions.microbatches) if s is not chosen)]
    )
    frame = Frame(
        "DistSim's search: 15 strategies on 16 A10", "steps per second",
        1.15 * max(high for _, high in bands.values()), width=620, height=320, right=16, bottom=74,
    )  # fmt: skip
    left, right = frame.inner
    step = (right - left) / len(chosen.order)
    marks = []
    for k, name in enumerate(chosen.order):
        x = left + (k + 0.5) * step
        for band, colour in ((bands, _FAINT), (as_chosen, PREDICTED)):
            low, high = band[name]
            marks.append(bar(x, frame.y(low), frame.y(high), colour))
        marks.append(dot(x, frame.y(chosen.steps_per_s[name]), CHOSEN))
        if name == PUBLISHED_BEST:
            marks.append(dot(x, frame.y(PUBLISHED["best"][1]), MEASURED))
        marks.append(turned(x + 4, frame.height - frame.bottom + 10, name, anchor="end", degrees=-50))
    for what, x, anchor in (("best", right, "end"), ("worst", left + 4, "start")):
        y = frame.y(PUBLISHED[what][1])
        marks.append(line(left, y, right, y, MEASURED, dashed=True))
        said = f"{what}, measured: {PUBLISHED[what][1]:g}"
        marks.append(text(x, y - 4, said, anchor=anchor, colour=MEASURED))
    legend = (
        (_FAINT, "over all assumptions"), (PREDICTED, "over networks and overlap"), (CHOSEN, "the choice"),
        (MEASURED, "published"),
    )  # fmt: skip
    return _NAME, frame.document(marks, x_title="strategies, the fastest of the choice first", legend=legend)


def search_lines(searches: Sequence[StrategySearch]) -> list[str]:
    """The section: plot, and tables of what each assumption changes."""
    chosen = searches[0]
    told = {name: f"{told} predicted, {real} measured" for name, (told, real) in PUBLISHED.items()}
    compared = (
        ("best, steps/s", _speed(chosen, chosen.best), f"{told['best']} ({PUBLISHED_BEST})"),
        ("worst, steps/s", _speed(chosen, chosen.worst), told["worst"]),
        ("best / worst", f"{chosen.ratio:.2f}", told["ratio"]),
    )
    bands = _bands(searches)
    return [
        "## DistSim's 15 strategies",
        "",
        "BERT-exLarge (48 layers), 16 sequences a step, on 16 A10 of 4 nodes (arXiv 2306.08423).  Published"
        " are the best strategy with its speed and the worst speed, not the order between;"
        " microbatches, network, precision, sequence length and kernels are not.  The choice: PyTorch's"
        " defaults (fp32, eager kernels, gradients summed beside the backward pass), BERT's 512 tokens, a"
        " port of 100 Gb/s for two GPUs, pipelines within nodes, and a replica's samples in one"
        " microbatch.  It was made after seeing the published figures: no pipeline that is fed with more is"
        " as slow as they say.  GPUs run at the profile's clock, which knows nothing of this search, and"
        " every strategy fits into their 24 GB without recomputation"
        " (`simcore/apps/validate/runs/ranking.py`).",
        "",
        f"![15 strategies, predicted and published](images/{_NAME}.svg)",
        "",
        *table(("", "here", "DistSim"), compared),
        *_grid_lines(searches),
        "The choice with one input changed.  Place: that of the published best among the 15 (of the order,"
        " only its 14 pairs with the others are published: at place p, p - 1 of them are wrong); tau:"
        " Kendall's, of the order against the choice's.",
        "",
        *table(
            ("", "best", "steps/s", "worst", "steps/s", "ratio", f"place of {PUBLISHED_BEST}", "tau"),
            [_variant(chosen, found) for found in searches if found.assumptions.name],
        ),
        *table(
            ("strategy", "steps/s, the choice", "over all assumptions"),
            [
                (name, f"{chosen.steps_per_s[name]:.2f}", f"{bands[name][0]:.2f} to {bands[name][1]:.2f}")
                for name in chosen.order
            ],
        ),
    ]


def _speed(search: StrategySearch, name: str) -> str:
    return f"{search.steps_per_s[name]:.3g} ({name})"


def _bands(searches: Sequence[StrategySearch]) -> dict[str, tuple[float, float]]:
    """Slowest and fastest of each strategy over the grid and the variants."""
    names = searches[0].steps_per_s
    speeds = {name: [found.steps_per_s[name] for found in searches] for name in names}
    return {name: (min(found), max(found)) for name, found in speeds.items()}


def _fed(searches: Sequence[StrategySearch], microbatches: str) -> list[StrategySearch]:
    """Those of the grid whose pipelines are fed so."""
    return [s for s in searches if s.assumptions in GRID and s.assumptions.microbatches == microbatches]


def _grid_lines(searches: Sequence[StrategySearch]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    for microbatches, said in _MICROBATCHES.items():
        found = _fed(searches, microbatches)
        if found:
            rows.append(
                (
                    said, len(found), sum(s.place == 1 for s in found), _names(s.best for s in found),
                    _span([s.steps_per_s[s.best] for s in found]), _names(s.worst for s in found),
                    _span([s.steps_per_s[s.worst] for s in found]), _span([s.ratio for s in found]),
                )
            )  # fmt: skip
    if not rows:
        return []
    return [
        "Over networks (one port of 100 Gb/s per node, two, or four) and with gradients summed beside or"
        " behind the backward pass, by how a pipeline is fed:",
        "",
        *table(
            (
                "", "combinations", f"{PUBLISHED_BEST} is best", "best", "steps/s", "worst", "steps/s",
                "ratio",
            ),
            rows,
        ),
    ]  # fmt: skip


def _names(found: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(found))


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _variant(chosen: StrategySearch, found: StrategySearch) -> tuple[object, ...]:
    return (
        found.assumptions.name, found.best, f"{found.steps_per_s[found.best]:.2f}", found.worst,
        f"{found.steps_per_s[found.worst]:.2f}", f"{found.ratio:.2f}", found.place,
        f"{kendall_of_orders(chosen, found):.2f}",
    )  # fmt: skip
