"""Ten jobs whose results are the same on every machine, Python and library: run as a module to compare.

Between them they use whatever computes with floats: dense and expert layers, interleaved stages, FSDP and
ZeRO, a straggler, noise, rated clocks, packets and a recording.  Each takes under two seconds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from simcore.apps.replay.play import simulate_job
from simcore.engine import SimulationResult
from simcore.run import Setup
from tests.engine.digests import digests, goldens
from tests.engine.twelve_jobs import MODEL, TWELVE, TWO_NODES, described
from tests.imports.traces import launched, step, write
from workloads.imports import import_traces

_OF_THE_TWELVE = ("dense", "moe", "interleaved", "fsdp2", "deepspeed", "straggler", "noise")


def packets() -> SimulationResult:
    """Every packet of a few small layers."""
    model = {**MODEL, "layers": 2, "hidden": 512, "ffn": 1024, "vocab": 4096}
    setup = Setup(network="packet", seed=5)
    return (
        described({"tp": 2, "pp": 2, "dp": 2}, 4, model=model, hardware=TWO_NODES, setup=setup).play().result
    )


def rated() -> SimulationResult:
    """Clocks that no load lowers, and NICs of half the speed."""
    hardware = {**TWO_NODES, "gpu.conditions": "cool", "cluster.nic_bytes_per_s": "25GB/s"}
    return described({"tp": 2, "pp": 2, "dp": 2}, 24, hardware=hardware).play().result


def recorded() -> SimulationResult:
    """A profiler's trace of two streams, times in thirds of a microsecond."""
    events = [step(1, 0.0, 4000 / 3)]
    for number in range(300):
        stream, called = 7 + number % 2, 4.1 * number
        lasts = (number * 37 % 29 + 1) / 3
        events += launched(
            f"kernel{number % 11}", called, called + 7 / 3, min(lasts, 8.0), corr=number + 1, stream=stream
        )
    with tempfile.TemporaryDirectory() as folder:
        job = import_traces([write(Path(folder) / "trace.json", events)])
        return simulate_job(job)


OTHERS: dict[str, Callable[[], SimulationResult]] = {job.__name__: job for job in (packets, rated, recorded)}
NAMES = (*_OF_THE_TWELVE, *OTHERS)


def result_of(name: str) -> SimulationResult:
    """One of the ten, simulated."""
    return OTHERS[name]() if name in OTHERS else TWELVE[name]().play().result


def differences() -> list[str]:
    """What differs from the recorded digests."""
    recorded_there = goldens()
    found = []
    for name in NAMES:
        for key, value in digests(result_of(name)).items():
            if value != recorded_there[name][key]:
                found.append(f"{name}: {key} is {value}, not {recorded_there[name][key]}")
    return found


if __name__ == "__main__":
    differs = differences()
    print("\n".join(differs) or f"the {len(NAMES)} jobs give what they gave before")
    sys.exit(bool(differs))
