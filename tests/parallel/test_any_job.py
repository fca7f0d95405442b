"""Whatever can be described runs: groups agree, every send meets its receive, nothing hangs."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from simcore.graph import verify
from tests.parallel.jobs import jobs, step
from workloads.parallel.generate import generate


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
def test_every_job_can_run(job):
    graph = generate(*job)
    assert verify(graph) == []
    assert step(graph).step_ps > 0
