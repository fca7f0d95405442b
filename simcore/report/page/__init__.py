"""A run as one page: a file that needs nothing else, neither a network nor a server."""

from simcore.report.page.comparison import write_comparison
from simcore.report.page.run import PAGE_FILE, write_page

__all__ = ["PAGE_FILE", "write_comparison", "write_page"]
