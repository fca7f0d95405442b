"""Recorded collectives beside compute and alone."""

import pytest

from simcore.apps.studies.contention.beside import Channels
from simcore.apps.studies.contention.transfers import transfers
from simcore.collectives import NcclPlanner
from simcore.hardware import Topology, load_cluster
from tests.imports.traces import launched, step, write
from workloads.imports import import_traces


def test_collectives_beside_compute_last_from_when_the_last_rank_comes(tmp_path):
    # All-reduces of 32 MB: rank 1 comes 200 us after rank 0, and they last 100 us with nothing beside.  In
    # step 1 both compute during the last 130 us: all of it on rank 1.  In step 2 only rank 1 does: neither.
    reduced = {
        "grid": [24, 1, 1], "block": [640, 1, 1], "Collective name": "allreduce", "dtype": "Float",
        "In msg nelems": 1 << 23, "Out msg nelems": 1 << 23, "Group size": 2, "Process Group Name": "dp",
        "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    for rank, waits in enumerate((200, 0)):
        events = []
        for number, (lasts, computes) in enumerate(((100, False), (130, True), (110, rank == 1))):
            at, corr = 1000 * number, 10 * number
            end = at + 500
            events += [
                step(number, at, at + 900),
                *launched(
                    "ncclKernel_AllReduce", at + 5, end - lasts - waits, lasts + waits, corr=corr + 1,
                    stream=20, **reduced,
                ),
            ]  # fmt: skip
            if computes:
                events += launched("sgemm", at + 10, end - lasts, lasts, corr=corr + 2)
        write(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    (found,) = transfers(import_traces([tmp_path]), Channels(load_cluster("a100-8", {}), 1.0))
    plan = NcclPlanner(Topology(load_cluster("a100-8", {}))).plan("all_reduce", 1 << 25, (0, 1))
    assert found == {
        "collective": "all_reduce", "bytes": 1 << 25, "ranks": 2, "alone": 1, "alone_us": 100.0, "beside": 1,
        "beside_us": 130.0, "predicted_us": pytest.approx(plan.alone_ps / 1e6),
    }  # fmt: skip
