"""The packet network against ns-3 with the same transport: described, run where installed, else recorded."""

from simcore.apps.studies.ns3.check import Ns3Row, check_ns3

__all__ = ["Ns3Row", "check_ns3"]
