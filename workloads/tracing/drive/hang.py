"""Whether a script hangs: it launches nothing, and waits, or computes for far too long."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workloads.tracing.drive.script_job import ScriptHangError

_WATCH_S = 2.0
#: Part of a processor that a script uses at least while it computes, and how much more of its seconds it may
#: use than wait, or of a clock's where it gets little of a processor.
_BUSY, _BUSY_LONGER, _SLOW_LONGER = 0.05, 5, 20
#: Part of its time for which it runs, or is ready to and finds no processor, at least.
_READY = 0.5
_TICKS_S = os.sysconf("SC_CLK_TCK")
#: Places in ``/proc/PID/stat``, counted from behind the name: ticks in user and system mode, and of children
#: that have ended.
_USED = slice(11, 15)


@contextmanager
def watched(hang_s: float, recorder: Any) -> Iterator[None]:
    """ScriptHangError inside the script when no operation is dispatched for ``hang_s``, or for
    :data:`_BUSY_LONGER` times as many seconds of a processor: it imports, tokenises, makes an index.  On a
    machine that has too much to do, who is ready for most of the time computes, too.
    """
    seen, quiet, worked, queued = -1, 0.0, 0.0, 0.0
    watch_s = min(_WATCH_S, hang_s)

    def look(*_: object) -> None:
        nonlocal seen, quiet, worked, queued
        if recorder.num_calls != seen:
            seen, quiet, worked, queued = recorder.num_calls, 0.0, _processor_s(), _queued_s()
            return
        quiet += watch_s
        if quiet >= hang_s:
            busy = _processor_s() - worked
            ready = busy + _queued_s() - queued
            waits = busy < _BUSY * quiet and ready < _READY * quiet
            idle = waits or quiet >= _SLOW_LONGER * hang_s
            if idle or busy >= _BUSY_LONGER * hang_s:
                said = f"no tensor operation for {quiet:g} s, {busy:.0f} s of processors used"
                quiet, worked, queued = 0.0, _processor_s(), _queued_s()
                raise ScriptHangError(said)

    outer = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, watch_s, watch_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)


def _processor_s() -> float:
    """Seconds that this process and those below it have used."""
    return sum(os.times()[:4]) + sum(map(_of_process, _children(os.getpid())))


def _queued_s() -> float:
    """For how long this process was ready to run and had no processor; 0 where the kernel keeps no count."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _of_process(process: int) -> float:
    try:
        words = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
    except OSError:  # it has ended
        return 0.0
    own = sum(map(int, words.split()[_USED])) / _TICKS_S
    return own + sum(map(_of_process, _children(process)))


def _children(process: int) -> list[int]:
    found: list[int] = []
    for threads in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += map(int, threads.read_text(encoding="ascii").split())
        except OSError:
            continue
    return found
