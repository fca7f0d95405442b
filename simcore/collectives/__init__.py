"""NCCL as data: kinds of collectives, the tuner's choice of algorithm and protocol, plans for the engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simcore.collectives.kinds import COLLECTIVES, Collective, Transfer, collective_named

if TYPE_CHECKING:
    from simcore.collectives.forced import ALGORITHMS
    from simcore.collectives.plan import CollectivePlan, LinkUse
    from simcore.collectives.planner import AlphaBetaPlanner, NcclPlanner
    from simcore.collectives.protocols import PROTOCOLS

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "PROTOCOLS",
    "AlphaBetaPlanner",
    "Collective",
    "CollectivePlan",
    "LinkUse",
    "NcclPlanner",
    "Transfer",
    "collective_named",
]

#: Where a name is found that is imported when it is used: graphs ask for kinds, which know no hardware.
_ON_USE = {
    "ALGORITHMS": "forced",
    "AlphaBetaPlanner": "planner",
    "CollectivePlan": "plan",
    "LinkUse": "plan",
    "NcclPlanner": "planner",
    "PROTOCOLS": "protocols",
}


def __getattr__(name: str) -> Any:
    """Import the planner when it is used."""
    if name in _ON_USE:
        return getattr(import_module(f"{__name__}.{_ON_USE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
