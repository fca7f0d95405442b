"""What a stand-in leaves out is refused where a program asks for it."""

from __future__ import annotations

from typing import Any


class NotStoodInError(NotImplementedError):
    """The program asks an extension for something that its stand-in does not do."""

    def __init__(self, what: str, extension: str = "Transformer Engine") -> None:
        super().__init__(f"{extension} is not installed, and its stand-in has no {what}")


def absent(what: str, *bases: type, extension: str = "Transformer Engine") -> type:
    """A class that may be named and subclassed; making an object of it says that ``what`` is not done."""

    def refuse(self: Any, *_: Any, **__: Any) -> None:  # noqa: ARG001
        raise NotStoodInError(what, extension)

    return type("Absent", bases or (object,), {"__init__": refuse})
