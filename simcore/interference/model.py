"""The learned slowdown of a kernel beside communication, with where it was learned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from simcore.elementary import exp, plain_sum
from simcore.errors import InputError
from simcore.files import whole_text
from simcore.interference.features import FEATURES, Neighbours, features
from simcore.interference.trees import RegressionTree
from simcore.outside import json_document, read_bytes
from simcore.records import dataclass

#: The model that comes with the project.
DEFAULT = Path(__file__).parents[2] / "hardware_profiles" / "interference" / "recorded.json"

_FORMAT = "stepsim-interference-1"
#: Logarithm of the largest slowdown that trees may add up to, a million times; the project's own reaches 1.9.
_MOST = 14.0


@dataclass(frozen=True)
class LearnedInterference:
    """Boosted trees for the logarithm of a slowdown.

    ``num_sms`` are the sizes of the GPUs in the training rows: for another GPU the model says nothing.
    ``source`` is where the rows came from, ``num_rows`` how many there were.
    """

    base: float
    trees: tuple[RegressionTree, ...]
    num_sms: tuple[int, ...]
    source: str
    num_rows: int
    _known: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False, compare=False)

    def covers(self, num_sms: int) -> bool:
        """Whether a GPU of this size was among the training rows."""
        return num_sms in self.num_sms

    def of_features(self, row: Sequence[float]) -> float:
        """Slowdown of a kernel with these :data:`FEATURES`; never below 1."""
        return max(1.0, exp(self.base + plain_sum(tree.predict(row) for tree in self.trees)))

    def slowdown(
        self,
        *,
        sm_ps: float,
        hbm_ps: float,
        fixed_ps: float,
        blocks: int,
        blocks_per_sm: int,
        num_sms: int,
        beside: Neighbours,
    ) -> float:
        """Slowdown of a kernel (times alone in ps) beside ``beside``; 1 where no SM is held."""
        if beside.num_sms <= 0:
            return 1.0
        key = (sm_ps, hbm_ps, fixed_ps, blocks, blocks_per_sm, num_sms, beside)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.of_features(
                features(
                    sm_ps=sm_ps, hbm_ps=hbm_ps, fixed_ps=fixed_ps, blocks=blocks, blocks_per_sm=blocks_per_sm,
                    num_sms=num_sms, beside=beside,
                )
            )  # fmt: skip
        return found

    def write(self, path: Path) -> None:
        """Write the model as JSON.  InputError where that fails."""
        content: dict[str, Any] = {
            "format": _FORMAT, "features": list(FEATURES), "source": self.source,
            "num_rows": self.num_rows, "num_sms": list(self.num_sms), "base": self.base,
            "trees": [tree.as_dict() for tree in self.trees],
        }  # fmt: skip
        whole_text(path, json.dumps(content, separators=(",", ":")) + "\n")


def load_interference(path: Path = DEFAULT) -> LearnedInterference:
    """Read a model that ``scripts/calibrate.py --interference`` wrote.

    Errors: InputError for a missing file, one that is no such model, or one of other features.
    """
    content = json_document(read_bytes(path, "the learned interference", "json"), path.name)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InputError(f"{path.name}: no learned interference of format {_FORMAT!r}")
    if content.get("features") != list(FEATURES):
        raise InputError(f"{path.name}: learned on other features; train it again with calibrate.py")
    trees, sizes, base = content.get("trees"), content.get("num_sms"), content.get("base")
    source, rows = content.get("source", ""), content.get("num_rows", 0)
    if not isinstance(trees, list) or not isinstance(sizes, list) or not isinstance(base, int | float):
        raise InputError(f"{path.name}: needs base, num_sms and trees")
    if isinstance(base, bool) or not all(type(size) is int and size > 0 for size in sizes):
        raise InputError(f"{path.name}: base must be a number, num_sms positive integers")
    if not isinstance(source, str) or type(rows) is not int or rows < 0:
        raise InputError(f"{path.name}: source must be text, num_rows the number of measurements")
    try:
        made = tuple(RegressionTree.of(tree, len(FEATURES)) for tree in trees)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    if base + sum(max(tree.value) for tree in made) > _MOST:
        raise InputError(f"{path.name}: base and trees add up to slowdowns of more than a million times")
    return LearnedInterference(float(base), made, tuple(sizes), source, rows)
