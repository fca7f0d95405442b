"""Settings and what is dear to make, for all tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from hypothesis import settings

from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import workers

# Fixed examples and no deadline: a test says the same on a busy machine and on every run.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """One worker for all scripts: each rank is a fork of its own, importing torch takes two seconds."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with workers(1) as running:
        yield running
