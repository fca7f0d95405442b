"""What the other ranks of a group give, where each rank runs alone.

Note [What other ranks give]
    The first and the last rank of a job are always run, and tell each other what they give to an exchange of
    small known values.  A rank works out the rest: where the first and the last place of its group give the
    same, every place does; where whole numbers grow evenly from place to place and its own fits, they follow
    from the place (a rank's number, the end of its shard).  Else the last place has what is left (a shorter
    shard), or the first leads where flags or kinds differ: places between give what this rank says that most
    do, or what the first, or the last, gives.  Without these every place gives what this rank gives.  What is
    worked out is an assumption, and listed.  Experts' loads are alike on all
    ranks by the load's own rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from workloads.tracing.sites import call_site


class _Mailbox(Protocol):
    def share(self, topic: str, group: Any, value: Any, wanted: Any) -> dict[int, Any]: ...


#: Where ranks tell each other; None: every place gives what this rank gives.
mailbox: _Mailbox | None = None

#: Told of every answer that rests on more than what was seen: (rule).
on_assumed: Callable[[str], None] | None = None


def objects_of_all(own: Any, group: Any, topic: str = "") -> list[Any]:
    """What each place of ``group`` gives, where this rank gives ``own``; ``topic``: its calls are
    counted (that of each line by itself).
    """
    size, mine = dist.get_world_size(group), dist.get_rank(group)
    told = {mine: own}
    if mailbox is not None and size > 1:
        told = mailbox.share(topic or call_site(), group, own, {0, size - 1})
    if len(told) == size:
        return [told[place] for place in range(size)]
    known = {place: told[place] for place in (0, size - 1, mine) if place in told}
    rule = "what this rank gives"
    if {0, size - 1} <= known.keys():
        if all(_alike(one, own) for one in known.values()):
            rule = "what this, the first and the last of them give"
        else:
            found = [_between(known[0], known[size - 1], place, size - 1) for place in range(size)]
            if all(one is not None for one in found) and _alike(found[mine], own):
                _assume("what grows evenly from the first of them to the last")
                return found
            leads = _first_leads(known[0], known[size - 1], own)
            rule = f"what the {'last' if leads else 'first'} of them gives"
            own = known[size - 1 if leads else 0]
    _assume(rule)
    return [known.get(place, own) for place in range(size)]


def _first_leads(first: Any, last: Any, own: Any) -> bool:
    """Whether the first place gives something of its own, and the others what the last gives."""
    fits = _alike(own, first), _alike(own, last)
    if fits[0] != fits[1] and own is not first and own is not last:
        return fits[1]
    flags = isinstance(first, bool) or (isinstance(first, torch.Tensor) and first.dtype is torch.bool)
    return flags or type(first) is not type(last)


def _assume(rule: str) -> None:
    if on_assumed is not None:
        on_assumed(rule)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_alike, one, other))
    try:
        return bool(one == other)
    except Exception:  # objects of the program that cannot be compared
        return False


def _between(first: Any, last: Any, place: int, steps: int) -> Any:
    """What a place gives when whole numbers grow evenly from ``first`` to ``last``; None when they do not."""
    if isinstance(first, torch.Tensor) and isinstance(last, torch.Tensor):
        if first.dtype.is_floating_point or first.shape != last.shape or first.dtype != last.dtype:
            return None
        grown = (last - first) * place
        return None if bool((grown % steps).any()) else first + torch.div(grown, steps, rounding_mode="floor")
    if isinstance(first, bool) or type(first) is not type(last):
        return first if _alike(first, last) else None
    if isinstance(first, int):
        grown = (last - first) * place
        return None if grown % steps else first + grown // steps
    if isinstance(first, list | tuple) and len(first) == len(last):
        found = [_between(one, other, place, steps) for one, other in zip(first, last, strict=True)]
        return None if any(one is None for one in found) else type(first)(found)
    if isinstance(first, dict) and first.keys() == last.keys():
        values = {key: _between(first[key], last[key], place, steps) for key in first}
        return None if any(one is None for one in values.values()) else values
    return first if _alike(first, last) else None
