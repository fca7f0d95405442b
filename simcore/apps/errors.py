"""How a command ends: a message on stderr and an exit code, never a half-written file."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any

from simcore.apps.progress import say
from simcore.errors import InputError, SimcoreError
from simcore.outside import printable
from simcore.outside.limits import VARIABLE, limits, memory_budget
from simcore.units import format_bytes

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130
TERMINATED = 143
READER_LEFT = 141

_ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_MOST_SHOWN = 2_000  # characters of a message, which may quote what is in a file


class _Terminated(BaseException):
    """Another process asked this one to end."""


class _OutOfTime(BaseException):
    """The command ran for as long as it may."""


def as_app(command: typer.Typer | Callable[..., None]) -> typer.Typer:
    """A command, or several, whose errors are all reported; see :func:`reported_errors`."""
    import typer

    if not isinstance(command, typer.Typer):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(command)
        command = app
    from typer.core import TyperCommand

    from simcore.apps.hints import HintingCommand

    for one in command.registered_commands:
        assert one.callback is not None
        if one.cls in (None, TyperCommand):
            one.cls = HintingCommand
        if not hasattr(one.callback, "reports_errors"):
            one.callback = _reporting(one.callback)
    return command


def _reporting(command: Callable[..., Any]) -> Callable[..., None]:
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        with reported_errors(), _interruptible(), _timed():
            command(*args, **kwargs)
            sys.stdout.flush()  # here, where a full disk or a reader that left can still be told

    run.reports_errors = True  # type: ignore[attr-defined]
    return run


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn whatever goes wrong in the block into a message and the end of the process.

    0 done, 2 bad input (a full disk and spent budgets included), 3 infeasible, 1 our bug, 130 interrupted,
    143 terminated, 141 nobody reads the output.  Signals raise in the block, so that what it was writing is
    cleaned up.
    """
    previous = _raise_at_signals()
    try:
        yield
    except SimcoreError as error:
        say(f"error: {shown(str(error))}")
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt as error:
        say("interrupted; no unfinished run is left")
        raise SystemExit(INTERRUPTED) from error
    except _Terminated as error:
        say("terminated; no unfinished run is left")
        raise SystemExit(TERMINATED) from error
    except _OutOfTime as error:
        say(f"error: not done after {limits().seconds} s, the limit ({VARIABLE}=seconds=... raises it)")
        raise SystemExit(InputError.exit_code) from error
    except MemoryError as error:
        say(f"error: {_out_of_memory()}")
        raise SystemExit(InputError.exit_code) from error
    except BrokenPipeError as error:
        _forget_stdout()
        raise SystemExit(READER_LEFT) from error
    except OSError as error:
        say(f"error: {shown(str(error))}")
        _forget_stdout()
        raise SystemExit(InputError.exit_code) from error
    except Exception as error:
        from typer import Exit

        if isinstance(error, Exit):  # a command's own end, which says its code
            raise
        say(shown(traceback.format_exc().rstrip(), most=20_000))
        say("This is a bug of the simulator, not of your input: please report it with the lines above.")
        raise SystemExit(1) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def shown(text: str, most: int = _MOST_SHOWN) -> str:
    """A message as a terminal may get it: without control characters, not longer than anybody reads."""
    cut = text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return printable(cut)


def hold_to_budget() -> None:
    """Let this process take no more memory than its budget: it then ends with a message, not by a kill."""
    try:
        import resource  # of POSIX
    except ImportError:
        return
    most = memory_budget()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def _out_of_memory() -> str:
    import resource

    held, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if held < 0:
        return "out of memory"
    return f"needs more than {format_bytes(held)} of memory, the limit ({VARIABLE}=memory=... raises it)"


def _raise_at_signals() -> dict[int, Any]:
    """Have the signals that end a process raise here.  Returns the handlers that were in force."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    own = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if os.getpid() != own:  # a worker that was forked in the block: it has nothing to clean up
            os._exit(128 + number)
        raise _Terminated

    return {
        number: signal.signal(number, terminate)
        for number in _ENDING_SIGNALS
        if signal.getsignal(number) == signal.SIG_DFL  # nohup stays in force
    }


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C raise in the block, where it would end the process without a word."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) != signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _timed() -> Iterator[None]:
    """Raise in the block when the command has run for as long as it may."""
    seconds = limits().seconds
    if seconds is None:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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
