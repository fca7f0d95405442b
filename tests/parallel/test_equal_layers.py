"""Layers that are equal are written once: the graph is that of layers written one by one."""

from __future__ import annotations

import pytest
from hypothesis import given

from simcore.graph import Graph, GraphBuilder, TemplateBuilder
from simcore.graph.hashing import graph_hash
from tests.parallel.jobs import jobs, model
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate


def _one_by_one(*arguments: object, **options: object) -> Graph:
    """As :func:`generate`, from templates that remember nothing."""
    as_is = GraphBuilder.template

    def forgetful(build: GraphBuilder, name: str) -> TemplateBuilder:
        made = as_is(build, name)
        made.known = None
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphBuilder, "template", forgetful)
        return generate(*arguments, **options)  # type: ignore[arg-type]


@given(jobs())
def test_any_job(job):
    assert graph_hash(generate(*job)) == graph_hash(_one_by_one(*job))


@pytest.mark.parametrize("as_launched", [False, True])
@pytest.mark.parametrize(
    "software",
    [
        SoftwareSpec(),
        SoftwareSpec(host_us_per_kernel=3.0),
        SoftwareSpec(cuda_graphs=True),
    ],
    ids=["as it is", "slow host", "graphs"],
)
def test_hosts_that_delay_kernels(software, as_launched):
    job = (
        model(8, experts=4),
        ParallelSpec(tp=2, pp=2, dp=2, ep=2, sequence_parallel=True),
        TrainingSpec(seq=512, global_batch=8, ep_overlap=not as_launched, recompute="full"),
        software,
    )
    written = generate(*job, as_launched=as_launched)
    assert graph_hash(written) == graph_hash(_one_by_one(*job, as_launched=as_launched))


def test_equal_layers_are_written_once(monkeypatch):
    """Forwards of 16 layers cost what those of the first few do."""
    job = (model(16), ParallelSpec(tp=2), TrainingSpec(seq=512, global_batch=2))
    repeated: list[int] = []
    as_is = TemplateBuilder.repeat

    def counted(template, stretch, layer):
        repeated.append(layer)
        as_is(template, stretch, layer)

    monkeypatch.setattr(TemplateBuilder, "repeat", counted)
    generate(*job)
    assert len(repeated) >= 2 * 13
