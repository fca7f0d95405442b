"""What limits trust in a recording, said once of all ranks that it is said of."""

from tests.imports.traces import call, launched, step, write
from workloads.imports import import_traces
from workloads.imports.job import ImportReport, RankReport


def test_what_is_said_of_many_ranks_is_said_once():
    ranks = [
        RankReport(
            rank, "t", gpu_ops=1500, ops_without_launch=late, steps=1, span_s=1.0, outside_steps=outside
        )
        for rank, late, outside in ((0, 1200, 0.0), (1, 7, 0.25), (2, 900, 0.5), (4, 7, 0.0))
    ]
    said = ImportReport(tuple(ranks), 8).doubts()
    assert [line for line in said if line.startswith("rank")] == [
        "ranks 0-2, 4: 7 to 1200 of 1500 ops have no launch call: taken as launched before what is recorded",
        "ranks 1-2: 25% to 50% of the time of GPU ops lies in no step",
    ]
    assert ImportReport((ranks[1],), 1).doubts()[-2:] == [
        "rank 1: 25% of the time of GPU ops lies in no step",
        "rank 1: 7 of 1500 ops have no launch call: taken as launched before what is recorded",
    ]


def test_launches_whose_kernels_are_missing_are_told(tmp_path):
    # Two steps of two kernels; the recording ends in the second, whose last launch has no kernel.
    events = [
        *(step(1, 0, 40), step(2, 40, 40)),
        *launched("gemm", 2, 10, 10, corr=1),
        *launched("gemm", 12, 20, 10, corr=2),
        *launched("gemm", 42, 50, 10, corr=3),
        call("cudaLaunchKernel", 52, 2, corr=4),
    ]
    report = import_traces([write(tmp_path / "t.json", events)]).report
    (rank,) = report.ranks
    assert (rank.launches, rank.launches_without_op, rank.cut_steps) == (4, 1, (2,))
    assert (
        "rank 0: 1 of 4 launches have no kernel (steps 2): cut off, dropped or captured as a graph; what they"
        " ran is missing"
    ) in report.doubts()
    whole = import_traces([write(tmp_path / "w.json", events[:-1])]).report
    assert not [one for one in whole.doubts() if "launches" in one]
