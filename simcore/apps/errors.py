"""How a command ends: a message on stderr and an exit code, never a half-written file."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

import typer

from simcore.apps.progress import say
from simcore.errors import InputError, SimcoreError

INTERRUPTED = 130
TERMINATED = 143
READER_LEFT = 141

_ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class _Terminated(BaseException):
    """Another process asked this one to end."""


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn whatever goes wrong in the block into a message and an exit code.

    0 done, 2 bad input (a full disk included), 3 infeasible, 1 our bug, 130 interrupted, 143 terminated,
    141 nobody reads the output.  Signals raise in the block, so that what it was writing is cleaned up.
    """
    own = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if os.getpid() != own:  # a worker that was forked in the block: it has nothing to clean up
            os._exit(128 + number)
        raise _Terminated

    previous = {
        number: signal.signal(number, terminate)
        for number in _ENDING_SIGNALS
        if signal.getsignal(number) == signal.SIG_DFL  # nohup stays in force
    }
    try:
        yield
        sys.stdout.flush()  # here, where a full disk or a reader that left can still be told
    except SimcoreError as error:
        say(f"error: {error}")
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        say("interrupted; no unfinished run is left")
        raise typer.Exit(INTERRUPTED) from error
    except _Terminated as error:
        say("terminated; no unfinished run is left")
        raise typer.Exit(TERMINATED) from error
    except BrokenPipeError as error:
        _forget_stdout()
        raise typer.Exit(READER_LEFT) from error
    except OSError as error:
        say(f"error: {error}")
        _forget_stdout()
        raise typer.Exit(InputError.exit_code) from error
    except Exception as error:
        say(traceback.format_exc().rstrip())
        say("This is a bug of the simulator, not of your input: please report it with the lines above.")
        raise typer.Exit(1) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def one_option(
    given: Mapping[str, object], *, more: Sequence[str] | None = None, of: Sequence[str] = ()
) -> str:
    """The name of the only option that is ``given``.

    ``more`` are arguments behind it, which only the options ``of`` take.
    Errors: InputError for none, several or such arguments behind another.
    """
    names = [name for name, value in given.items() if value]
    if not names:
        raise InputError(f"one of the options {' '.join(given)} is required")
    if len(names) > 1:
        raise InputError(f"option {names[1]}: not allowed with option {names[0]}")
    if more and names[0] not in of:
        raise InputError(f"unexpected arguments: {' '.join(more)}")
    return names[0]


def _forget_stdout() -> None:
    """Drop what could not be printed, so that the interpreter does not try again as it ends."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError):  # no file behind it
        pass
    finally:
        os.close(devnull)
