"""Networks behind one seam, and the max-min fair sharing that they (and GPUs) use."""

from simcore.network.flow import Endpoint, Flow, Network
from simcore.network.fluid import FixedNetwork, FluidNetwork
from simcore.network.link import Link
from simcore.network.maxmin import max_min, share

__all__ = ["Endpoint", "FixedNetwork", "Flow", "FluidNetwork", "Link", "Network", "max_min", "share"]
