"""Strategies searched, as Python asks for them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from simcore.apps.interface.jobs import JobOnCluster, load
from simcore.apps.interface.shown import ShownAsTables
from simcore.records import dataclass

if TYPE_CHECKING:
    import pandas as pd

    from simcore.apps.plan.answer import Answer


@dataclass(frozen=True, repr=False)
class ChosenPlan(ShownAsTables):
    """What a search found; made by :func:`plan`.  ``answer`` is what ``plan.py`` prints."""

    answer: Answer
    wall_s: float
    kept: Any = None  # a temporary folder, which goes with the last that needs it

    @cached_property
    def _object(self) -> dict[str, Any]:
        from simcore.apps.plan.result import json_of

        one = self.answer
        return json_of(one.planned, one.ranked, one.told, one.default_refused, self.wall_s)

    @property
    def best(self) -> JobOnCluster:
        """The fastest job, complete, to be simulated, traced further or written (``to_yaml``)."""
        from simcore.apps.plan.files import BEST

        return load(self.answer.folder / BEST / "1.yaml")

    @property
    def candidates(self) -> pd.DataFrame:
        """A row for each candidate that was simulated, the fastest first."""
        import pandas as pd

        return pd.DataFrame(self._object["candidates"])

    @property
    def trials(self) -> pd.DataFrame:
        """A row for each candidate: its settings, why it was dropped, its bound, its step where simulated."""
        import pandas as pd

        from simcore.apps.plan.files import TRIALS

        return pd.read_parquet(self.answer.folder / TRIALS)

    @property
    def certificate(self) -> Mapping[str, Any]:
        """``gap``: the share by which any other candidate can be faster at most; ``lower_bound_s``."""
        found: Mapping[str, Any] = self._object["certificate"]
        return found

    def as_dict(self) -> dict[str, Any]:
        """What ``plan.py --json`` prints of one cluster."""
        return self._object

    def __rich__(self) -> RenderableType:
        from simcore.apps.plan.table import in_columns

        return Text(in_columns(self.answer.lines(None)))


def plan(
    model: str,
    *,
    cluster: str | None = None,
    settings: Mapping[str, Any] | None = None,
    global_batch: int | None = None,
    seq: int | None = None,
    framework: str | None = None,
    search: str = "",
    gap: float = 0.02,
    budget_s: float = 600.0,
    polish: bool = True,
    out: Path | str | None = None,
) -> ChosenPlan:
    """The fastest strategy of ``model`` (a name, a config.json, a YAML file) on a cluster, and a proof.

    ``search``: axes to search, as ``plan.py --search`` takes them; ``framework``: a preset, whose strategies
    alone are searched; ``gap``: stop when no other can be faster by more than this share; ``out``: where the
    plan goes (default: a temporary folder that goes with the result).  It searches in forks of this process.

    Errors: InputError for anything unknown, InfeasibleError where nothing is legal and fits (what to relax).
    """
    import time

    from simcore.apps.plan.answer import answered
    from simcore.apps.plan.asking import asked, checked_limits
    from simcore.errors import InfeasibleError
    from simcore.planning.space import asked_axes

    checked_limits(gap, budget_s, 0.0)
    given = [f"{key}={value}" for key, value in (settings or {}).items()]
    ask = asked(model, cluster, given, global_batch=global_batch, seq=seq, framework=framework)
    kept = tempfile.TemporaryDirectory(prefix="simcore-plan-") if out is None else None
    folder = Path(kept.name) if kept is not None else Path(str(out))
    began = time.perf_counter()
    lists = bool(ask.question.ground.classes)
    unpolished = "" if polish else "as asked"
    axes = asked_axes(search, ask.kept, lists=lists)
    found = answered(ask, axes, folder, gap=gap, budget_s=budget_s, unpolished=unpolished)
    if not found.planned.census.fitting:
        raise InfeasibleError(f"no candidate is legal and fits; {found.planned.census.advice()}")
    return ChosenPlan(found, time.perf_counter() - began, kept)
