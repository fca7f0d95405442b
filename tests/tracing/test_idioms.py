"""What programs do with values on their way gives what it gives when two ranks really run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from workloads.tracing.drive.rounds import Rounds, workers
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "idioms.py"
RANKS = 2


def free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in held]


def results(folder: Path, device: str) -> list[dict[str, Any]]:
    files = [folder / f"{device}.{rank}.json" for rank in range(RANKS)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def test_idioms_give_what_two_real_ranks_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    port, store = free_ports(2)
    monkeypatch.setenv("STORE_PORT", store)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path), port]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as real:
        (tmp_path / "mail").mkdir()
        with workers(RANKS) as pool:
            job = ScriptJob(SCRIPT, (str(tmp_path),), world_size=RANKS)
            Rounds(pool, lambda _: job, tmp_path / "mail").run(range(RANKS))
        _, errors = real.communicate(timeout=120)
    assert real.returncode == 0, errors
    expected, found = results(tmp_path, "cpu"), results(tmp_path, "cuda")
    assert len(expected[0]) > 60
    assert not [text for rank in expected for text in rank.values() if "Error: " in str(text)]
    for rank in range(RANKS):
        wrong = {name: (one, found[rank].get(name)) for name, one in expected[rank].items()}
        assert {name: pair for name, pair in wrong.items() if pair[0] != pair[1]} == {}
