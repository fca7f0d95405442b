"""Settings and what is dear to make, for all tests."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import settings
from typer import testing

from workloads.tracing.drive import trace
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import workers

# Fixed examples and no deadline: a test says the same on a busy machine and on every run.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")


def _not_waited_for(fd: object) -> None:
    """The disk has it, some day: nothing here must outlive a loss of power, and no test is about one."""


# Thousands of times, milliseconds each.  Processes that tests start wait as ever.
os.fsync = _not_waited_for

# Commands are called a thousand times here, and reading all their options from annotations takes 30 ms.
testing._get_command = functools.cache(testing._get_command)

#: Files of 10 s and more, the longest first: they begin before all others, so that nobody waits for one at
#: the end (``scripts/test`` keeps the order).
LONGEST = (
    "tests/tracing/test_short_runs.py",
    "tests/apps/interface/test_examples.py",
    "tests/tracing/test_every_rank.py",
    "tests/tracing/test_classes_and_extension.py",
    "tests/fuzz/test_fuzz.py",
    "tests/tracing/test_pipelines.py",
    "tests/apps/run/test_memory_only.py",
    "tests/chaos/test_chaos.py",
    "tests/engine/test_same_results.py",
    "tests/edits/test_recorded_truth.py",
    "tests/symmetry/test_fold.py",
    "tests/tracing/test_habits.py",
    "tests/tracing/test_idioms.py",
    "tests/tracing/test_fake_device.py",
    "tests/planning/test_polish.py",
    "tests/planning/test_search.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, all others as they come."""
    place = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_collection_finish() -> None:
    """What was collected stays: nobody looks through it again and again, and forks share it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """One worker for all scripts: each rank is a fork of its own, importing torch takes two seconds."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with workers(1) as running:
        yield running


@pytest.fixture
def one_pool(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands trace in the tests' own worker, where they would import torch anew."""
    monkeypatch.setattr(trace, "workers", lambda *_, **__: nullcontext(pool))
