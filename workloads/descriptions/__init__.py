"""Jobs that are described instead of traced: a model, how it is trained, how it is spread over GPUs."""

from workloads.descriptions.advice import what_fits
from workloads.descriptions.describe import SECTIONS, Description, describe, sections_of
from workloads.models.public import model_names, named_model

__all__ = ["SECTIONS", "Description", "describe", "model_names", "named_model", "sections_of", "what_fits"]
