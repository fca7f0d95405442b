"""Sweeps on a Ray cluster of two nodes, one of which is killed while it simulates, or the sweep itself."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from ray.cluster_utils import Cluster

from tests.chaos.commands import sweep_spec_of
from tests.chaos.play import Found

_ROOT = Path(__file__).parents[2]
_LONGEST_S = 300.0


class KilledNodes:
    """Each call is a case; what it finds goes to ``found``."""

    def __init__(self, folder: Path, found: Found, seed: int) -> None:
        self._folder, self._found = folder, found
        self._random = random.Random(f"nodes {seed}")
        self._cluster: Cluster | None = None
        self._cases = 0
        self._spec = folder / "nodes.yaml"
        self._spec.write_text(sweep_spec_of([8 * count for count in range(1, 17)]))
        self._truth: list[object] = []

    def __call__(self) -> None:
        """Kill a node, every third time the sweep instead; then ask again, and compare with one machine."""
        cluster = self._started()
        self._cases += 1
        out = self._folder / f"nodes{self._cases}"
        node = cluster.add_node(num_cpus=1)
        process = self._asked(out, cluster.address)
        lines = self._random.randrange(12)
        until = time.monotonic() + _LONGEST_S
        while self._lines(out) < lines and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(self._random.uniform(0, 0.3))
        fault = "sweep" if self._cases % 3 == 0 else "node"
        if fault == "sweep":
            process.send_signal(signal.SIGKILL)
        else:
            cluster.remove_node(node, allow_graceful=False)
        code = process.wait(_LONGEST_S)
        if fault == "sweep":
            cluster.remove_node(node, allow_graceful=False)
        elif code or pq.read_table(out / "cases.parquet").to_pylist() != self._truth:
            self._found.wrong.append(f"{out.name}: a node was killed: exit code {code} or other rows")
        code = self._asked(out, None).wait(_LONGEST_S)
        keys = [json.loads(line)["key"] for line in (out / "simulations.jsonl").read_text().splitlines()]
        if code or pq.read_table(out / "cases.parquet").to_pylist() != self._truth:
            self._found.wrong.append(
                f"{out.name}: {fault} killed: the next run ends with {code} or other rows"
            )
        if len(keys) != len(set(keys)):
            self._found.wrong.append(f"{out.name}: {fault} killed: something was done twice")
        self._found.counts["sweep on Ray", f"killed {fault}", "whole"] += 1

    def _started(self) -> Cluster:
        if self._cluster is None:
            head = {"num_cpus": 1, "include_dashboard": False}
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
            assert self._asked(self._folder / "here", None).wait(_LONGEST_S) == 0
            self._truth = pq.read_table(self._folder / "here" / "cases.parquet").to_pylist()
        return self._cluster

    def _asked(self, out: Path, address: str | None) -> subprocess.Popen[bytes]:
        words = [sys.executable, str(_ROOT / "scripts" / "sweep.py"), str(self._spec), "--out", str(out)]
        words += ["--ray", address] if address else []
        with (self._folder / "nodes.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log)

    def _lines(self, out: Path) -> int:
        store = out / "simulations.jsonl"
        return store.read_bytes().count(b"\n") if store.exists() else 0
