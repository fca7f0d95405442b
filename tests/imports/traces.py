"""Tiny profiler traces written by hand, times in us."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(
    name: str, ts: float, dur: float, *, stream: int = 7, corr: int = 0, cat: str = "kernel", **args: Any
) -> Event:
    details = {"device": 0, "stream": stream, "correlation": corr, **args}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": details,
    }


def call(name: str, ts: float, dur: float, *, corr: int = 0, tid: int = 1) -> Event:
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur,
        "args": {"correlation": corr},
    }  # fmt: skip


def launched(
    name: str, called: float, ts: float, dur: float, *, corr: int, stream: int = 7, tid: int = 1, **args: Any
) -> list[Event]:
    """A launch call of 2 us and its kernel."""
    return [
        call("cudaLaunchKernel", called, 2, corr=corr, tid=tid),
        kernel(name, ts, dur, stream=stream, corr=corr, **args),
    ]


def framework_call(name: str, ts: float, dur: float, *, tid: int = 1) -> Event:
    """A call of the framework, around the calls of the device's API that it makes."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def step(number: int, ts: float, dur: float) -> Event:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "pid": 9,
        "tid": 1,
        "ts": ts,
        "dur": dur,
    }


def sync_record(kind: str, corr: int, **args: int) -> Event:
    return {
        "ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": 0, "ts": 0, "dur": 1,
        "args": {"cuda_sync_kind": kind, "correlation": corr, **args},
    }  # fmt: skip


def write(path: Path, events: list[Event], **header: Any) -> Path:
    """As plain JSON, or gzip when the name says so."""
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path
