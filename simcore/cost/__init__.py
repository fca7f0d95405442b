"""Time alone and demand of every compute kernel, from its shapes and a GPU's profile."""

from simcore.cost.classify import OP_CLASSES, classify
from simcore.cost.demand import ORIGINS, CostModel, Demands
from simcore.cost.kernel import KernelShape, Work, formula
from simcore.cost.roofline import RooflineCost
from simcore.cost.table import MeasuredTable

__all__ = [
    "ORIGINS",
    "OP_CLASSES",
    "CostModel",
    "Demands",
    "KernelShape",
    "MeasuredTable",
    "RooflineCost",
    "Work",
    "classify",
    "formula",
]
