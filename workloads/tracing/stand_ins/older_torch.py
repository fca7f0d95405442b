"""What older versions of torch had or took, and published programs still use."""

from __future__ import annotations

import collections.abc
import math
import sys
from types import ModuleType
from typing import Any

from torch.utils.data import Sampler


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
    if "__init__" not in vars(Sampler):  # since torch 2.12
        sampler: Any = Sampler
        sampler.__init__ = lambda _self, _data_source=None: None
