"""docs/validation.md: what the simulator says of published training runs, as Markdown and plots."""

from simcore.apps.validate.runs.page.bands import Coverage, coverage, coverage_object
from simcore.apps.validate.runs.page.fits import far_off
from simcore.apps.validate.runs.page.page import Extras, drawings, report

__all__ = ["Coverage", "Extras", "coverage", "coverage_object", "drawings", "far_off", "report"]
