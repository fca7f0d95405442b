"""Regression trees as plain numbers: what a fit leaves, read from JSON and evaluated without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from simcore.errors import InputError
from simcore.records import dataclass


@dataclass(frozen=True)
class RegressionTree:
    """One tree.  Node ``i`` goes on to ``left[i]`` when its feature is at most ``threshold[i]``, else to
    ``right[i]``; a missing (NaN) feature to the left where ``missing_left[i]``.  ``feature[i] == -1`` is a
    leaf with ``value[i]``.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    missing_left: tuple[bool, ...]
    value: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = {len(column) for column in (self.threshold, self.left, self.right, self.missing_left)}
        if sizes != {len(self.feature)} or len(self.value) != len(self.feature) or not self.feature:
            raise InputError("a tree's columns are not of one length")
        for node, feature in enumerate(self.feature):
            if feature >= 0 and not all(
                node < child < len(self.feature) for child in (self.left[node], self.right[node])
            ):
                raise InputError(f"node {node} of a tree goes on to no later node")

    def predict(self, row: Sequence[float]) -> float:
        """The value of the leaf that ``row`` ends in."""
        node = 0
        while (feature := self.feature[node]) >= 0:
            value = row[feature]
            to_left = self.missing_left[node] if math.isnan(value) else value <= self.threshold[node]
            node = self.left[node] if to_left else self.right[node]
        return self.value[node]

    def as_dict(self) -> dict[str, Any]:
        """The tree as JSON values."""
        return {
            "feature": list(self.feature),
            "threshold": list(self.threshold),
            "left": list(self.left),
            "right": list(self.right),
            "missing_left": list(self.missing_left),
            "value": list(self.value),
        }

    @classmethod
    def of(cls, content: object, num_features: int) -> RegressionTree:
        """From :meth:`as_dict`.  InputError for anything else."""
        if not isinstance(content, dict):
            raise InputError("a tree must be an object")
        columns: dict[str, tuple[Any, ...]] = {}
        for name in cls.__dataclass_fields__:
            column = content.get(name)
            if not isinstance(column, list) or not all(isinstance(v, int | float) for v in column):
                raise InputError(f"a tree needs a list of numbers {name!r}")
            columns[name] = tuple(column)
        if not all(type(f) is int and -1 <= f < num_features for f in columns["feature"]):
            raise InputError(f"a tree's features must be -1 to {num_features - 1}")
        return cls(**columns)
