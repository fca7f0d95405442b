"""One set of worker processes for all tracing tests: importing torch and Megatron takes seconds."""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.tracing.small_jobs import NEEDS
from workloads.tracing.pool import WorkerPool
from workloads.tracing.trace import megatron_workers


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """Workers with the fake device installed; skips where torch or megatron-core is missing."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    with megatron_workers() as running:
        yield running
