"""Networks behind one seam, and the max-min fair sharing that they (and GPUs) use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.network.flow import Endpoint, Flow, Network
    from simcore.network.fluid import FixedNetwork, FluidNetwork
    from simcore.network.link import Link
    from simcore.network.maxmin import max_min, share

__all__ = ["Endpoint", "FixedNetwork", "Flow", "FluidNetwork", "Link", "Network", "max_min", "share"]

_LATER = {
    "Endpoint": "flow",
    "FixedNetwork": "fluid",
    "Flow": "flow",
    "FluidNetwork": "fluid",
    "Link": "link",
    "Network": "flow",
    "max_min": "maxmin",
    "share": "maxmin",
}


def __getattr__(name: str) -> Any:
    """Import what is SimPy's when it is used: settings of packets are asked for without a network."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
