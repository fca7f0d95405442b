"""How a process runs one command: what it may take, what it need not do, and how it ends."""

from __future__ import annotations

# Nothing else here, and the C module behind ``signal``: a user may change their mind before more is imported.
import _signal  # type: ignore[import-not-found]

#: Objects made between two looks for garbage in cycles, of which there is little.  A run of a usual job makes
#: fewer; by the usual threshold of 700 they would all be looked at several times.
_OBJECTS = 1_000_000
_USUAL = 700, 10, 10
#: A small job makes half a million: 150 of them hold 100 MB by the first number, 25 MB by these.
_OF_MANY = 50_000, 10, 10
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def main() -> None:
    """Entry point of the console script ``simcore``: the same commands as ``scripts/``."""
    alone("simcore.apps.main:app")


def alone(command: str) -> None:
    """Run the command, or the app of several, called ``module:name``, with this process's arguments.

    What each script does, and nothing else.  Until the command begins nothing can be lost, so an interrupt
    ends the process at once, without a word.  Garbage is rarely looked for, and not at the end, where the
    interpreter looks at every object: the system takes all memory back.  numpy's linear algebra, which no
    command needs much of, starts no threads unless the environment says how many: a third of its time to
    start.  Nor does pydantic ask every installed package for plugins.  Arrow's tables lie where all else
    does, unless the environment says otherwise: its own allocator asks the system for pages where the process
    has some (of the default job half of all system time and 80 MB).
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # nohup and & stay in force
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    import gc
    import os
    import sys
    from importlib import import_module
    from io import TextIOWrapper

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    gc.set_threshold(_OBJECTS)
    keep_freed_memory()
    from simcore.apps.errors import as_app, hold_to_budget, reported_errors

    try:
        with reported_errors():
            hold_to_budget()
            if isinstance(sys.stdout, TextIOWrapper):
                sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal lacks
            module, _, name = command.partition(":")
            as_app(getattr(import_module(module), name))()
    except SystemExit as end:
        _end(end.code)
        raise
    finally:
        gc.freeze()


def _end(code: object) -> None:
    """End as the interpreter would, but for taking every object apart, which takes 40 ms and more.

    Returns where it has to be the interpreter: other threads go on, a debugger or profiler watches, or what
    is to be said of the end is more than a number.
    """
    import atexit
    import os
    import sys
    import threading

    watched = sys.gettrace() or sys.getprofile() or sys.flags.inspect
    if watched or threading.active_count() > 1 or not isinstance(code, int | None):
        return
    atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):  # nobody takes it: the interpreter says so
        return
    os._exit(code or 0)


def collect_for_long() -> None:
    """Look for garbage often enough that thousands of jobs may follow each other, in no more time."""
    import gc

    gc.set_threshold(*_OF_MANY)


def collect_as_usual() -> None:
    """Look for garbage as often as Python does: for a command whose objects in cycles hold much memory."""
    import gc

    gc.set_threshold(*_USUAL)


def keep_freed_memory() -> None:
    """Keep what is freed for what comes next, where the C library is glibc: large arrays are made and freed
    thousands of times, and took pages of the system anew (up to a third of all faults).

    ``give_back_memory`` still gives it back.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that it takes
        mallopt(_TRIM_THRESHOLD, 256 << 20)
