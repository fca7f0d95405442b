"""``--interference``: shared resources, or a learned function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simcore.errors import InputError, nearest

if TYPE_CHECKING:
    from simcore.interference import LearnedInterference

_CHOICES = ("shared", "learned")


def chosen_interference(text: str) -> LearnedInterference | None:
    """The learned function that ``shared``, ``learned`` or ``learned:FILE`` asks for; None for shared ones.

    Errors: InputError for another word or a file that holds no such function.
    """
    word, _, path = text.partition(":")
    if word not in _CHOICES or (path and word == "shared"):
        raise InputError(f"unknown interference {text!r}{nearest(word, _CHOICES)}")
    if word == "shared":
        return None
    from simcore.interference import load_interference

    return load_interference(Path(path)) if path else load_interference()
