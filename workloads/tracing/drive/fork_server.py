"""Worker processes: each call runs in a fork of one prepared process.

Importing torch and a framework takes seconds; a fork takes milliseconds and starts from a clean copy, so no
state of a framework survives from one rank to the next.  The server is single-threaded and has run no
backward pass: autograd's threads would not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

from simcore.errors import SimcoreError

Found = TypeVar("Found")

_ENDED = "could not start: the process that is forked for every rank has ended"
_PDEATHSIG = 1  # PR_SET_PDEATHSIG
_SERVER = "import workloads.tracing.drive.fork_server as server; server.main()"


class WorkerPool(Executor):
    """Runs at most ``count`` calls at a time; ``prepare(*arguments)`` runs once, in the process that is
    forked, which has ``environment``.

    A call whose process dies, or that could not be prepared, fails with BrokenProcessPool.
    """

    def __init__(
        self,
        count: int,
        prepare: Callable[..., None],
        arguments: tuple[Any, ...],
        environment: Mapping[str, str],
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())
        self._connection.send(sys.path)
        self._connection.send((prepare, arguments))
        self._count = count
        self._lent = 0
        self._lock = threading.Lock()
        self._queued: deque[tuple[Future[Any], bytes]] = deque()
        self._running: dict[int, Future[Any]] = {}
        self._num_calls = 0
        self._broken = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def submit(self, fn: Callable[..., Found], /, *args: Any, **kwargs: Any) -> Future[Found]:
        """``fn``, a module's own, called in a fork."""
        future: Future[Found] = Future()
        with self._lock:
            self._queued.append((future, pickle.dumps((fn, args, kwargs))))
            self._start()
        return future

    def lend(self, count: int) -> None:
        """Run ``count`` calls more at a time: as many as wait for others and use no processor."""
        with self._lock:
            self._lent = count
            self._start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the server, and the calls that it runs unless ``wait`` waits for them."""
        with self._lock:
            if cancel_futures:
                for future, _ in self._queued:
                    future.cancel()
                self._queued.clear()
            running = list(self._running.values())
        if wait and not cancel_futures:
            for future in running:
                future.exception()
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._reader.join()
        self._server.wait()

    def _start(self) -> None:
        while self._queued and (self._broken or len(self._running) < self._count + self._lent):
            future, call = self._queued.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            if self._broken:
                future.set_exception(BrokenProcessPool(self._broken))
                continue
            self._num_calls += 1
            self._running[self._num_calls] = future
            with contextlib.suppress(OSError):  # the reader hears of it, too
                self._connection.send((self._num_calls, call))

    def _read(self) -> None:
        """Results as they come, until the server ends."""
        while True:
            try:
                number, answer = self._connection.recv()
            except (EOFError, OSError):
                number, answer = 0, pickle.dumps((False, BrokenProcessPool(_ENDED)))
            with self._lock:
                ended = [number] if number else list(self._running)
                futures = [self._running.pop(one) for one in ended]
                if not number:
                    self._broken = _ENDED
                self._start()
            for future in futures:
                _settle(future, answer)
            if not number:
                return


def _settle(future: Future[Any], answer: bytes) -> None:
    done, found = pickle.loads(answer)
    if done:
        future.set_result(found)
    else:
        future.set_exception(found)


def serve(connection: Connection) -> None:
    """Fork a child for every call that arrives, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's interrupt is the other end's to handle
    sys.path[:] = connection.recv()
    prepare, arguments = connection.recv()
    gc.disable()  # a fifth of the time of imports; what they make stays anyway
    prepare(*arguments)
    gc.freeze()
    gc.enable()
    children: dict[Connection, tuple[int, int]] = {}
    while True:
        for ready in wait([connection, *children]):
            if ready is connection:
                request = _request(connection)
                if request is None:
                    for _, process in children.values():
                        os.kill(process, signal.SIGKILL)
                    return
                number, call = request
                results, child = Pipe(duplex=False)
                process = os.fork()
                if process == 0:
                    _be_child(child, call, (connection, results, *children))
                child.close()
                children[results] = number, process
            elif isinstance(ready, Connection):
                number, process = children.pop(ready)
                try:
                    answer = ready.recv_bytes()
                    os.waitpid(process, 0)
                except EOFError:
                    answer = _died(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
                ready.close()
                connection.send((number, answer))


def _request(connection: Connection) -> tuple[int, bytes] | None:
    try:
        found: tuple[int, bytes] | None = connection.recv()
    except EOFError:  # the other process has died
        return None
    return found


def _died(code: int) -> bytes:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return pickle.dumps((False, BrokenProcessPool(how)))


def _be_child(results: Connection, call: bytes, inherited: tuple[Connection, ...]) -> None:
    try:
        _end_with_parent()
        for connection in inherited:
            connection.close()
        results.send_bytes(_answer(call))
    finally:
        os._exit(0)


def _end_with_parent() -> None:
    """Nobody answers a rank whose server was killed: it would wait for its mail for ever.  Linux only."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _answer(call: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(call)
        return pickle.dumps((True, function(*args, **kwargs)), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        if not isinstance(error, SimcoreError):
            error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception of the program that does not travel
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return pickle.dumps((False, error))


def main() -> None:
    """Entry point of the process that is forked; its argument is the descriptor of its connection."""
    serve(Connection(int(sys.argv[1])))
    os._exit(0)  # frameworks' extensions report what they leak when they are taken down
