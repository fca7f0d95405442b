"""What a traced rank did as a list of events, and the same from processes that really ran."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from simcore.graph.ops import EdgeKind, OpKind
from tests.tracing.small_jobs import column
from workloads.tracing.record.templates import CutProgram

_COLUMNS = ("kind", "name", "collective", "num_bytes", "stream", "peer_delta", "group")


class Event(NamedTuple):
    """One op.  ``waits``: earlier ops, by position; ``peer``: how many places further on in the group."""

    is_call: bool
    name: str
    num_bytes: int
    stream: str
    waits: list[int]
    peer: int
    group: str


def events(program: CutProgram) -> list[Event]:
    """Every op in issue order; calls are collectives, sends and receives."""
    found: list[Event] = []
    issued: list[str] = []
    for entry in program.skeleton:
        template = program.templates[entry.template]
        first = len(issued)
        waits: dict[int, list[int]] = {}
        for dst, src, kind, stream, back in template.edges:
            if kind == int(EdgeKind.WAIT):
                at = first + src
                if src < 0:
                    at = [i for i, name in enumerate(issued[:first]) if name == stream][-1 - back]
                waits.setdefault(dst, []).append(at)
        rows = zip(*(column(template, name) for name in _COLUMNS), strict=True)
        for row, (kind, name, collective, size, stream, peer, group) in enumerate(rows):
            issued.append(stream)
            what = {OpKind.SEND: "send", OpKind.RECV: "recv"}.get(OpKind(kind), collective)
            found.append(Event(bool(what), what or name, size, stream, waits.get(row, []), peer, group))
    return found


def run_really(folder: Path, script: Path, jobs: Mapping[str, int]) -> dict[str, list[Any]]:
    """What each rank of ``script`` did in step 2 with gloo, by mode; ``jobs``: ranks of each mode."""
    with ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in jobs]
        for one in free:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in free]
    command = [sys.executable, "-W", "ignore", "-m", "tests.tracing.real_run", str(script), str(folder)]
    command += [f"{mode}@{ranks}={port}" for (mode, ranks), port in zip(jobs.items(), ports, strict=True)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    files = {mode: [folder / f"{mode}.{rank}.json" for rank in range(ranks)] for mode, ranks in jobs.items()}
    assert all(file.exists() for each in files.values() for file in each), done.stderr[-2000:]
    return {
        mode: [json.loads(file.read_text(encoding="utf-8")) for file in each] for mode, each in files.items()
    }
