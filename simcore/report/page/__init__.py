"""A run as one page: a file that needs nothing else, neither a network nor a server."""

from typing import TYPE_CHECKING, Any

from simcore.report.page.run import PAGE_FILE, write_page

if TYPE_CHECKING:
    from simcore.report.page.comparison import write_comparison

__all__ = ["PAGE_FILE", "write_comparison", "write_page"]


def __getattr__(name: str) -> Any:
    """Import the comparison of two runs, with all that it prints, when it is used."""
    if name == "write_comparison":
        from simcore.report.page.comparison import write_comparison

        return write_comparison
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
