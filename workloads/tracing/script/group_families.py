"""Symbols for the process groups of any program: groups that partition ranks alike are one family."""

from __future__ import annotations

_UNNAMED = ("", "undefined")


class FamilyNames:
    """Names groups in the order in which a program asks for them, which is the same on every rank.

    A group joins the first family of its description whose groups have its size and none of its ranks;
    otherwise it begins a new one ("dp", "dp.2", ...).
    """

    def __init__(self) -> None:
        self._families: dict[str, list[tuple[str, int, set[int]]]] = {}

    def __call__(self, description: str, members: tuple[int, ...]) -> str:
        """Symbol of the group with ``members`` that a program made as ``description``."""
        base = "group" if description in _UNNAMED else description.lower().removeprefix("mesh_")
        families = self._families.setdefault(base, [])
        for symbol, size, ranks in families:
            if size == len(members) and ranks.isdisjoint(members):
                ranks.update(members)
                return symbol
        symbol = base if not families else f"{base}.{len(families) + 1}"
        families.append((symbol, len(members), set(members)))
        return symbol
