"""Streams of a simulated timeline: a row is where its op runs."""

from __future__ import annotations

from pathlib import Path

from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine.shortcuts import simulate
from simcore.graph import GraphBuilder
from simcore.hardware import Topology, load_cluster
from simcore.timeline import Timeline, write_run
from tests.synthetic import FACTS

MS = 10**9


def test_waiting_hosts_are_on_no_stream_of_the_gpu(tmp_path: Path) -> None:
    build = GraphBuilder(1, name="waits", dims={"tp": 1})
    step = build.template("fwd")
    step.compute("gemm", recorded_ps=MS)
    step.sync("compute", name="cudaStreamSynchronize")
    step.compute("gemm", recorded_ps=MS)
    step.sync(name="cudaDeviceSynchronize")
    build.program([0], [(step, 0, 0)])
    graph = build.build()
    topology = Topology(load_cluster("h800-8"))
    result = simulate(graph, topology, RooflineCost(topology.cluster.gpu), NcclPlanner(topology))
    write_run(tmp_path / "run", graph, result, FACTS)

    rows = Timeline.open(tmp_path / "run").rank(0)
    assert rows["stream"].tolist() == ["compute", "host", "compute", "host"]
    # The host waits through both kernels, yet nothing on a stream overlaps.
    assert (rows["end_ps"] - rows["start_ps"]).min() > MS // 2
    for _, on_stream in rows.groupby(rows["stream"].astype(str)):
        ends, starts = on_stream["end_ps"].to_numpy(), on_stream["start_ps"].to_numpy()
        assert (starts[1:] >= ends[:-1]).all()
