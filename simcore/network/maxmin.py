"""Max-min fair sharing: the one place where "who gets how much" is decided.

Pure arithmetic, no simulation.  Activities (flows, collectives, kernels that read HBM) use resources
(link directions, HBM) with a weight: resource units per unit of progress.  Progressive filling raises
all rates together until a resource is full or an activity reaches its own limit, freezes those, and
goes on (Bertsekas and Gallager, Data Networks, 6.5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Uses = Sequence[tuple[int, float]]  # (resource, weight > 0)
_TIE = 1e-12  # relative: levels closer than this are one level


def max_min(capacity: Mapping[int, float], uses: Sequence[Uses], caps: Sequence[float]) -> list[float]:
    """Weighted max-min fair rates.

    ``capacity[r]`` is what resource ``r`` can carry; activity ``i`` moving at rate ``x`` takes ``w * x`` of
    each ``(r, w)`` in ``uses[i]`` and never exceeds ``caps[i]`` (may be infinite).  Every activity ends up
    limited by its cap or by a full resource on which nobody is faster.  An activity with no uses and no
    cap gets an infinite rate.  Result: one rate per activity, in capacity units per unit weight.
    """
    left = dict(capacity)
    weight_on: dict[int, float] = {}
    users: dict[int, list[int]] = {}
    for i, use in enumerate(uses):
        for resource, weight in use:
            weight_on[resource] = weight_on.get(resource, 0.0) + weight
            users.setdefault(resource, []).append(i)
    rates = [-1.0] * len(uses)
    open_count = len(uses)
    while open_count:
        level = min(cap for cap, rate in zip(caps, rates, strict=True) if rate < 0.0)
        full: list[int] = []
        for resource, weight in weight_on.items():
            fair = left[resource] / weight
            if fair < level * (1.0 - _TIE):
                level, full = fair, [resource]
            elif fair <= level * (1.0 + _TIE):
                full.append(resource)
        frozen = {i for resource in full for i in users[resource] if rates[i] < 0.0}
        frozen.update(i for i, cap in enumerate(caps) if rates[i] < 0.0 and cap <= level * (1.0 + _TIE))
        for i in sorted(frozen):
            rates[i] = min(level, caps[i])
            for resource, weight in uses[i]:
                left[resource] = max(0.0, left[resource] - weight * rates[i])
                weight_on[resource] -= weight
        for resource in [r for r, members in users.items() if all(rates[i] >= 0.0 for i in members)]:
            weight_on.pop(resource, None)
        open_count -= len(frozen)
    return rates


def max_min_by_share(
    capacity: Mapping[int, float], uses: Sequence[Sequence[tuple[int, float, float]]], caps: Sequence[float]
) -> list[float]:
    """Max-min rates where resources part their capacity by shares that are not the activities' weights.

    ``uses[i]`` are ``(resource, weight > 0, share > 0)``: an activity at rate ``x`` takes ``w * x``, and
    activities that a resource holds up get capacity in proportion to their shares there.  Where shares are
    proportional to weights this is :func:`max_min`.  Rounds: each resource offers what is left by share, each
    activity wishes for the least that it is offered; activities that their cap holds up, and those of
    resources that hold up all who are left on them, get their wish.  Offers to the others only grow.  Where
    no resource holds up all of its own, the fullest one settles first.
    """
    left = dict(capacity)
    rates = [-1.0] * len(uses)
    open_ids = list(range(len(uses)))
    while open_ids:
        total: dict[int, float] = {}
        for i in open_ids:
            for resource, _, share in uses[i]:
                total[resource] = total.get(resource, 0.0) + share
        wish, tight = {}, {}
        for i in open_ids:
            offers = [(left[r] * share / (total[r] * weight), r) for r, weight, share in uses[i]]
            least = min((offer for offer, _ in offers), default=caps[i])
            wish[i] = min(least, caps[i])
            edge = wish[i] * (1.0 + _TIE)
            tight[i] = {r for offer, r in offers if offer <= edge}
        frozen = {i for i in open_ids if caps[i] <= wish[i] * (1.0 + _TIE)}
        loose = {r for i in open_ids for r, _, _ in uses[i] if r not in tight[i]}
        frozen.update(i for i in open_ids if tight[i] - loose)
        if not frozen:
            load = dict.fromkeys(total, 0.0)
            for i in open_ids:
                for r, weight, _ in uses[i]:
                    load[r] += weight * wish[i]
            fullest = max(sorted(total), key=lambda r: load[r] / left[r] if left[r] > 0.0 else 2.0)
            frozen = {i for i in open_ids if fullest in tight[i]} or set(open_ids)
        for i in sorted(frozen):
            rates[i] = wish[i]
            for resource, weight, _ in uses[i]:
                left[resource] = max(0.0, left[resource] - weight * wish[i])
        open_ids = [i for i in open_ids if i not in frozen]
    return rates


def share(capacity: float, demands: Sequence[float]) -> tuple[float, list[float]]:
    """Max-min on one resource: (water level, allocation of each demand).

    The level is infinite when all demands fit; otherwise demands above it are cut to it.
    """
    left, waiting = capacity, len(demands)
    for demand in sorted(demands):
        level = left / waiting
        if demand > level:
            return level, [min(d, level) for d in demands]
        left -= demand
        waiting -= 1
    return float("inf"), list(demands)
