"""How far the fluid network is from packets, and the packet network from other packet simulators."""

from simcore.study.cases import Job, Scenario, scenarios
from simcore.study.compare import CaseResult, Comparison, compare
from simcore.study.references import Reference, check_references

__all__ = [
    "CaseResult",
    "Comparison",
    "Job",
    "Reference",
    "Scenario",
    "check_references",
    "compare",
    "scenarios",
]
