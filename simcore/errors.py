"""The exception family of the simulator: one readable message, one exit code each.

``ValueError``-like mistakes of a user are :class:`InputError`; a violated ``assert`` is our bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SimcoreError(Exception):
    """Root of every error that the simulator raises on purpose; ``exit_code`` is the process's."""

    exit_code = 1


class InputError(SimcoreError):
    """Something the user gave is wrong: a key, a file, dims, a graph that cannot run."""

    exit_code = 2


class GraphError(InputError):
    """An execution graph is malformed or its ranks disagree; names ranks, op and position."""


class DeadlockError(GraphError):
    """No rank can make progress; the message says who waits for whom."""


class InfeasibleError(SimcoreError):
    """The input is right but the job cannot run."""

    exit_code = 3


class OutOfMemoryError(InfeasibleError):
    """A rank needs more memory than its GPU has; names the stage and the numbers."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest known name, else the list of known names.

    Names that differ in the case of letters alone come first, all of them: "gb/s" may be GB/s or Gb/s.
    """
    names = sorted(known)
    alike = [one for one in names if one.lower() == name.lower()]
    if alike:
        return f"; did you mean {' or '.join(map(repr, alike))}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    longer = [one for one in names if name and one.startswith(name)][:4]
    if longer and not (close and close[0] in longer):
        return f"; did you mean {' or '.join(map(repr, longer))}?"
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
