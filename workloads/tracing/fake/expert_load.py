"""How many tokens each expert of a mixture gets: what a run on shapes must be told.

Note [Load models]
    "uniform" gives every expert the same number of tokens, "zipf:S" the i-th expert a share that is
    proportional to 1 / i**S (S = 1 where it is left out), a JSON file the shares that it lists: numbers of
    any scale, one for each expert, or one such list for each routing layer in the order of their first
    calls.  A token chooses different experts; an expert gets at most all tokens.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simcore.errors import InputError
from simcore.outside import json_document, read_text
from simcore.records import dataclass

_MAX_EXPONENT = 100


@dataclass(frozen=True)
class ExpertLoad:
    """``exponent`` of a Zipf load (0: uniform), or ``recorded`` shares, one tuple for each routing layer."""

    exponent: float = 0.0
    recorded: tuple[tuple[float, ...], ...] = ()

    def shares(self, num_experts: int, layer: int, exponent: float | None = None) -> NDArray[np.float64]:
        """Share of every expert in routing layer ``layer`` of a rank; ``exponent`` instead of the own model.

        InputError when the recorded shares are for another number of experts.
        """
        if exponent is None and self.recorded:
            found = np.array(self.recorded[layer % len(self.recorded)])
            if len(found) != num_experts:
                raise InputError(
                    f"expert load: {len(found)} recorded shares for a layer of {num_experts} experts"
                )
            return np.asarray(found / found.sum())
        weights = np.arange(1, num_experts + 1) ** -(self.exponent if exponent is None else exponent)
        return np.asarray(weights / weights.sum())


def parse_load(text: str) -> ExpertLoad:
    """``uniform``, ``zipf``, ``zipf:1.2`` or a JSON file.  InputError for anything else."""
    name, _, exponent = text.partition(":")
    if text == "uniform":
        return ExpertLoad()
    if name == "zipf":
        try:
            found = float(exponent or 1)
        except ValueError:
            found = math.nan
        if not 0 <= found <= _MAX_EXPONENT:
            raise InputError(
                f"expert load: {text!r} is not zipf:EXPONENT, such as zipf:1.2, of 0 to {_MAX_EXPONENT}"
            )
        return ExpertLoad(exponent=found)
    path = Path(text)
    if not path.is_file():
        raise InputError(f"expert load: {text!r} is none of uniform, zipf[:EXPONENT], a JSON file")
    listed = json_document(read_text(path, "shares of experts"), str(path))
    try:
        layers = listed if listed and isinstance(listed[0], list) else [listed]
        recorded = tuple(tuple(float(share) for share in layer) for layer in layers)
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path}: not a list of shares, or a list of such lists") from None
    if not all(layer and min(layer) >= 0 and 0 < sum(layer) < math.inf for layer in recorded):
        raise InputError(f"{path}: shares must not be negative, and some must be positive")
    return ExpertLoad(recorded=recorded)


def token_counts(shares: NDArray[np.float64], num_tokens: int, top_k: int) -> NDArray[np.int64]:
    """Tokens of every expert: ``num_tokens * top_k`` in all, at most ``num_tokens`` each, near ``shares``."""
    counts = np.zeros(len(shares), dtype=np.int64)
    left = num_tokens * min(top_k, len(shares))
    open_to = shares > 0
    if np.count_nonzero(open_to) < top_k:  # a token cannot choose one expert twice
        open_to = np.ones(len(shares), dtype=bool)
    while left:
        weights = np.where(open_to, np.maximum(shares, 1e-12), 0.0)
        wanted = left * weights / weights.sum()
        more = np.minimum(np.floor(wanted).astype(np.int64), num_tokens - counts)
        if not more.any():  # largest remainders, the lower expert first
            order = np.argsort(-(wanted - np.floor(wanted)), kind="stable")
            order = order[open_to[order]][:left]
            more[order] = np.minimum(1, num_tokens - counts[order])
        counts += more
        left -= int(more.sum())
        open_to &= counts < num_tokens
    return counts


def assign(counts: NDArray[np.int64], num_tokens: int, top_k: int) -> NDArray[np.int64]:
    """Experts of every token, (num_tokens, top_k), so that expert i gets ``counts[i]`` different tokens."""
    experts = np.repeat(np.arange(len(counts)), counts)
    # A run of at most num_tokens equal entries, dealt out token by token, meets no token twice.
    return np.ascontiguousarray(experts.reshape(min(top_k, len(counts)), num_tokens).T)
