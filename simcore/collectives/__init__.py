"""NCCL as data: algorithms, protocols, the tuner's choice, and plans for the engine."""

from simcore.collectives.algorithms import ALGORITHMS, COLLECTIVES, Transfer, steps
from simcore.collectives.alpha_beta import AlphaBetaPlanner
from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.collectives.planner import NcclPlanner
from simcore.collectives.protocols import PROTOCOLS

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "PROTOCOLS",
    "AlphaBetaPlanner",
    "CollectivePlan",
    "LinkUse",
    "NcclPlanner",
    "Transfer",
    "steps",
]
