"""docs/validation.md: what the simulator says of published training runs, as Markdown and plots."""

from simcore.calibrate.runs_page.bands import Coverage, coverage, coverage_object
from simcore.calibrate.runs_page.fits import far_off
from simcore.calibrate.runs_page.page import Extras, drawings, report

__all__ = ["Coverage", "Extras", "coverage", "coverage_object", "drawings", "far_off", "report"]
