"""torchaudio beside a build of torch that its compiled operators are not for: it goes on without them.

Its wheels are built for CUDA.  Spectrograms, mel scales and its other transforms are torch's operators.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def tolerate(utils: ModuleType) -> None:
    """Right after ``torchaudio._extension.utils``: a library that cannot be loaded counts as not there."""
    load: Any = utils._load_lib

    @functools.wraps(load)
    def _load_lib(lib: str) -> bool:
        try:
            return bool(load(lib))
        except OSError:
            return False

    vars(utils).update(_load_lib=_load_lib)
