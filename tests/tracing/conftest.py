"""One set of worker processes for all tests of Megatron jobs: importing torch and Megatron takes seconds."""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.tracing.small_jobs import NEEDS, SMALL
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import workers


@pytest.fixture(scope="session")
def megatron_pool() -> Iterator[WorkerPool]:
    """Workers with the fake device installed; skips where torch or megatron-core is missing."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    with workers(preparation=SMALL.preparation()) as running:
        yield running
