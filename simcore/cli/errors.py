"""How a command ends: a message on stderr and an exit code, never a half-written file."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from simcore.errors import SimcoreError

INTERRUPTED = 130
TERMINATED = 143


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn whatever goes wrong in the block into a message and an exit code.

    0 done, 2 bad input, 3 infeasible, 1 our bug, 130 interrupted, 143 terminated.  SIGTERM raises in the
    block, so that what it was writing is cleaned up.
    """
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except SimcoreError as error:
        _say(f"error: {error}")
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        _say("interrupted; nothing was written")
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError:
        # The reader of our output left; there is nobody to tell.
        sys.stderr.close()
        raise
    except Exception as error:
        _say(traceback.format_exc().rstrip())
        _say("This is a bug of the simulator, not of your input: please report it with the lines above.")
        raise typer.Exit(1) from error
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(TERMINATED)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
