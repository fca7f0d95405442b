"""Jobs that are described instead of traced: what is said of model, training and layout, completed."""

from workloads.jobs.advice import what_fits
from workloads.jobs.complete import SECTIONS, Description, complete, meant, sections_of
from workloads.jobs.draft import Assumed
from workloads.models.public import is_named, model_names, named_model

__all__ = [
    "SECTIONS",
    "Assumed",
    "Description",
    "complete",
    "is_named",
    "meant",
    "model_names",
    "named_model",
    "sections_of",
    "what_fits",
]
