"""Short symbols of process groups, equal on every rank: the axis that they span."""

from __future__ import annotations

_UNNAMED = ("", "undefined")

#: Megatron-core's group descriptions (parallel_state.py, 0.16.1) -> symbol.
_SYMBOLS = {
    "default_pg": "world",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "DATA_PARALLEL_GROUP": "dp_without_cp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "mp",
    "EMBEDDING_GROUP": "embd",
    "POSITION_EMBEDDING_GROUP": "pos_embd",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp_partial",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "dist_opt",
}


def described_family(description: str, _members: tuple[int, ...] = ()) -> str:
    """Symbol of a group that says what it is, as Megatron's do; an unknown description gives itself in lower
    case, without ``_GROUP``.
    """
    known = _SYMBOLS.get(description)
    return known or description.lower().removesuffix("_group") or "world"


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
