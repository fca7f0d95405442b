"""What programs do with values on their way gives what it gives when two ranks really run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import Rounds
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.record.assemble import RankTrace

SCRIPT = Path(__file__).parent / "scripts" / "idioms.py"
RANKS = 2


def free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in held]


def results(folder: Path, device: str, ranks: Sequence[int]) -> list[dict[str, Any]]:
    files = [folder / f"{device}.{rank}.json" for rank in ranks]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def trace(
    pool: WorkerPool, folder: Path, store: str, world_size: int, ranks: Sequence[int]
) -> dict[int, RankTrace]:
    """Trace ``ranks``, which tell each other what they give."""
    (folder / "mail").mkdir()
    job = ScriptJob(SCRIPT, (str(folder), store), world_size=world_size)
    rounds = Rounds(pool, lambda _: job, folder / "mail")
    rounds.run(ranks)
    return rounds.seen


def test_idioms_give_what_two_real_ranks_get(pool: WorkerPool, tmp_path: Path) -> None:
    port, store = free_ports(2)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path), store, port]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as real:
        trace(pool, tmp_path, store, RANKS, range(RANKS))
        _, errors = real.communicate(timeout=120)
    assert real.returncode == 0, errors
    expected, found = (results(tmp_path, device, range(RANKS)) for device in ("cpu", "cuda"))
    assert len(expected[0]) > 60
    assert not [text for rank in expected for text in rank.values() if "Error: " in str(text)]
    for rank in range(RANKS):
        wrong = {name: (one, found[rank].get(name)) for name, one in expected[rank].items()}
        assert {name: pair for name, pair in wrong.items() if pair[0] != pair[1]} == {}


def test_what_ranks_between_give_follows_from_the_first_and_the_last(
    pool: WorkerPool, tmp_path: Path
) -> None:
    seen = trace(pool, tmp_path, "1", 8, (0, 7))
    for found in results(tmp_path, "cuda", (0, 7)):
        assert found["count"] == 8 * 5  # every rank gives 5
        assert found["count of ranks"] == [28, 8] and found["by gloo"] == [36]  # 0 + ... + 7, 1 + ... + 8
        assert found["maximum"] == [7.0]
        assert found["shapes of all"] == [[rank, 3] for rank in range(8)]
        assert found["all_gather_object"] == [{"rank": rank, "name": "node"} for rank in range(8)]
        assert found["seed of the last"] == [107] and found["flags"] == [1, 0, 1]
    rules = {asked.rule for asked, _ in seen[0].asked if asked.kind == "peers"}
    assert rules == {
        "what this, the first and the last of them give",
        "what grows evenly from the first of them to the last",
        "what the first of them gives",  # the maximum: floats, of which nothing is made up
    }
