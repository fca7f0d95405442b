"""Small jobs on all axes: every rank does what its class does, and the layout is that of the launch."""

from __future__ import annotations

import pytest

from tests.tracing.every_rank import compared, job_of
from workloads.tracing.drive.fork_server import WorkerPool


@pytest.mark.parametrize(
    "launch",
    [
        "shard=4 tp=2 layers=1 names=odd",
        "pp=2 shard=4 layers=2 microbatches=2 names=odd",
        "shard=2 cp=4 seq=64 batch=1 layers=1",
        "data=ddp pp=2 replicate=3 microbatches=4",  # stages' gradients do not come in the same order
        "shard=5 hidden=24 log=1 microbatches=2 layers=1",  # uneven; rank 0 reads its loss
    ],
)
def test_every_rank_does_what_its_class_does(pool: WorkerPool, launch: str) -> None:
    found = compared(pool, job_of(launch))
    assert found.spoken_for and (found.wrong, found.unlike(launch)) == ([], [])
