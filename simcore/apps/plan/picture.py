"""``plan.png``: step time against memory, candidate by candidate, and tokens per second against GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simcore.apps.plan.answer import Answer
from simcore.apps.plan.front import Front
from simcore.apps.plan.fronts import less_memory
from simcore.apps.progress import say
from simcore.errors import InputError
from simcore.report.figure import new_figure
from simcore.units import GIB

if TYPE_CHECKING:
    from simcore.report.figure import Axes

PICTURE: Final = "plan.png"
_BOUND, _SIMULATED, _BEST, _DEFAULT = "#bbbbbb", "#4477aa", "#cc6677", "#ddaa33"
#: Candidates slower than the best by more than this factor are left out: there is no end of them.
_SLOWEST: Final = 3.0


def draw(answer: Answer, sizes: Front) -> bool:
    """Write :data:`PICTURE` into the answer's folder; without matplotlib say that there is none.

    Returns whether there is one.
    """
    several = len(sizes.sizes) > 1
    try:
        with new_figure(answer.folder / PICTURE, 11 if several else 6.5, 4.6, dpi=120) as figure:
            first, *rest = figure.subplots(1, 2 if several else 1, squeeze=False)[0]
            _memory(first, answer)
            for axes in rest:
                _gpus(axes, sizes)
    except InputError as error:
        say(f"no {PICTURE}: {error}")
        return False
    return True


def _memory(axes: Axes, answer: Answer) -> None:
    """Bounds of what was not simulated, steps of what was, joined where nothing beats them in both."""
    plan, best = answer.planned, answer.ranked[0]
    assert plan.search is not None
    best_s = best.step_s or 0.0
    left = [
        one for one in plan.search.trials
        if one.step_s is None and not one.reason and one.bound_s < _SLOWEST * best_s
    ]  # fmt: skip
    axes.scatter(
        [one.appraised.peak_bytes / GIB for one in left], [one.bound_s for one in left],
        s=4, color=_BOUND, label="not simulated: at least", rasterized=True,
    )  # fmt: skip
    done = answer.ranked
    axes.scatter(
        [one.appraised.peak_bytes / GIB for one in done], [one.step_s or 0.0 for one in done],
        s=26, color=_SIMULATED, label="simulated",
    )  # fmt: skip
    front = less_memory(done)
    axes.plot(
        [one.appraised.peak_bytes / GIB for one in front], [one.step_s or 0.0 for one in front],
        color=_SIMULATED, linewidth=1, drawstyle="steps-pre",
    )  # fmt: skip
    axes.scatter(
        [best.appraised.peak_bytes / GIB],
        [best_s],
        s=60,
        color=_BEST,
        label=plan.question.named(best.settings),
    )
    if plan.default is not None and plan.default.step_s is not None and plan.default is not best:
        axes.scatter(
            [plan.default.appraised.peak_bytes / GIB], [plan.default.step_s],
            s=60, marker="D", color=_DEFAULT, label="the job as it is by default",
        )  # fmt: skip
    axes.axvline(plan.question.available_bytes / GIB, color="#555555", linewidth=1, linestyle=":")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("memory of the fullest stage in GiB (dotted: what a GPU has)")
    axes.set_ylabel("step time in s")
    axes.set_title(f"{plan.question.ground.base.model.name} on {plan.question.cluster.name}", loc="left")
    _plain(axes)


def _gpus(axes: Axes, sizes: Front) -> None:
    """The best of each cluster, a line for each kind of cluster; dotted: as many times the speed as GPUs."""
    families = dict.fromkeys(one.cluster.rpartition("-")[0] for one in sizes.sizes)
    for family in families:
        own = [one for one in sizes.sizes if one.cluster.rpartition("-")[0] == family]
        gpus = [one.gpus for one in own]
        (line,) = axes.plot(
            gpus, [one.tokens_per_s for one in own], marker="o", label=family or own[0].cluster
        )
        each = own[0].tokens_per_s / own[0].gpus
        axes.plot(
            gpus, [each * number for number in gpus], linestyle=":", linewidth=1, color=line.get_color()
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sorted({one.gpus for one in sizes.sizes}))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("GPUs (dotted: as the first scales)")
    axes.set_ylabel(f"{sizes.counted}/s of the best strategy")
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
