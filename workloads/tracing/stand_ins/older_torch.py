"""Modules that older versions of torch had, and that published programs still import."""

from __future__ import annotations

import collections.abc
import math
import sys
from types import ModuleType


def install() -> None:
    """Offer them, once per process, where this torch has them no more."""
    six = ModuleType("torch._six")
    vars(six).update(
        inf=math.inf,
        nan=math.nan,
        string_classes=(str, bytes),
        int_classes=int,
        container_abcs=collections.abc,
    )
    sys.modules.setdefault("torch._six", six)
