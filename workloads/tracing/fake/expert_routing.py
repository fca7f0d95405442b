"""Where tokens are routed, although no score is known: the load model chooses, on every rank alike.

``topk``, ``argmax`` and ``max`` over the last dimension choose experts.  What is computed from the choice is
known, too (:mod:`workloads.tracing.fake.known_values`): counts, offsets, masks, sorted orders, splits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import zeros
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from workloads.tracing.fake.expert_load import ExpertLoad, assign, token_counts
from workloads.tracing.fake.known_values import KnownValues, chosen_by, remember

#: Choices among more than these are not experts.
_MOST_EXPERTS = 1024
#: Operator -> (position of the dimension among the arguments, its default).
_CHOOSING = {"aten::topk": (2, -1), "aten::argmax": (1, None), "aten::max": (1, None)}


class ExpertRouting:
    """``load`` decides where tokens go; ``exponent_at`` may give another exponent (:class:`ExpertLoad`), and
    what is told when the program comes to rely on the decision.  ``module`` names the layer that decides:
    recorded loads go by the order in which layers decide first, also when they are recomputed.  ``known``
    hears of the first decision.
    """

    def __init__(
        self,
        load: ExpertLoad,
        exponent_at: Callable[[torch.Tensor, float], tuple[float, Callable[[], None]]],
        module: Callable[[], str],
        known: KnownValues,
    ) -> None:
        self._load = load
        self._exponent_at = exponent_at
        self._module = module
        self._known = known
        self._layers: dict[str, int] = {}

    def choose(self, base: str, args: Any, kwargs: dict[str, Any], result: Any) -> bool:
        """Route, if operator ``base`` chooses experts for tokens; whether it does."""
        if base not in _CHOOSING:
            return False
        position, default = _CHOOSING[base]
        scores = args[0]
        dim = args[position] if len(args) > position else kwargs.get("dim", default)
        chosen = result[1] if isinstance(result, tuple | list) else result
        if not isinstance(dim, int) or not isinstance(chosen, FakeTensor) or scores.dim() < 2:
            return False
        experts = scores.shape[dim]
        if chosen.dtype != torch.int64 or dim % scores.dim() != scores.dim() - 1 or experts > _MOST_EXPERTS:
            return False
        tokens = scores.numel() // experts
        top_k = chosen.numel() // tokens if tokens else 0
        if not 0 < top_k < experts:
            return False
        own = self._load.exponent
        exponent, tell = self._exponent_at(scores, own)
        shares = self.shares(experts, None if exponent == own else exponent)
        experts_of = assign(token_counts(shares, tokens, top_k), tokens, top_k)
        self._known.routed = True
        with torch._C._DisableTorchDispatch():
            values = torch.from_numpy(experts_of.reshape(chosen.shape))
        remember(chosen, values)
        chosen_by(chosen, tell)
        return True

    def mark(self, routes: torch.Tensor, top_k: int) -> None:
        """Make known which of its experts (columns) each token (row) chose in ``routes``."""
        tokens, experts = routes.shape
        chosen = assign(token_counts(self.shares(experts), tokens, top_k), tokens, top_k)
        self._known.routed = True
        with _disable_current_modes():
            real = zeros(tokens, experts, dtype=routes.dtype, device="cpu")
            real.scatter_(1, torch.from_numpy(chosen), 1)
        remember(routes, real)

    def shares(self, experts: int, exponent: float | None = None) -> NDArray[np.float64]:
        """Share of every expert in the routing layer that runs; ``exponent`` instead of the load's own."""
        layer = self._layers.setdefault(self._module(), len(self._layers))
        return self._load.shares(experts, layer, exponent)
