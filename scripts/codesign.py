"""What a job gains from more of each resource: ``codesign.py MODEL [--cluster NAME] [--times 2,4,10]``."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import sys

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # nohup and & stay in force
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # nothing can be lost yet: end without a word
sys.path.insert(0, __file__.rsplit("scripts", 1)[0])

from simcore.apps.process import alone

if __name__ == "__main__":
    alone("simcore.apps.studies.codesign:codesign")
