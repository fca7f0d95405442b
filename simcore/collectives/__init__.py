"""NCCL as data: algorithms, protocols, the tuner's choice, and plans for the engine."""

from simcore.collectives.algorithms import ALGORITHMS, COLLECTIVES, Transfer, steps
from simcore.collectives.closed_form import alpha_beta_time
from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.collectives.planner import NcclPlanner
from simcore.collectives.protocols import PROTOCOLS

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "PROTOCOLS",
    "CollectivePlan",
    "LinkUse",
    "NcclPlanner",
    "Transfer",
    "alpha_beta_time",
    "steps",
]
