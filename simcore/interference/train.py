"""Fit the learned slowdown: gradient-boosted trees (scikit-learn) on recorded kernels, validated by trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcore.errors import InputError
from simcore.interference.features import FEATURES
from simcore.interference.model import LearnedInterference
from simcore.interference.trees import RegressionTree
from simcore.records import dataclass

#: Small trees: thousands of rows come from few distinct kernels.
_SETTINGS: dict[str, Any] = {
    "max_iter": 150, "learning_rate": 0.08, "max_leaf_nodes": 15, "min_samples_leaf": 20,
    "l2_regularization": 1.0, "early_stopping": False, "random_state": 0,
}  # fmt: skip


_FOLDS = 5


@dataclass(frozen=True)
class TrainingRow:
    """One recorded kernel: its features, its slowdown, its name and the trace that it is from."""

    trace: str
    kernel: str
    features: tuple[float, ...]
    slowdown: float


def train(rows: Sequence[TrainingRow], source: str) -> LearnedInterference:
    """Fit all ``rows``.  Errors: InputError without scikit-learn or with too few rows."""
    if len(rows) < 2 * _SETTINGS["min_samples_leaf"]:
        raise InputError(
            f"{len(rows)} overlapped kernels with a time alone are too few to learn from;"
            f" at least {2 * _SETTINGS['min_samples_leaf']} are needed"
        )
    table = np.array([row.features for row in rows], dtype=np.float64)
    assert table.shape[1] == len(FEATURES)
    table[:, np.isnan(table).all(axis=0)] = 0.0  # nothing to learn from, and scikit-learn stumbles over it
    target = np.log(np.array([row.slowdown for row in rows], dtype=np.float64))
    fitted = _regressor().fit(table, target)
    trees = tuple(_tree(predictor.nodes) for (predictor,) in fitted._predictors)
    index = FEATURES.index("num_sms")
    sizes = tuple(sorted({int(row.features[index]) for row in rows}))
    return LearnedInterference(float(fitted._baseline_prediction.item()), trees, sizes, source, len(rows))


def without_trace(rows: Sequence[TrainingRow], trace: str) -> LearnedInterference:
    """A model that never saw ``trace``.  InputError when the other traces are too few to learn from."""
    return train([row for row in rows if row.trace != trace], f"all but {trace}")


def without_kernels(rows: Sequence[TrainingRow]) -> dict[str, LearnedInterference]:
    """By kernel name, a model that saw all traces but not this kernel: five folds of names.

    InputError when the rows are too few to learn from.
    """
    names = sorted({row.kernel for row in rows})
    fold = {name: i % _FOLDS for i, name in enumerate(names)}
    models = [
        train([row for row in rows if fold[row.kernel] != left_out], f"all but fold {left_out}")
        for left_out in range(min(_FOLDS, len(names)))
    ]
    return {name: models[fold[name]] for name in names}


def _regressor() -> Any:
    """scikit-learn's, which only learning needs."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        raise InputError("learning needs scikit-learn: pip install scikit-learn") from None
    return HistGradientBoostingRegressor(**_SETTINGS)


def _tree(nodes: Any) -> RegressionTree:
    """From scikit-learn's node table (sklearn/ensemble/_hist_gradient_boosting/common.pyx)."""
    is_leaf = nodes["is_leaf"].astype(bool)
    columns = {
        "feature": np.where(is_leaf, -1, nodes["feature_idx"]),
        "threshold": np.where(is_leaf, 0.0, nodes["num_threshold"]),
        "left": np.where(is_leaf, 0, nodes["left"]),
        "right": np.where(is_leaf, 0, nodes["right"]),
        "missing_left": nodes["missing_go_to_left"].astype(bool),
        "value": np.where(is_leaf, nodes["value"], 0.0),
    }
    finite = np.clip(columns["threshold"], -1e300, 1e300)  # a split on missing alone has an infinite one
    columns["threshold"] = finite
    return RegressionTree(**{name: tuple(column.tolist()) for name, column in columns.items()})
