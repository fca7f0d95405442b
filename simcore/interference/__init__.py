"""Slowdown of kernels beside communication as a learned function: the alternative to shared resources."""

from simcore.interference.features import FEATURES, Neighbours, features
from simcore.interference.model import LearnedInterference, load_interference

__all__ = ["FEATURES", "LearnedInterference", "Neighbours", "features", "load_interference"]
