"""How answers show themselves: as tables on a terminal, and as the same tables in a notebook."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod

from rich.console import Console, RenderableType

#: Columns of what a notebook shows.
_WIDTH = 100
_IN_NOTEBOOK = '<pre style="line-height:1.2;white-space:pre;overflow-x:auto">{code}</pre>'


class ShownAsTables(ABC):
    """Shows :meth:`__rich__`: in a notebook by itself, on a terminal as ``repr`` or ``rich.print``."""

    @abstractmethod
    def __rich__(self) -> RenderableType:
        """The tables."""

    def __repr__(self) -> str:
        return self._printed().export_text().rstrip()

    def _repr_html_(self) -> str:
        return self._printed().export_html(inline_styles=True, code_format=_IN_NOTEBOOK)

    def _printed(self) -> Console:
        console = Console(
            record=True, file=io.StringIO(), width=_WIDTH, highlight=False, markup=False, emoji=False,
            force_jupyter=False,  # else it shows itself beside what is recorded
        )  # fmt: skip
        console.print(self.__rich__())
        return console
